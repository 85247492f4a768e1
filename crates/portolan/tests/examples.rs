//! The examples run to their end and print the documented output.

use std::path::PathBuf;
use std::process::Command;

/// Runs an example, which cargo has built beside this test.
fn output_of(example: &str) -> String {
    let test = std::env::current_exe().unwrap();
    let profile: PathBuf = test.ancestors().nth(2).unwrap().into();
    let program = profile.join("examples").join(example);
    let output = Command::new(&program)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let (said, complained) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert!(output.status.success(), "{}: {complained}", output.status);
    assert_eq!(complained, "");
    said
}

#[test]
fn the_echo_brings_every_message_back() {
    let expected =
        "ahoy -> ahoy\nfathoms: seven -> fathoms: seven\nland in sight -> land in sight\n";
    assert_eq!(output_of("echo"), expected);
}

#[test]
fn the_rdma_read_prints_the_chart() {
    let expected = "Here the coast bends north, and there is good anchorage.\n";
    assert_eq!(output_of("rdma_read"), expected);
}

#[cfg(feature = "tokio")]
#[test]
fn the_echo_of_tasks_brings_a_thousand_messages_back() {
    assert_eq!(output_of("echo_tokio"), "1000 messages came back\n");
}

#[test]
fn every_example_is_short() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < 60, "{} has {lines} lines", path.display());
        seen += 1;
    }
    assert_eq!(seen, 3);
}
