//! Strangers that hold what a group needs: its names, its places, its port. None may block a process for long
//! without being named, and none gets any packets.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_port_sharing::{Block, GroupConfig, PortGroup, observe, places_taken};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::{Signal, Uid};
use rustix::thread::set_thread_res_uid;

use super::harness::*;
use super::process::Process;

pub(crate) const STRANGER: u32 = 40_009;
/// Well below the five seconds that a process waits for a slow group, even on a slow machine.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(3);

/// Runs `make` on a thread of that user.
pub(crate) fn as_user<T: Send>(user: u32, make: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let uid = Uid::from_raw(user);
            // Affects only this thread, which ends here.
            set_thread_res_uid(uid, uid, uid).unwrap();
            make()
        });
        thread.join().unwrap()
    })
}

pub(crate) fn seqpacket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

pub(crate) fn named(name: &str) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()
}

pub(crate) fn name(config: &GroupConfig) -> String {
    format!("{}/{}", config.name_prefix, config.port)
}

/// Binds a name. A name just released stays in use while a child of another test has not executed its program
/// and still has its parent's descriptors.
pub(crate) fn take_name(name: &str) -> OwnedFd {
    let socket = seqpacket();
    let deadline = Instant::now() + PATIENCE;
    while let Err(errno) = bind(&socket, &named(name)) {
        let in_use = errno == Errno::ADDRINUSE && Instant::now() < deadline;
        assert!(in_use, "{name}: {errno}");
        std::thread::yield_now();
    }
    socket
}

/// Settings of a program whose users do not wait for twenty seconds.
pub(crate) fn hasty() -> GroupConfig {
    GroupConfig {
        join_timeout: GroupConfig::default().join_timeout,
        ..config()
    }
}

/// The error that a joining process gets, which must be in time.
fn refusal(config: &GroupConfig) -> String {
    let started = Instant::now();
    let error = Member::join(config)
        .map(|_| ())
        .expect_err("a stranger blocks the group");
    let (text, took) = (error.to_string(), started.elapsed());
    assert!(took < AT_ONCE, "{took:?}: {text}");
    text
}

fn assert_names_stranger(text: &str) {
    assert!(text.contains(&format!("user {STRANGER}")), "{text}");
}

#[test]
fn a_stranger_who_holds_the_name_and_does_not_listen_is_named_at_once() {
    let config = hasty();
    let squat = as_user(STRANGER, || take_name(&name(&config)));
    let text = refusal(&config);
    assert_names_stranger(&text);
    // Root can see who owns the descriptor.
    let pid = std::process::id();
    assert!(text.contains(&format!("process {pid} (")), "{text}");
    let looked = observe(&config, AT_ONCE).expect_err("the name is held");
    assert_names_stranger(&looked.to_string());
    drop(squat);
    assert_eq!(observe(&config, AT_ONCE).unwrap(), None);
    Member::join(&config).expect("the name is free again");
}

#[test]
fn a_stranger_who_listens_and_admits_nobody_is_named_at_once() {
    let config = hasty();
    let squat = as_user(STRANGER, || {
        let squat = take_name(&name(&config));
        listen(&squat, 0).unwrap();
        squat
    });
    assert_names_stranger(&refusal(&config));
    let looked = observe(&config, Duration::from_millis(300)).expect_err("nobody answers");
    assert_names_stranger(&looked.to_string());
    drop(squat);
}

#[test]
fn a_stranger_whose_queue_is_full_is_named_at_once() {
    let config = hasty();
    let squat = as_user(STRANGER, || {
        let squat = take_name(&name(&config));
        listen(&squat, 0).unwrap();
        squat
    });
    let mut callers = Vec::new();
    loop {
        let caller = seqpacket();
        if connect(&caller, &named(&name(&config))).is_err() {
            break;
        }
        callers.push(caller);
    }
    assert_names_stranger(&refusal(&config));
    let looked = observe(&config, Duration::from_millis(300)).expect_err("nobody answers");
    assert_names_stranger(&looked.to_string());
    drop(squat);
}

