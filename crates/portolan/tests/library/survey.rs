//! The processes that share a UDP port, seen from outside.

use std::time::{Duration, Instant};

use portolan::Cause;
use portolan::provider::traits::Provider;
use portolan::software::StackConfig;
use portolan::software::survey::{Survey, survey};

use crate::harness::*;
use crate::process::Peer;

/// Time limit for the members' answers.
const TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn look(port: u16) -> portolan::Result<Option<Survey>> {
    let mut group = StackConfig::default().group;
    group.port = port;
    group.name_prefix = GROUP_PREFIX.into();
    survey(&group, TIMEOUT)
}

#[test]
fn a_survey_lists_all_processes_with_ports_connections_and_counters() {
    let port = free_port();
    let ours = start(port);
    let mut peer = Peer::start(port);
    let address = peer.listen();
    peer.tell("accept");
    let connection = connector_on(ours.clone()).connect_to(address).unwrap();
    assert_eq!(peer.answer(), "ok");
    let seen = look(port).unwrap().expect("a group");
    assert_eq!((seen.udp_port, seen.holder_pid), (port, std::process::id()));
    let [first, second] = &seen.members[..] else {
        panic!("{seen:?}")
    };
    assert_eq!((first.pid, second.pid), (std::process::id(), peer.pid()));
    let listening: Vec<_> = seen.ports.iter().filter(|port| port.listening).collect();
    let [listened] = listening[..] else {
        panic!("{:?}", seen.ports)
    };
    assert_eq!((listened.address, listened.block), (address, second.block));
    let (near, far) = (
        first.report.as_ref().unwrap(),
        second.report.as_ref().unwrap(),
    );
    let [ours] = &near.connections[..] else {
        panic!("{near:?}")
    };
    assert_eq!(ours.local, connection.local_addr());
    assert_eq!(ours.remote, Some(address));
    assert_eq!(ours.qpn, Some(connection.qp_num()));
    assert_eq!(ours.state, "established");
    assert!(
        far.connections
            .iter()
            .any(|c| c.remote == connection.local_addr())
    );
    assert!(near.counters["sent_packets"] > 0 && far.counters["received_packets"] > 0);
    assert!(!near.program.is_empty());
}

#[test]
fn a_survey_joins_no_group_and_an_unused_port_is_not_an_error() {
    let port = free_port();
    assert_eq!(look(port).unwrap(), None);
    let only = start(port);
    for _ in 0..20 {
        assert_eq!(look(port).unwrap().expect("a group").members.len(), 1);
    }
    drop(only);
    eventually("an end of the group", || look(port).unwrap().is_none());
}

#[test]
fn a_stopped_process_is_listed_as_not_answering_and_the_others_answer() {
    let port = free_port();
    let _ours = start(port);
    let (peer, other) = (Peer::start(port), Peer::start(port));
    let stopped = peer.stop();
    let started = Instant::now();
    let seen = look(port).unwrap().expect("a group");
    assert!(started.elapsed() < TIMEOUT + PATIENCE / 2);
    let answered = |pid: u32| {
        let member = seen.members.iter().find(|member| member.pid == pid);
        member.expect("a member").report.is_some()
    };
    assert!(!answered(peer.pid()));
    assert!(answered(other.pid()) && answered(std::process::id()));
    drop(stopped);
    let seen = look(port).unwrap().expect("a group");
    assert!(seen.members.iter().all(|member| member.report.is_some()));
}

#[test]
fn a_stopped_holder_of_the_port_is_named_to_waiting_callers_and_data_still_flow() {
    let port = free_port();
    let holder = Peer::start(port);
    let ours = start(port);
    let mut peer = Peer::start(port);
    let address = peer.listen();
    peer.tell("accept");
    let connection = connector_on(ours.clone()).connect_to(address).unwrap();
    assert_eq!(
        (peer.answer(), peer.ask("echo")),
        ("ok".into(), "ok".into())
    );
    let stopped = holder.stop();
    let is_named = |error: &portolan::Error| match error.cause {
        Cause::GroupSilent { pid, stopped, .. } => pid == holder.pid() && stopped,
        _ => false,
    };
    let error = look(port).unwrap_err();
    assert!(is_named(&error), "{error}");
    assert!(error.to_string().contains("it is stopped"), "{error}");
    let started = Instant::now();
    let provider: std::sync::Arc<dyn Provider> = ours;
    let hasty = connector_on(provider).timeout(Duration::from_secs(1));
    let error = hasty.connect_to(address).unwrap_err();
    assert!(is_named(&error), "{error}");
    assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
    let buffer = connection.buffer_from(b"still here").unwrap();
    connection.send(buffer).unwrap().wait().unwrap();
    assert_eq!(
        &connection.receive_within(PATIENCE).unwrap()[..],
        b"still here"
    );
    drop(stopped);
    assert!(look(port).unwrap().is_some());
}
