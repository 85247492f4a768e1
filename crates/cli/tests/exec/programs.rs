//! The C examples and a program from tutorials, built and run on the software devices.

use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::common::{Listening, output_of, stderr, stdout, wait};
use crate::compiler::{Compiled, exec};

fn example(compiled: &Compiled, name: &str) -> std::path::PathBuf {
    compiled.program(&format!("examples/c/{name}/{name}.c"))
}

/// The output of a program, which must succeed.
pub(crate) fn printed(program: &Path, arguments: &[&str]) -> String {
    let output = output_of(exec(program, arguments).spawn().unwrap());
    let (text, complaint) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{text}{complaint}");
    text
}

#[test]
fn the_example_of_rdma_getaddrinfo_connects_to_itself() {
    const PORT: &str = "7485";
    let compiled = Compiled::new("getaddrinfo");
    let program = example(&compiled, "rdma_getaddrinfo");
    let mut server = exec(&program, &["-l", PORT, "127.0.0.1"]).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "listening\n");
    let text = printed(&program, &["127.0.0.1", PORT]);
    assert!(text.contains("to [127.0.0.1]:7485 from"), "{text}");
    assert!(text.contains("answered: ahoy"), "{text}");
    lines.read_line(&mut line).unwrap();
    assert!(line.ends_with("heard: ahoy\n"), "{line}");
    assert!(wait(&mut server).success());
}

#[test]
fn the_example_of_rdma_get_cm_event_sees_a_connections_whole_life() {
    let compiled = Compiled::new("events");
    let program = example(&compiled, "rdma_get_cm_event");
    let text = printed(&program, &["127.0.0.1", "7486"]);
    for event in [
        "active: RDMA_CM_EVENT_ADDR_RESOLVED, status 0",
        "active: RDMA_CM_EVENT_ROUTE_RESOLVED, status 0",
        "passive: RDMA_CM_EVENT_CONNECT_REQUEST, status 0, \"ahoy\"",
        "active: RDMA_CM_EVENT_ESTABLISHED, status 0, \"aye\"",
        "passive: RDMA_CM_EVENT_ESTABLISHED, status 0",
        "active: RDMA_CM_EVENT_DISCONNECTED, status 0",
        "passive: RDMA_CM_EVENT_DISCONNECTED, status 0",
    ] {
        assert!(text.contains(event), "no {event}: {text}");
    }
}

#[test]
fn a_program_from_tutorials_connects_to_the_command() {
    let compiled = Compiled::new("tutorial");
    let program = compiled.program("crates/cli/tests/c/sample.c");
    let listening = Listening::start("127.0.0.1", &["--provider", "software"]);
    let port = listening.address.rsplit(':').next().unwrap().to_owned();
    assert_eq!(printed(&program, &["127.0.0.1", &port]), "connected\n");
}

#[test]
fn the_example_of_rdma_resolve_addrinfo_looks_up_a_name_without_waiting() {
    let compiled = Compiled::new("resolve");
    let program = example(&compiled, "rdma_resolve_addrinfo");
    let text = printed(&program, &["127.0.0.1", "7471"]);
    assert!(
        text.contains("event RDMA_CM_EVENT_ADDRINFO_RESOLVED, status 0"),
        "{text}"
    );
    assert!(text.contains("to [127.0.0.1]:7471"), "{text}");
}

#[test]
fn the_example_of_ibv_gid_reachable_reaches_the_loopback_address() {
    let compiled = Compiled::new("reachable");
    let program = example(&compiled, "ibv_gid_reachable");
    assert_eq!(
        printed(&program, &["127.0.0.1", "sw_lo"]),
        "sw_lo: reachable\n"
    );
}

#[test]
fn threads_can_be_cancelled_while_they_wait_and_after_every_other_call() {
    let compiled = Compiled::new("cancel");
    let program = compiled.program("crates/cli/tests/c/cancel.c");
    let expected = "ibv_get_async_event: cancelled\nibv_get_cq_event: cancelled\n\
                    rdma_get_cm_event: cancelled\ndata: done, cancelled\n\
                    names and ids: done, cancelled\n\
                    a queued event: done, cancelled\n200 who poll: cancelled\nclosed\n";
    assert_eq!(printed(&program, &[]), expected);
}