#[test]
fn a_stranger_who_holds_all_places_is_named_to_the_founder_and_to_newcomers() {
    let config = hasty();
    let places = |range: std::ops::Range<usize>| {
        as_user(STRANGER, || {
            let blocks: Vec<Block> = Block::members().collect();
            let take = |block: &Block| take_name(&format!("{}/{block}", name(&config)));
            blocks[range].iter().map(take).collect::<Vec<_>>()
        })
    };
    let all = places(0..127);
    let text = refusal(&config);
    assert_names_stranger(&text);
    assert!(text.contains("127 of the 127 places"), "{text}");
    assert_names_stranger(&places_taken(&config).unwrap().to_string());
    drop(all);
    let most = places(1..127);
    assert_eq!(places_taken(&config), None);
    let member = Member::join(&config).expect("a place is left");
    assert_names_stranger(&places_taken(&config).unwrap().to_string());
    let text = refusal(&config);
    assert_names_stranger(&text);
    assert!(text.contains("126 of the 127 places"), "{text}");
    drop(most);
    Member::join(&config).expect("the places are free again");
    assert_eq!(member.ask("echo here"), "here");
}

#[test]
fn a_stranger_who_takes_the_name_of_a_dead_coordinator_is_named_to_the_members() {
    let config = hasty();
    let mut coordinator = Process::spawn(config.port);
    let member = Member::join(&config).unwrap();
    // Stopped, so that it does not become the coordinator.
    let group: Arc<PortGroup> = Arc::clone(&member.group);
    drop(member);
    coordinator.kill();
    let squat = as_user(STRANGER, || take_name(&name(&config)));
    let error = group
        .request(b"echo", Duration::from_millis(300))
        .expect_err("nobody leads");
    assert_names_stranger(&error.to_string());
    drop(squat);
    assert_eq!(group.request(b"echo back", PATIENCE).unwrap(), b"back");
}

#[test]
fn a_stranger_who_takes_the_name_of_a_dead_member_does_not_pass_for_it() {
    let config = hasty();
    let coordinator = Process::spawn(config.port);
    let member = Member::join(&config).unwrap();
    let mut victim = Process::spawn(config.port);
    // The answer shows that the coordinator has closed its copy of the victim's name.
    assert_eq!(member.ask("echo admitted"), "admitted");
    // Stopped, so that the stranger is first.
    coordinator.stop();
    victim.kill();
    let squat = as_user(STRANGER, || {
        take_name(&format!("{}/{}", name(&config), victim.block))
    });
    coordinator.signal(Signal::CONT);
    let deadline = Instant::now() + AT_ONCE;
    while !member.knows_dead(victim.block) {
        assert!(Instant::now() < deadline, "a stranger has the name");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Another process gets another place.
    let newcomer = Process::spawn(config.port);
    assert_ne!(newcomer.block, victim.block);
    drop(squat);
}

/// To see who holds a name takes a look at all sockets of the host. A forged datagram costs its sender nothing.
#[test]
fn forged_datagrams_for_a_place_that_a_stranger_holds_do_not_occupy_the_coordinator() {
    const FORGED: usize = 10_000;
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let member = Member::join(&config).unwrap();
    let squat: Vec<_> = as_user(STRANGER, || {
        let other = |number| take_name(&format!("{}/no/{number}", name(&config)));
        let place = take_name(&format!("{}/77", name(&config)));
        (0..1000).map(other).chain([place]).collect()
    });
    let sender = sender_to(loopbacks(config.port)[0]);
    let forged = packet(1, &[77, 0]);
    let started = Instant::now();
    for sent in 1..=FORGED {
        sender.send(&forged).unwrap();
        // What the coordinator's queues hold.
        if sent % 500 == 0 {
            assert_eq!(member.ask("echo here"), "here");
            eventually("delivery", || coordinator.delivered().len() == sent);
        }
    }
    let took = started.elapsed();
    assert!(took < AT_ONCE, "{took:?}");
    drop(squat);
}

#[test]
fn a_stranger_who_holds_the_port_is_named() {
    let config = hasty();
    let squat = as_user(STRANGER, || {
        UdpSocket::bind(("0.0.0.0", config.port)).unwrap()
    });
    let text = refusal(&config);
    assert_names_stranger(&text);
    let pid = std::process::id();
    assert!(text.contains(&format!("process {pid} (")), "{text}");
    drop(squat);
    // A stranger's places do not count as living members of a group.
    let squat = as_user(STRANGER, || {
        let place = take_name(&format!("{}/1", name(&config)));
        (place, UdpSocket::bind(("::", config.port)).unwrap())
    });
    assert_names_stranger(&refusal(&config));
    drop(squat);
}
