//! Strangers that use the group's name.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use portolan_port_sharing::{GroupConfig, observe};
use portolan_provider::Cause;
use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    connect, listen, recv, send, socket_with,
};

use super::harness::*;
use super::process::Process;

/// The protocol version of this program.
const VERSION: u8 = 4;
/// A newcomer's first message.
pub(crate) const HELLO: [u8; 7] = [1, b'P', b'R', b'T', b'L', VERSION, 0];
/// An observer's first message.
pub(crate) const OBSERVE: [u8; 6] = [12, b'P', b'R', b'T', b'L', VERSION];

fn name(config: &GroupConfig) -> SocketAddrUnix {
    let name = format!("{}/{}", config.name_prefix, config.port);
    SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()
}

fn seqpacket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// A connection of a process that need not be a member.
pub(crate) fn call(config: &GroupConfig) -> OwnedFd {
    let socket = seqpacket();
    eventually("a connection", || connect(&socket, &name(config)).is_ok());
    socket
}

fn is_well(coordinator: &Member, config: &GroupConfig) {
    let member = Member::join(config).expect("the coordinator still admits members");
    assert_eq!(member.ask("echo well"), "well");
    assert_eq!(coordinator.ask("echo well"), "well");
}

#[test]
fn garbage_closes_its_own_connection_and_nothing_else() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let hello = [1u8, b'P', b'R', b'T', b'L', VERSION, 0];
    let mut garbage: Vec<Vec<u8>> = vec![
        vec![0],
        vec![255; 9000],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        hello[..4].to_vec(),
        [&hello[..], b"and more"].concat(),
        // Messages that only a member may send, and messages that only a coordinator may send.
        vec![5, 0, 0, 0, 0, 0, 0, 0, 1, b'x'],
        vec![6, b'x'],
        vec![7],
        vec![2, 3],
        vec![10, 1, 4, 127, 0, 0, 1],
        [&[11][..], &[0xff; 16]].concat(),
        vec![14, 0, 0, 0, 0, 0, 0, 0, 1],
        vec![15, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1],
    ];
    for kind in 0..=255u8 {
        garbage.push(vec![kind; 40]);
    }
    let said = garbage.len() as u64;
    for bytes in garbage {
        let connection = call(&config);
        send(&connection, &bytes, SendFlags::empty()).unwrap();
        assert!(
            readable(&connection, PATIENCE),
            "the coordinator must close the connection: {bytes:?}"
        );
    }
    eventually("counting", || {
        coordinator.group.status().counters.violations == said
    });
    is_well(&coordinator, &config);
}

#[test]
fn a_member_that_breaks_the_protocol_loses_its_place_and_no_other_does() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let member = Member::join(&config).unwrap();
    let connection = call(&config);
    send(
        &connection,
        &[1, b'P', b'R', b'T', b'L', VERSION, 0],
        SendFlags::empty(),
    )
    .unwrap();
    eventually("a third member", || {
        coordinator.group.status().members.len() == 3
    });
    // A second hello.
    send(
        &connection,
        &[1, b'P', b'R', b'T', b'L', VERSION, 0],
        SendFlags::empty(),
    )
    .unwrap();
    eventually("its end", || coordinator.group.status().members.len() == 2);
    assert_eq!(member.ask("echo here"), "here");
    is_well(&coordinator, &config);
}

#[test]
fn no_process_returns_with_another_processes_block() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let member = Member::join(&config).unwrap();
    // An unused block, the coordinator's, the member's.
    for block in [
        99,
        coordinator.group.block().index(),
        member.group.block().index(),
    ] {
        let connection = call(&config);
        send(
            &connection,
            &[1, b'P', b'R', b'T', b'L', VERSION, block],
            SendFlags::empty(),
        )
        .unwrap();
        assert!(readable(&connection, PATIENCE));
        let mut answer = [0; 16];
        let (bytes, _) = recv(&connection, &mut answer, RecvFlags::empty()).unwrap();
        assert!(
            bytes > 0 && answer[0] != 2,
            "no welcome: {:?}",
            &answer[..bytes]
        );
    }
    assert_eq!(coordinator.group.status().members.len(), 2);
    assert_eq!(member.ask("echo here"), "here");
}

#[test]
fn silent_connections_are_closed_and_do_not_keep_members_out() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let silent: Vec<_> = (0..200).map(|_| call(&config)).collect();
    let joined = Instant::now();
    is_well(&coordinator, &config);
    assert!(
        joined.elapsed() < Duration::from_secs(5),
        "{:?}",
        joined.elapsed()
    );
    for connection in &silent {
        assert!(
            readable(connection, PATIENCE),
            "the coordinator must close the connection"
        );
    }
    let counters = coordinator.group.status().counters;
    assert!(
        counters.hello_timeouts + counters.refused >= 200,
        "{counters:?}"
    );
}

