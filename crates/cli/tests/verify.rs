//! `portolan bench verify`: data that both ends look at.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use common::{objects, output_of, portolan, run, stderr, stdout};
use serde_json::Value;

/// A peer that serves, and where.
fn peer(at: &str) -> (Child, String) {
    let mut child = portolan()
        .args(["bench", "--json", "verify", "--serve", at])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    BufReader::with_capacity(1, stdout)
        .read_line(&mut line)
        .unwrap();
    let listening: Value = serde_json::from_str(&line).unwrap();
    (child, listening["address"].as_str().unwrap().to_owned())
}

#[test]
fn all_operations_by_both_ends_are_verified_up_to_the_longest_message() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let (peer, address) = peer(at);
        let sizes = "1,3,1024,65537,8388608";
        let output = run(&["--json", "bench", "verify", &address, "--sizes", sizes]);
        let told = stdout(&output);
        assert_eq!(output.status.code(), Some(0), "{told}{}", stderr(&output));
        let told = objects(&told);
        let (summary, cases) = told.split_last().unwrap();
        // Three operations of five sizes, two atomics at six places, one of them with two outcomes.
        assert_eq!(cases.len(), 2 * (3 * 5 + 6 + 12));
        assert!(cases.iter().all(|case| case["right"] == true));
        assert_eq!(summary["right"], cases.len());
        assert_eq!(summary["missing"], 0);
        let by_peer = cases.iter().filter(|case| case["by_peer"] == true);
        assert_eq!(by_peer.count(), cases.len() / 2);
        let served = output_of(peer);
        assert!(served.status.success(), "{}", stdout(&served));
        assert_eq!(objects(&stdout(&served))[0]["requests"], cases.len());
    }
}

#[test]
fn chosen_operations_are_told_in_words_and_a_peer_that_is_none_has_failed() {
    let (peer, address) = peer("127.0.0.1:0");
    let output = run(&[
        "bench",
        "verify",
        &address,
        "--operations",
        "read",
        "--sizes",
        "9",
    ]);
    let told = stdout(&output);
    assert_eq!(told.lines().count(), 3, "{told}");
    assert!(
        told.contains("read         by the peer        9 bytes"),
        "{told}"
    );
    assert!(
        told.contains("2 cases: 2 right, 0 wrong, 0 without an end; 18 B in"),
        "{told}"
    );
    assert!(output_of(peer).status.success());

    let output = run(&["bench", "verify", &address, "--timeout", "5"]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
}
