//! The C examples, both ends, under valgrind (package valgrind): no invalid access and no leak. Objects that
//! the process keeps until its end (the device with its thread and memory) are reachable then.

#[path = "common/mod.rs"]
mod common;
#[path = "exec/compiler.rs"]
mod compiler;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{output_of, stderr, stdout, wait};
use compiler::{Compiled, exec};

/// Niceness of the programs under valgrind, which take about thirty times longer. The time limits of the
/// library and of the examples do not allow for more.
const PRECEDENCE: &str = "-19";
const SUPPRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/valgrind.supp");

/// Held by a test while its programs run. They share the UDP port, and under valgrind, on a busy machine, a process may
/// not answer another in time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn example(compiled: &Compiled, name: &str) -> PathBuf {
    compiled.program(&format!("examples/c/{name}/{name}.c"))
}

/// An example on our libraries under valgrind. It fails if valgrind reports an error.
fn watched(program: &Path, arguments: &[&str]) -> Command {
    let suppressions = format!("--suppressions={SUPPRESSIONS}");
    let valgrind = [
        "-n",
        PRECEDENCE,
        "valgrind",
        "--quiet",
        // Otherwise a thread that polls can keep all others from running.
        "--fair-sched=try",
        "--leak-check=full",
        "--show-leak-kinds=definite,indirect",
        "--errors-for-leak-kinds=definite,indirect",
        "--error-exitcode=9",
        &suppressions,
        program.to_str().unwrap(),
    ];
    exec(Path::new("nice"), &[&valgrind[..], arguments].concat())
}

/// The output of an example, which must succeed.
fn printed(program: &Path, arguments: &[&str]) -> String {
    let output = output_of(watched(program, arguments).spawn().unwrap());
    let (text, complaint) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{text}{complaint}");
    text
}

#[test]
fn valgrind_finds_invalid_accesses_and_leaks() {
    let _alone = alone();
    let compiled = Compiled::new("valgrind-faults");
    let program = compiled.plain_program("crates/cli/tests/c/faults.c");
    for (fault, finding) in [("invalid", "Invalid read"), ("lost", "definitely lost")] {
        let output = output_of(watched(&program, &[fault]).spawn().unwrap());
        let complaint = stderr(&output);
        assert_eq!(output.status.code(), Some(9), "{complaint}");
        assert!(complaint.contains(finding), "{complaint}");
    }
    assert_eq!(printed(&program, &["none"]), "");
}

#[test]
fn both_ends_of_the_example_of_rdma_getaddrinfo_are_clean() {
    let _alone = alone();
    const PORT: &str = "7495";
    let compiled = Compiled::new("valgrind-getaddrinfo");
    let program = example(&compiled, "rdma_getaddrinfo");
    let listen = ["-l", PORT, "127.0.0.1"];
    let mut server = watched(&program, &listen).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap());
    let mut text = String::new();
    lines.read_line(&mut text).unwrap();
    if text != "listening\n" {
        let output = output_of(server);
        panic!("{text}{}", stderr(&output));
    }
    let told = printed(&program, &["127.0.0.1", PORT]);
    assert!(told.contains("answered: ahoy"), "{told}");
    lines.read_to_string(&mut text).unwrap();
    assert!(text.ends_with("heard: ahoy\n"), "{text}");
    let status = wait(&mut server);
    let mut complaint = String::new();
    let mut stderr = server.stderr.take().unwrap();
    stderr.read_to_string(&mut complaint).unwrap();
    assert!(status.success(), "{complaint}");
}

#[test]
fn the_example_of_rdma_get_cm_event_that_plays_both_ends_is_clean() {
    let _alone = alone();
    let compiled = Compiled::new("valgrind-events");
    let program = example(&compiled, "rdma_get_cm_event");
    let text = printed(&program, &["127.0.0.1", "7496"]);
    let last = "passive: RDMA_CM_EVENT_DISCONNECTED, status 0";
    assert!(text.contains(last), "{text}");
}

#[test]
fn the_example_of_rdma_resolve_addrinfo_is_clean() {
    let _alone = alone();
    let compiled = Compiled::new("valgrind-resolve");
    let program = example(&compiled, "rdma_resolve_addrinfo");
    let text = printed(&program, &["127.0.0.1", "7471"]);
    assert!(text.contains("to [127.0.0.1]:7471"), "{text}");
}

#[test]
fn the_example_of_ibv_gid_reachable_is_clean() {
    let _alone = alone();
    let compiled = Compiled::new("valgrind-reachable");
    let program = example(&compiled, "ibv_gid_reachable");
    let text = printed(&program, &["127.0.0.1", "sw_lo"]);
    assert_eq!(text, "sw_lo: reachable\n");
}
