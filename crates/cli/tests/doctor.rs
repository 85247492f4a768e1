//! `portolan doctor` on this machine, whatever its state.

mod common;

use std::time::Instant;

use serde_json::Value;

use common::*;

fn doctor(args: &[&str]) -> (Option<i32>, Value) {
    let output = run(&[&["doctor", "--json"], args].concat());
    let told = objects(&stdout(&output));
    assert_eq!(told.len(), 1, "{}", stderr(&output));
    (output.status.code(), told[0].clone())
}

fn has_problem(told: &Value) -> bool {
    let mut findings = told["findings"].as_array().unwrap().iter();
    findings.any(|finding| finding["severity"] == "problem")
}

#[test]
fn the_exit_code_and_the_count_show_whether_there_are_problems() {
    let (code, told) = doctor(&[]);
    assert_eq!(
        (&told["type"], &told["version"]),
        (&"doctor".into(), &1.into())
    );
    assert_eq!(code, Some(i32::from(has_problem(&told))), "{told}");
    assert_eq!(told["problems"].as_u64() > Some(0), has_problem(&told));
    assert_eq!(told["provider"]["name"], "route");
    assert_eq!(told["provider"]["pinned"], false);
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(told["host"]["kernel"], release.trim());
    let mut software = told["software"].as_array().unwrap().iter();
    assert!(software.any(|device| device["interface"] == "lo"), "{told}");
}

#[test]
fn a_wrong_list_of_trusted_users_has_a_finding_of_its_own() {
    let doctor = portolan()
        .args(["doctor", "--json"])
        .env("PORTOLAN_TRUST", "alice")
        .output();
    let doctor = doctor.unwrap();
    assert_eq!(doctor.status.code(), Some(1), "{}", stderr(&doctor));
    let told = &objects(&stdout(&doctor))[0];
    let findings = told["findings"].as_array().unwrap();
    let of_code = |code: &str| findings.iter().find(|finding| finding["code"] == code);
    assert_eq!(of_code("group-unusable"), None);
    let found = of_code("trust-unknown").unwrap();
    assert_eq!(found["severity"], "problem");
    assert_eq!(found["remedy"], "unset PORTOLAN_TRUST");
    for text in [&found["text"], &told["udp_port"]["trust_error"]] {
        let text = text.as_str().unwrap();
        assert!(
            text.contains("PORTOLAN_TRUST") && text.contains("alice"),
            "{text}"
        );
    }
}

#[test]
fn the_option_and_the_variable_pin_the_provider_and_the_text_names_which() {
    let (_, told) = doctor(&["--provider", "software"]);
    assert_eq!(
        (&told["provider"]["name"], &told["provider"]["pinned"]),
        (&"software".into(), &true.into())
    );
    for choice in ["software", "kernel"] {
        let text = stdout(&run(&["doctor", "--provider", choice]));
        let line = text.lines().find(|line| line.starts_with("provider"));
        let line = line.unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains(choice), "{line}");
        assert!(line.ends_with("(--provider is given)"), "{line}");
        // The option is stronger than the variable.
        let other = portolan()
            .env("PORTOLAN_PROVIDER", "kernel")
            .args(["doctor", "--provider", choice])
            .output();
        let text = stdout(&other.unwrap());
        assert!(text.contains("(--provider is given)"), "{text}");
    }
    let by_variable = portolan()
        .env("PORTOLAN_PROVIDER", "software")
        .arg("doctor")
        .output();
    let text = stdout(&by_variable.unwrap());
    assert!(text.contains("(PORTOLAN_PROVIDER is set)"), "{text}");
}

#[test]
fn an_address_of_this_host_that_no_device_has_is_a_problem_and_a_listener_there_is_warned() {
    let (code, told) = doctor(&["127.0.1.1:7701"]);
    assert_eq!(code, Some(1), "{told}");
    assert_eq!(told["destination"]["ways"][0]["fault"], "no-device");
    let mut findings = told["findings"].as_array().unwrap().iter();
    let is_it = |finding: &Value| {
        finding["code"] == "destination-no-device" && finding["severity"] == "problem"
    };
    assert!(findings.any(is_it), "{told}");
    let mut listening = Listening::start("127.0.1.1", &[]);
    listening.child.kill().unwrap();
    let mut complaint = String::new();
    let mut errors = listening.child.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut errors, &mut complaint).unwrap();
    let warning = "no software device has 127.0.1.1";
    assert!(complaint.contains(warning), "{complaint}");
}

#[test]
fn a_destination_is_reported_with_its_route() {
    let (_, told) = doctor(&["127.0.0.1:7471"]);
    let way = &told["destination"]["ways"][0];
    assert_eq!(way["address"], "127.0.0.1:7471");
    assert_eq!(
        (&way["device"], &way["fault"]),
        (&"sw_lo".into(), &Value::Null)
    );
    assert!(
        way["reasons"].to_string().contains("route: 127.0.0.1"),
        "{way}"
    );
    let (code, told) = doctor(&["no.such.host.invalid:1", "--timeout", "5"]);
    assert_eq!(code, Some(1));
    assert!(told["destination"]["error"].is_string(), "{told}");
}

#[test]
fn a_process_that_holds_the_port_is_reported() {
    let listening = Listening::start("127.0.0.1", &[]);
    let pid = listening.child.id();
    // Other tests' processes start and end, and may be electing a new holder.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (_, told) = doctor(&[]);
        let members = told["udp_port"]["group"]["members"].as_array();
        if members.is_some_and(|members| members.contains(&pid.into())) {
            let sockets = told["udp_port"]["sockets"].as_array().unwrap();
            assert!(!sockets.is_empty());
            return;
        }
        assert!(Instant::now() < deadline, "no {pid}: {told:#}");
    }
}

#[test]
fn the_text_begins_with_the_provider_and_ends_with_the_problems() {
    let text = stdout(&run(&["doctor", "127.0.0.1"]));
    let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
    let order = [
        "provider",
        "\nUDP 4791",
        "\nsoftware",
        "\nkernel",
        "\nfirewall",
        "\nto 127.0.0.1",
    ]
    .map(place);
    assert!(order.is_sorted(), "{text}");
    let last = ["no problems found", "problems"]
        .into_iter()
        .find_map(|what| text.find(what));
    assert!(last.unwrap() > order[5], "{text}");
    let output = portolan()
        .env("PORTOLAN_PROVIDER", "stone")
        .args(["doctor"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stdout(&output).contains("unset PORTOLAN_PROVIDER"),
        "{}",
        stdout(&output)
    );
}
