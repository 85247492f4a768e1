//! `portolan resolve`: rdma_getaddrinfo(3) as a command.

mod common;

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use common::{output_of, portolan, run, stderr, stdout};

/// The fields of `struct rdma_addrinfo`. The array of objects takes the place of `ai_next`.
const FIELDS: [&str; 14] = [
    "ai_flags",
    "ai_family",
    "ai_qp_type",
    "ai_port_space",
    "ai_src_len",
    "ai_dst_len",
    "ai_src_addr",
    "ai_dst_addr",
    "ai_src_canonname",
    "ai_dst_canonname",
    "ai_route_len",
    "ai_route",
    "ai_connect_len",
    "ai_connect",
];

/// The results for a target, which must be found.
#[track_caller]
fn results(args: &[&str]) -> Vec<Value> {
    let output = run(&[&["resolve", "--json"], args].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    match serde_json::from_str(&stdout(&output)).unwrap() {
        Value::Array(results) => results,
        other => panic!("{other}"),
    }
}

/// The error of a command that must fail with this exit code.
#[track_caller]
fn refused(args: &[&str], code: i32) -> String {
    let output = run(&[&["resolve"], args].concat());
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

#[test]
fn a_host_and_a_port_in_one_argument_are_told_apart_from_a_wrong_host() {
    for text in ["localhost:7471", "[::1]:7471"] {
        let complaint = refused(&[text], 1);
        let advice = format!("NODE and SERVICE are two arguments, or use --target {text}");
        assert!(complaint.contains(&advice), "{complaint}");
    }
}

#[test]
fn json_has_every_field_of_the_structure_for_every_result() {
    let results = results(&["localhost", "7471"]);
    assert!(!results.is_empty());
    for result in &results {
        let mut expected = FIELDS;
        expected.sort_unstable();
        let keys: Vec<_> = result.as_object().unwrap().keys().collect();
        assert_eq!(keys, expected);
        assert_eq!(result["ai_flags"], Value::Array(Vec::new()));
        assert_eq!(result["ai_qp_type"], "IBV_QPT_RC");
        assert_eq!(result["ai_port_space"], "RDMA_PS_TCP");
        let (destination, length) = match result["ai_family"].as_str().unwrap() {
            "AF_INET" => ("127.0.0.1:7471", 16),
            "AF_INET6" => ("[::1]:7471", 28),
            other => panic!("{other}"),
        };
        assert_eq!(result["ai_dst_addr"], destination);
        assert_eq!(result["ai_dst_len"], length);
        assert_eq!(result["ai_src_len"], length);
        let source = destination.replace("7471", "0");
        assert_eq!(result["ai_src_addr"], source, "loopback is its own source");
        assert!(result["ai_dst_canonname"].is_string());
        assert_eq!(
            (&result["ai_route_len"], &result["ai_connect_len"]),
            (&0.into(), &0.into())
        );
        assert_eq!(result["ai_connect"], "");
    }
}

#[test]
fn the_table_names_addresses_device_and_kind_of_service() {
    let output = run(&["resolve", "127.0.0.1", "7471"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    let mut lines = text.lines();
    let head = lines.next().unwrap();
    assert!(
        head.starts_with("destination") && head.ends_with("port space"),
        "{text}"
    );
    let row: Vec<_> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(
        row[..3],
        ["127.0.0.1:7471", "127.0.0.1:0", "sw_lo"],
        "{text}"
    );
    assert!(row.contains(&"RC") && row.contains(&"AF_INET"), "{text}");
    assert_eq!(stderr(&output), "", "one target needs no progress");
}

#[test]
fn explain_prints_rule_route_device_and_gid() {
    let args = ["127.0.0.1", "7471", "--explain"];
    let text = stdout(&run(&[&["resolve"], &args[..]].concat()));
    for part in [
        "queue pair type RC",
        "no resolver was asked",
        "route: 127.0.0.1 ",
        " table ",
        "device: sw_lo port 1 GID index",
        "place 1 of 1",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let told = &results(&args)[0]["explain"];
    let told: Vec<_> = told
        .as_array()
        .unwrap()
        .iter()
        .map(Value::to_string)
        .collect();
    assert!(
        told.iter().any(|line| line.contains("device: sw_lo")),
        "{told:?}"
    );
}

#[test]
fn flags_families_types_and_spaces_reach_the_results() {
    let passive = &results(&["--passive", "--family", "inet", "-", "7471"])[0];
    assert_eq!(passive["ai_flags"], serde_json::json!(["RAI_PASSIVE"]));
    assert_eq!(passive["ai_src_addr"], "0.0.0.0:7471");
    assert_eq!(
        (&passive["ai_dst_len"], &passive["ai_dst_addr"]),
        (&0.into(), &Value::Null)
    );

    let ud = ["--qp-type", "ud", "--port-space", "ipoib", "127.0.0.1", "1"];
    let ud = &results(&ud)[0];
    assert_eq!(ud["ai_qp_type"], "IBV_QPT_UD");
    assert_eq!(ud["ai_port_space"], "RDMA_PS_IPOIB");

    let noroute = &results(&["--no-route", "--numeric-host", "192.0.2.1", "1"])[0];
    assert_eq!(
        (&noroute["ai_src_len"], &noroute["ai_src_addr"]),
        (&0.into(), &Value::Null)
    );

    let pinned = &results(&["--source", "127.0.0.2:77", "127.0.0.1", "1"])[0];
    assert_eq!(pinned["ai_src_addr"], "127.0.0.2:77");

    let ib = [
        "--family",
        "ib",
        "fe80::1%1,pkey=0x8001",
        "7471",
        "--no-route",
    ];
    let ib = &results(&ib)[0];
    assert_eq!(
        (&ib["ai_family"], &ib["ai_dst_len"]),
        (&"AF_IB".into(), &48.into())
    );
    let text = ib["ai_dst_addr"].as_str().unwrap();
    assert!(
        text.contains("pkey=0x8001") && text.contains("sid=0x0000000001061d2f"),
        "{text}"
    );

    let hints = &results(&["--destination", "127.0.0.1:9"])[0];
    assert_eq!(hints["ai_dst_addr"], "127.0.0.1:9");
}

#[test]
fn errors_have_the_code_of_the_manual_and_a_suggestion() {
    let unknown = refused(&["no-such-host.invalid", "7471"], 1);
    assert!(unknown.contains("no-such-host.invalid"), "{unknown}");
    assert!(unknown.contains("EAI_"), "{unknown}");
    for (args, code, name, advice) in [
        (&["host", "--numeric-host"][..], 1, "EAI_NONAME", "numeric"),
        (&["::1", "--family", "inet"], 1, "EAI_ADDRFAMILY", "IPv4"),
        (&["127.0.0.1", "65536"], 1, "EAI_SERVICE", "65535"),
        (
            &["127.0.0.1", "no-such-service"],
            1,
            "EAI_NONAME",
            "/etc/services",
        ),
        (&["fe80::1", "1"], 1, "EAI_NONAME", "%eth0"),
        (
            &["127.0.0.1", "--qp-type", "ud", "--port-space", "tcp"],
            2,
            "EAI_QPTYPE",
            "UD",
        ),
        (&["-", "1", "--sa", "--dns"], 2, "EAI_BADFLAGS", "RAI_DNS"),
        (
            &["host", "1", "--sa"],
            2,
            "EAI_SYSTEM",
            "leave the node out",
        ),
    ] {
        let text = refused(args, code);
        assert!(
            text.contains(name) && text.contains(advice),
            "{args:?}: {text}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    for wrong in [
        &["h", "--source", "nonsense"][..],
        &["h", "--family", "ipx"],
        &[],
    ] {
        refused(wrong, 2);
    }
}

#[test]
fn a_target_that_is_not_found_is_a_json_object() {
    let output = run(&["resolve", "--json", "127.0.0.1", "65536"]);
    assert_eq!(output.status.code(), Some(1));
    let told: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(told["error"], "EAI_SERVICE");
    assert_eq!((&told["code"], &told["errno"]), (&(-8).into(), &22.into()));
    assert_eq!(
        (&told["node"], &told["service"]),
        (&"127.0.0.1".into(), &"65536".into())
    );
}

#[test]
fn hints_that_make_no_sense_for_any_target_are_wrong_usage() {
    let wrong = ["--qp-type", "rc", "--port-space", "udp"];
    let targets = ["127.0.0.1", "1", "--target", "127.0.0.2:2"];
    let text = refused(&[&targets[..], &wrong].concat(), 2);
    // Each error is printed, and the result.
    assert_eq!(text.lines().count(), 3, "{text}");
}

#[test]
fn several_targets_are_printed_in_order_and_a_failure_affects_no_other() {
    let args = [
        "resolve",
        "127.0.0.1",
        "1",
        "--target",
        "127.0.0.2:2",
        "--json",
    ];
    let more = [
        "--target",
        "127.0.0.1:no-such-service",
        "--target",
        "[::1]:3",
    ];
    let output = run(&[&args[..], &more].concat());
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<Value> = common::objects(&stdout(&output));
    let destination = |at: usize| lines[at][0]["ai_dst_addr"].clone();
    assert_eq!(lines.len(), 4);
    assert_eq!(
        [destination(0), destination(1)],
        ["127.0.0.1:1", "127.0.0.2:2"]
    );
    assert_eq!(lines[2]["error"], "EAI_NONAME");
    assert_eq!(destination(3), "[::1]:3");

    // For people each has a heading.
    let text = stdout(&run(&[
        "resolve",
        "127.0.0.1",
        "1",
        "--target",
        "127.0.0.2:2",
    ]));
    assert!(
        text.starts_with("127.0.0.1:1\n") && text.contains("\n127.0.0.2:2\n"),
        "{text}"
    );
}

#[test]
fn a_thousand_targets_are_read_from_standard_input() {
    let mut child = portolan()
        .args(["resolve", "--targets-from", "-", "--json", "--no-route"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let lines = (1..=1000).map(|port| format!("127.0.0.1:{port}\n"));
    let text = format!("# many\n\n{}", lines.collect::<String>());
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
    let output = output_of(child);
    writer.join().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let lines = common::objects(&stdout(&output));
    assert_eq!(lines.len(), 1000);
    for (at, line) in lines.iter().enumerate() {
        assert_eq!(line[0]["ai_dst_addr"], format!("127.0.0.1:{}", at + 1));
    }
}

#[test]
fn a_file_of_targets_that_is_missing_or_wrong_is_named() {
    let text = refused(&["--targets-from", "/no/such/file"], 2);
    assert!(text.contains("/no/such/file"), "{text}");
}