#[test]
fn a_member_that_reads_nothing_does_not_stop_the_coordinator() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    // It is welcomed and then stays silent.
    let deaf = call(&config);
    send(
        &deaf,
        &[1, b'P', b'R', b'T', b'L', VERSION, 0],
        SendFlags::empty(),
    )
    .unwrap();
    eventually("a second member", || {
        coordinator.group.status().members.len() == 2
    });
    let blocks: Vec<_> = coordinator
        .group
        .status()
        .members
        .iter()
        .map(|m| m.block)
        .collect();
    let block = *blocks
        .iter()
        .find(|b| **b != coordinator.group.block())
        .unwrap();
    let [target, _] = loopbacks(config.port);
    let sender = sender_to(target);
    eventually("a full connection", || {
        for _ in 0..100 {
            sender.send(&packet(1, &[block.index(), 1])).unwrap();
        }
        coordinator.group.status().counters.queue_full > 0
    });
    // It also sends many requests and reads no answer.
    let ask = [&[5, 0, 0, 0, 0, 0, 0, 0, 1][..], b"echo ", &[b'x'; 1000]].concat();
    for _ in 0..10_000 {
        if send(&deaf, &ask, SendFlags::empty()).is_err() {
            break;
        }
    }
    is_well(&coordinator, &config);
}

#[test]
fn a_process_of_another_version_learns_this_version() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let connection = call(&config);
    send(
        &connection,
        &[1, b'P', b'R', b'T', b'L', VERSION - 1, 0],
        SendFlags::empty(),
    )
    .unwrap();
    assert!(readable(&connection, PATIENCE));
    let mut answer = [0; 16];
    let (bytes, _) = recv(&connection, &mut answer, RecvFlags::empty()).unwrap();
    assert_eq!(
        answer[..bytes],
        [3, 2, 0, 0, 0, VERSION],
        "refused because of its version; the answer names this version"
    );
    is_well(&coordinator, &config);
}

#[test]
fn a_process_that_finds_a_group_of_another_version_reports_both_versions() {
    let config = config();
    let coordinator = seqpacket();
    bind(&coordinator, &name(&config)).unwrap();
    listen(&coordinator, 8).unwrap();
    std::thread::scope(|scope| {
        // Answers like a coordinator of the previous version.
        let answering = scope.spawn(|| {
            for _ in 0..2 {
                assert!(readable(&coordinator, PATIENCE), "somebody calls");
                let caller = accept(&coordinator).unwrap();
                assert!(readable(&caller, PATIENCE), "the caller sends a message");
                let mut hello = [0; 16];
                let (bytes, _) = recv(&caller, &mut hello, RecvFlags::empty()).unwrap();
                assert_eq!((&hello[1..5], hello[5]), (&b"PRTL"[..], VERSION), "{bytes}");
                let refusal = [3, 2, 0, 0, 0, VERSION - 1];
                send(&caller, &refusal, SendFlags::empty()).unwrap();
            }
        });
        let joined = Member::join(&config).map(|_| ());
        let looked = observe(&config, PATIENCE).map(|_| ());
        answering.join().unwrap();
        for outcome in [joined, looked] {
            let error = outcome.expect_err("no member of such a group");
            assert!(matches!(error.cause, Cause::GroupRefused(_)), "{error}");
            let text = error.to_string();
            let before = VERSION - 1;
            for part in [
                format!("use version {before}"),
                format!("this process uses version {VERSION}"),
            ] {
                assert!(text.contains(&part), "{text}");
            }
        }
    });
}

#[test]
fn a_name_that_a_silent_process_holds_is_explained() {
    let config = GroupConfig {
        join_timeout: Duration::from_millis(300),
        ..config()
    };
    let squatter = seqpacket();
    bind(&squatter, &name(&config)).unwrap();
    listen(&squatter, 8).unwrap();
    let error = Member::join(&config).expect_err("nobody answers");
    let who = std::process::id();
    assert!(
        matches!(error.cause, Cause::GroupSilent { pid, stopped: false, .. } if pid == who),
        "{error}"
    );
}

#[test]
fn a_name_that_a_process_of_the_same_user_holds_without_listening_is_explained() {
    let config = GroupConfig {
        join_timeout: Duration::from_millis(300),
        ..config()
    };
    let squatter = seqpacket();
    bind(&squatter, &name(&config)).unwrap();
    let who = format!("process {} (", std::process::id());
    let joined = Member::join(&config).map(|_| ());
    let looked = observe(&config, Duration::from_millis(300)).map(|_| ());
    for outcome in [joined, looked] {
        let text = outcome.expect_err("nobody leads").to_string();
        assert!(
            text.contains(&who) && text.contains("holds their name"),
            "{text}"
        );
    }
}

