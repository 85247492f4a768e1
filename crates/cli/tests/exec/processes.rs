//! C programs that fork, run other programs, exit or unload while the libraries work.

use std::path::Path;
use std::process::Command;

use crate::common::Listening;
use crate::compiler::Compiled;
use crate::programs::printed;

/// A listener for pings of C programs, and its port.
fn listener() -> (Listening, String) {
    let listening = Listening::start("127.0.0.1", &["--provider", "software"]);
    let port = listening.address.rsplit(':').next().unwrap().to_owned();
    (listening, port)
}

/// Runs a C program that forks while one of its threads pings. Each child does `what`.
fn fork(what: &str) {
    let compiled = Compiled::new(&format!("fork-{what}"));
    let program = compiled.program("crates/cli/tests/c/fork.c");
    let (_listening, port) = listener();
    let text = printed(&program, &[what, "127.0.0.1", &port]);
    assert_eq!(text, "20 children, 0 badly; parent goes on\n");
}

#[test]
fn a_forked_child_is_refused_its_parents_objects_at_once_and_the_parent_continues() {
    fork("touch");
}

#[test]
fn a_forked_child_that_exits_does_not_affect_its_parent() {
    fork("exit");
}

#[test]
fn a_forked_child_has_its_own_devices_and_connections_beside_its_parents() {
    fork("own");
}

#[test]
fn so_has_a_child_of_a_child_and_one_that_another_thread_forked() {
    fork("again");
    fork("thread");
}

#[test]
fn a_forked_child_that_runs_a_program_has_its_own_connections_beside_its_parents() {
    fork("exec");
}

#[test]
fn a_process_may_end_in_every_way_while_its_threads_work() {
    let compiled = Compiled::new("leave");
    let program = compiled.program("crates/cli/tests/c/leave.c");
    let (_listening, port) = listener();
    for how in ["return", "exit", "thread", "main", "at_once"] {
        for _ in 0..3 {
            assert_eq!(printed(&program, &[how, "127.0.0.1", &port]), "", "{how}");
        }
    }
}

#[test]
fn a_plug_in_that_links_the_libraries_may_be_unloaded_while_their_threads_work() {
    let compiled = Compiled::new("unload");
    let plug_in = compiled.plug_in("crates/cli/tests/c/plugin.c");
    let program = compiled.plain_program("crates/cli/tests/c/unload.c");
    assert!(!is_linked_to_us(&program));
    let (_listening, port) = listener();
    let text = printed(&program, &[plug_in.to_str().unwrap(), "127.0.0.1", &port]);
    assert_eq!(text, "unloaded 4 times\n");
}

/// A program linked to our libraries would keep them loaded.
fn is_linked_to_us(program: &Path) -> bool {
    let output = Command::new("readelf")
        .arg("-d")
        .arg(program)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).contains("librdmacm")
}
