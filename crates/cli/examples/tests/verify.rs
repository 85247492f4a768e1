//! `portolan-verify`: data checked by both ends.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

#[path = "../../../lab/src/own_network.rs"]
#[allow(unreachable_pub, reason = "it is public where it belongs")]
mod own_network;

fn verify(args: &[&str]) -> Command {
    own_network::enter();
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan-verify"));
    command.args(args).stdout(Stdio::piped());
    command
}

/// A peer that serves one connection, and its address.
fn peer(at: &str) -> (Child, String) {
    let mut child = verify(&["serve", at]).spawn().unwrap();
    let mut line = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    BufReader::with_capacity(1, stdout)
        .read_line(&mut line)
        .unwrap();
    let listening: Value = serde_json::from_str(&line).unwrap();
    (child, listening["address"].as_str().unwrap().to_owned())
}

fn objects(output: &Output) -> Vec<Value> {
    let lines = output.stdout.split(|byte| *byte == b'\n');
    let lines = lines.filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

#[test]
fn all_operations_by_both_ends_are_verified_up_to_the_longest_message() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let (peer, address) = peer(at);
        let sizes = "1,3,1024,65537,8388608";
        let output = verify(&["ask", &address, "--sizes", sizes])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let told = objects(&output);
        let (summary, cases) = told.split_last().unwrap();
        // Three operations of five sizes, two atomics at six offsets, one of them with two outcomes.
        assert_eq!(cases.len(), 2 * (3 * 5 + 6 + 12));
        assert!(cases.iter().all(|case| case["right"] == true));
        assert_eq!(summary["right"], cases.len());
        assert_eq!(summary["missing"], 0);
        let by_peer = cases.iter().filter(|case| case["by_peer"] == true);
        assert_eq!(by_peer.count(), cases.len() / 2);
        let served = peer.wait_with_output().unwrap();
        assert!(served.status.success(), "{served:?}");
        assert_eq!(objects(&served)[0]["requests"], cases.len());
    }
}

#[test]
fn only_the_chosen_operations_are_asked_for_and_a_missing_peer_is_a_failure() {
    let (peer, address) = peer("127.0.0.1:0");
    let chosen = ["ask", &address, "--operations", "read", "--sizes", "9"];
    let output = verify(&chosen).output().unwrap();
    let told = objects(&output);
    assert_eq!(told.len(), 3, "{told:?}");
    assert_eq!(
        (&told[1]["operation"], &told[1]["bytes"]),
        (&"read".into(), &9.into())
    );
    assert_eq!(told[2]["bytes"], 18);
    assert!(peer.wait_with_output().unwrap().status.success());

    let output = verify(&["ask", &address, "--timeout", "5"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}
