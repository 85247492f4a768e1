//! `portolan reach` on loopback.

mod common;

use common::*;

#[test]
fn gids_of_this_host_are_reachable_by_the_exit_code() {
    let output = run(&["reach", "127.0.0.1", "::ffff:127.0.0.1", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let told = objects(&stdout(&output));
    assert_eq!(told.len(), 2);
    for answer in &told {
        assert_eq!(
            (&answer["type"], &answer["reachable"]),
            (&"reach".into(), &true.into())
        );
        assert_eq!(
            (&answer["gid"], &answer["device"]),
            (&"::ffff:127.0.0.1".into(), &"sw_lo".into())
        );
        assert_eq!(
            (&answer["method"], &answer["port"]),
            (&"route".into(), &1.into())
        );
    }
    let text = stdout(&run(&["reach", "127.0.0.1"]));
    assert!(
        text.contains("reachable    by route from sw_lo port 1 (127.0.0.1)"),
        "{text}"
    );
}

#[test]
fn an_unreachable_gid_is_printed_with_its_errno() {
    // The loopback device has no route out.
    let args = [
        "reach",
        "192.0.2.1",
        "127.0.0.1",
        "--device",
        "sw_lo",
        "--json",
    ];
    let output = run(&args);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    let told = objects(&stdout(&output));
    assert_eq!(
        (&told[0]["error"], &told[0]["errno"]),
        (&"ENXIO".into(), &6.into())
    );
    assert_eq!(told[1]["reachable"], true);
}

#[test]
fn senseless_queries_are_errors() {
    for (args, why) in [
        (&["reach", "x"][..], "a GID expected"),
        (
            &["reach", "::", "127.0.0.1"],
            "1 of 2 GIDs could not be checked",
        ),
        (&["reach", "224.0.0.1"], "1 of 1"),
        (
            &["reach", "::1", "--device", "no-such"],
            "no device no-such",
        ),
        (
            &["reach", "::1", "--device", "sw_lo", "--port", "2"],
            "port: expected",
        ),
        (&["reach", "fe80::1%no-such"], "no network interface"),
        (&["reach"], "required"),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            stderr(&output).contains(why),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn gids_can_be_read_from_a_file_and_are_printed_in_order() {
    let path = std::env::temp_dir().join(format!("portolan-gids-{}", std::process::id()));
    let gids: Vec<String> = (1..=1000)
        .map(|n| format!("127.0.{}.{}", n / 250, n % 250 + 1))
        .collect();
    std::fs::write(&path, format!("# all of them\n{}\n", gids.join("\n"))).unwrap();
    let output = run(&[
        "reach",
        "--from",
        path.to_str().unwrap(),
        "--device",
        "sw_lo",
        "--json",
    ]);
    std::fs::remove_file(&path).unwrap();
    let told = objects(&stdout(&output));
    let order = told.iter().map(|answer| {
        answer["gid"]
            .as_str()
            .unwrap()
            .trim_start_matches("::ffff:")
    });
    assert!(order.eq(gids.iter().map(String::as_str)));
}