#[test]
fn settings_that_cannot_work_are_refused() {
    for broken in [
        GroupConfig {
            port: 0,
            ..config()
        },
        GroupConfig {
            name_prefix: String::new(),
            ..config()
        },
        GroupConfig {
            name_prefix: "x".repeat(81),
            ..config()
        },
        GroupConfig {
            receive_buffer_bytes: usize::MAX,
            ..config()
        },
    ] {
        let error = Member::join(&broken).expect_err("refused");
        assert!(
            matches!(error.cause, Cause::InvalidArgument { .. }),
            "{error}"
        );
    }
}

#[test]
fn a_member_that_reports_for_another_block_loses_its_place() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let member = Member::join(&config).unwrap();
    let connection = call(&config);
    let hello = [1, b'P', b'R', b'T', b'L', VERSION, 0];
    send(&connection, &hello, SendFlags::empty()).unwrap();
    eventually("a third member", || {
        coordinator.group.status().members.len() == 3
    });
    // A report in the name of another member's block.
    let mut report = vec![15, 0, 0, 0, 0, 0, 0, 0, 1];
    report.extend([member.group.block().index(), 1]);
    send(&connection, &report, SendFlags::empty()).unwrap();
    eventually("its end", || coordinator.group.status().members.len() == 2);
    assert_eq!(coordinator.group.status().counters.violations, 1);
    assert_eq!(member.ask("echo here"), "here");
    is_well(&coordinator, &config);
}

#[test]
fn an_observer_gets_the_list_of_members_and_nothing_else() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let member = Member::join(&config).unwrap();
    let seen = observe(&config, PATIENCE).unwrap().expect("a group");
    let mut blocks: Vec<_> = seen.members.iter().map(|member| member.block).collect();
    blocks.sort();
    assert_eq!(blocks, [coordinator.group.block(), member.group.block()]);
    assert_eq!(seen.coordinator_pid, std::process::id());
    let report = |block| seen.reports[&block].concat();
    assert_eq!(report(coordinator.group.block()), b"a member");
    assert_eq!(report(member.group.block()), b"a member");
    assert_eq!(seen.coordinator_report.concat(), b"the coordinator");
    // An observer that sends a request is disconnected, and has not taken a block.
    let connection = call(&config);
    let observe = [12, b'P', b'R', b'T', b'L', VERSION];
    send(&connection, &observe, SendFlags::empty()).unwrap();
    let request = [5, 0, 0, 0, 0, 0, 0, 0, 1, b'x'];
    send(&connection, &request, SendFlags::empty()).unwrap();
    eventually("its end", || {
        coordinator.group.status().counters.violations == 1
    });
    assert_eq!(coordinator.group.status().members.len(), 2);
    is_well(&coordinator, &config);
}

#[test]
fn observers_wait_for_their_turn_while_others_wait_for_a_member_that_does_not_answer() {
    let config = config();
    let _coordinator = Member::join(&config).unwrap();
    let silent = Process::spawn(config.port);
    silent.stop();
    // The coordinator serves eight of them at once.
    let seen = std::thread::scope(|scope| {
        let look = || observe(&config, Duration::from_secs(2));
        let observers: Vec<_> = (0..12).map(|_| scope.spawn(look)).collect();
        let seen = observers
            .into_iter()
            .map(|observer| observer.join().unwrap());
        seen.collect::<Vec<_>>()
    });
    for seen in seen {
        let seen = seen.unwrap().expect("a group");
        assert_eq!((seen.members.len(), seen.reports.len()), (2, 1));
    }
}

#[test]
fn a_member_whose_service_panics_stays_in_the_group() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let member = Member::join(&config).unwrap();
    let gone = Member::join(&config).unwrap();
    let dead = gone.group.block();
    member.claims.panics.store(true, Ordering::Relaxed);
    let look = || observe(&config, PATIENCE).unwrap().expect("a group");
    let _ = look();
    drop(gone);
    eventually("the announcement of the death", || {
        coordinator.claims.dead.lock().unwrap().contains(&dead)
    });
    member.claims.panics.store(false, Ordering::Relaxed);
    eventually("a report", || {
        look().reports.contains_key(&member.group.block())
    });
    assert_eq!(member.ask("echo here"), "here");
    drop(coordinator);
    eventually("another coordinator", || member.is_coordinator());
    is_well(&member, &config);
}
