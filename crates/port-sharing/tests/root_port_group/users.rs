//! Untrusted users.
#![allow(unsafe_code, reason = "a thread of another user")]

use std::time::{Duration, Instant};

use portolan_port_sharing::{Block, GroupConfig, Trust, observe};
use portolan_provider::Cause;
use rustix::io::Errno;
use rustix::net::connect;

use super::harness::*;
use super::process::Process;
use super::squat::{STRANGER, as_user, name, named, seqpacket, take_name};

#[test]
fn processes_of_several_users_share_the_port_only_if_both_trust_each_other() {
    const ALICE: u32 = 40_001;
    const BOB: u32 = 40_002;
    let port = config().port;
    let mut alice = Process::start_as(port, ALICE, Some(BOB)).joined();
    assert!(alice.is_coordinator());
    let mut second = Process::start_as(port, ALICE, Some(BOB)).joined();
    let bob = Process::start_as(port, BOB, None).refused();
    assert!(
        bob.contains(&format!("not trusted by user {BOB}"))
            && bob.contains(&format!("set PORTOLAN_TRUST={ALICE}")),
        "{bob}"
    );
    let mut bob = Process::start_as(port, BOB, Some(ALICE)).joined();
    assert_eq!(bob.ask("ask echo let in"), "let in");
    let carol = Process::start_as(port, 40_003, Some(ALICE)).refused();
    assert!(
        carol.contains("does not trust user 40003; start it with PORTOLAN_TRUST=40003"),
        "{carol}"
    );
    alice.kill();
    assert_eq!(second.ask("ask echo still here"), "still here");
    assert_eq!(bob.ask("ask echo me too"), "me too");
    assert_eq!(
        second.is_coordinator(),
        !bob.is_coordinator(),
        "one of them leads"
    );
}

#[test]
fn a_member_that_distrusts_the_new_coordinator_keeps_its_packets_and_reports_why() {
    const ALICE: u32 = 40_001;
    const BOB: u32 = 40_002;
    let config = config();
    let mut alice = Process::start_as(config.port, ALICE, Some(BOB)).joined();
    let mut bob = Process::start_as(config.port, BOB, Some(ALICE)).joined();
    // Root joins Alice's group; it trusts her but not Bob.
    let trust = Trust::Users(vec![ALICE]);
    let root = Member::join(&GroupConfig {
        trust,
        ..config.clone()
    })
    .unwrap();
    // Stopped, so that Bob becomes the coordinator.
    let root_block = root.group.block();
    let group = std::sync::Arc::clone(&root.group);
    drop(root);
    alice.kill();
    assert_eq!(bob.ask("ask echo mine"), "mine");
    assert!(bob.is_coordinator());
    let error = group
        .request(b"echo", Duration::from_millis(300))
        .unwrap_err();
    let Cause::GroupNotTrusted { holder, .. } = &error.cause else {
        panic!("{error}")
    };
    assert_eq!(holder.uid, Some(BOB), "{error}");
    let [target, _] = loopbacks(config.port);
    sender_to(target)
        .send(&packet(root_block.first_qpn(), b"data"))
        .unwrap();
    assert!(readable(&group.sockets()[0], PATIENCE));
}

/// Becomes a user, in this thread alone: what the kernel tells of its connections follows the thread.
fn become_user(uid: u32) {
    // SAFETY: the thread's own ids; the C library, which would change those of all threads, is passed by.
    let status = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
    assert_eq!(status, 0);
}

#[test]
fn a_user_who_is_trusted_for_the_port_is_not_trusted_with_memory_but_root_is() {
    const ALICE: u32 = 40_001;
    let config = config();
    let trust = Trust::Users(vec![ALICE]);
    let root = Member::join(&GroupConfig {
        trust,
        ..config.clone()
    })
    .unwrap();
    let root_links = root.group.link_members().unwrap();
    let block = root.group.block();
    std::thread::scope(|scope| {
        let alice = scope.spawn(|| {
            become_user(ALICE);
            let alice = Member::join(&config).unwrap();
            let links = alice.group.link_members().unwrap();
            let link = links.call(block).unwrap().expect("root listens");
            assert!(link.is_trusted_with_memory(), "root reads it anyway");
            let second = Member::join(&config).unwrap();
            let same_user = second.group.link_members().unwrap();
            let link = same_user.call(alice.group.block()).unwrap();
            assert!(link.expect("it listens").is_trusted_with_memory());
        });
        alice.join().unwrap();
    });
    let link = root_links.accept().unwrap().expect("she called");
    assert!(!link.is_trusted_with_memory());
}

#[test]
fn links_are_not_accepted_on_the_socket_of_a_block_of_which_the_coordinator_may_keep_a_copy() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let member = Member::join(&config).unwrap();
    let caller = coordinator.group.link_members().unwrap();
    let called = member.group.link_members().unwrap();
    let block = member.group.block();
    let of_block = named(&format!("{}/{block}", name(&config)));
    assert_eq!(connect(seqpacket(), &of_block), Err(Errno::CONNREFUSED));
    let link = caller.call(block).unwrap().expect("it listens");
    assert!(called.accept().unwrap().is_some());
    drop(link);
}

#[test]
fn a_member_whose_name_for_links_a_stranger_holds_has_none_and_stays_in_the_group() {
    let config = config();
    let member = Member::join(&config).unwrap();
    let links = format!("{}/{}/links", name(&config), member.group.block());
    let squat = as_user(STRANGER, || take_name(&links));
    let error = member.group.link_members().unwrap_err();
    assert_eq!(error.errno(), libc::EADDRINUSE, "{error}");
    assert_eq!(member.ask("echo here"), "here");
    drop(squat);
    // A child of another test may still hold the name for a moment.
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = member.group.link_members() {
        assert!(Instant::now() < deadline, "{error}");
    }
}

#[test]
fn a_coordinator_in_another_pid_namespace_is_listed_with_the_number_that_observers_see() {
    let config = config();
    let coordinator = Process::start_in_pid_namespace(config.port).joined();
    let other = Process::spawn(config.port);
    let seen = observe(&config, PATIENCE).unwrap().expect("a group");
    let block = seen.coordinator_block.map(Block::index);
    assert_eq!(block, Some(coordinator.block));
    let pid_of = |block| {
        let mut members = seen.members.iter();
        members
            .find(|member| member.block.index() == block)
            .unwrap()
            .pid
    };
    assert!(seen.coordinator_pid > 1);
    assert_eq!(pid_of(coordinator.block), seen.coordinator_pid);
    // The coordinator does not see it.
    assert_eq!(pid_of(other.block), 0);
}
