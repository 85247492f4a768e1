//! A process offers its memory to a process that trusts its user only for the port. Only root can act as both users.
#![allow(unsafe_code, reason = "registering memory is unsafe by contract")]
#![allow(unreachable_pub, reason = "a test")]

#[path = "../io/harness.rs"]
#[allow(dead_code, reason = "shared with the tests that need no root")]
mod harness;

mod by_hand;
mod pulled;
mod refused;

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use portolan_port_sharing::Trust;
use portolan_provider::verbs::{RemoteAddr, SendOp};
use portolan_roce::io::StackConfig;
use portolan_wire::Qpn;

use by_hand::Member;
use harness::*;

const ALICE: u32 = 40_001;
/// Bytes of a table of rights, and the places of its keys (`crates/roce/src/io/net/shm`).
const KEYS_AT: usize = 4096 + 4096 * 16;
const TABLE_LEN: usize = KEYS_AT + 2048 * 64;
/// Numbers of a memory file: the first one, and the program's memory.
const FIRST_FILE: u32 = 0;
const PROGRAM: u32 = u32::MAX;
const RKEY: u32 = 0x1234_5678;
/// Queue pairs that connect one after another. The link comes up meanwhile, and the later ones use it.
const ENDS: usize = 20;
/// Longer than the progress thread needs to request the memory.
const MEANWHILE: Duration = Duration::from_millis(500);
/// All remote rights, as bits of the table.
const RIGHTS: u32 = 7;

/// Builds a table of rights that gives the queue pairs' peers every remote right to 1 GiB of memory.
fn table(qps: impl Iterator<Item = (Qpn, Qpn)>, tag: u32, memory: u32) -> Vec<u8> {
    let mut bytes = vec![0; TABLE_LEN];
    let mut put = |at: usize, word: &[u8]| bytes[at..][..word.len()].copy_from_slice(word);
    put(0, &1u32.to_ne_bytes());
    for (qpn, peer) in qps {
        let qp = 4096 + (qpn.value() as usize % 4096) * 16;
        let word = u64::from(RIGHTS) << 48 | u64::from(qpn.value()) << 24 | u64::from(peer.value());
        put(qp, &word.to_ne_bytes());
        put(qp + 8, &(u64::from(tag) << 32 | 1).to_ne_bytes());
    }
    let key = KEYS_AT + ((RKEY ^ RKEY >> 16) as usize % 2048) * 64;
    // Version, key, protection domain, rights, file.
    for (place, word) in [1, RKEY, 1, RIGHTS, memory].into_iter().enumerate() {
        put(key + place * 4, &word.to_ne_bytes());
    }
    // The length; the address stays 0.
    put(key + 32, &(1u64 << 30).to_ne_bytes());
    bytes
}

/// The tag of a connection's addresses: FNV-1a over both. It is the same at both ends, because the addresses are equal.
fn tag() -> u32 {
    let address = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    let bytes = address.iter().chain(&address);
    bytes.fold(0x811c_9dc5, |tag: u32, byte| {
        (tag ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// Switches this thread to a user. The kernel reports the thread's user to the peers of its connections.
fn become_user(uid: u32) {
    // SAFETY: changes only the ids of this thread. The C library's function would change those of all threads.
    let status = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
    assert_eq!(status, 0);
}

/// Whether root's process requests the memory that a process of this user offers. Otherwise it sends packets.
fn is_asked_for_memory(uid: u32) -> bool {
    let mut config: StackConfig = config();
    config.local_memory = true;
    config.group.trust = Trust::Users(vec![ALICE]);
    let stack = stack(&config);
    let ip = "127.0.0.1".parse().unwrap();
    let ends: Vec<End> = (0..ENDS).map(|_| End::new(&stack, ip, PATIENT)).collect();
    let owns: Vec<Qpn> = ends.iter().map(|end| end.qp.qpn()).collect();
    let (say, hear) = channel();
    std::thread::scope(|scope| {
        let offering = scope.spawn(|| {
            become_user(uid);
            let member = Member::join(&config.group);
            let first = member.first_qpn();
            say.send(first).unwrap();
            let theirs = (first..).map(Qpn::new).zip(owns.iter().copied());
            let called = member.accept(&table(theirs, tag(), FIRST_FILE));
            let is_trusted = uid == 0;
            assert_eq!(called.testimony() == [0; 24], !is_trusted);
            // Different threads send the request and the packets, so wait a while after the first packet.
            let mut packets_at = None;
            until_some("packets, or the question for memory", || {
                if let Some(message) = called.receive()
                    && message.starts_with(&[called.hello[0], 1])
                {
                    return Some(true);
                }
                if called.first_mark() > 0 {
                    let at: Instant = *packets_at.get_or_insert_with(Instant::now);
                    return (at.elapsed() > MEANWHILE).then_some(false);
                }
                None
            })
        });
        let first = hear.recv().unwrap();
        let remote = RemoteAddr {
            addr: 64,
            rkey: RKEY,
        };
        // The first queue pair requests the link. Those that connect once it is up use it.
        for (end, number) in ends.iter().zip(first..) {
            end.connect(ip, Qpn::new(number), PATIENT);
            end.post(1, SendOp::RdmaWrite(remote), end.sge(0, 8));
            let _ = end.try_poll();
            std::thread::sleep(MEANWHILE / 4);
        }
        offering.join().unwrap()
    })
}

/// Retries until `look` returns a value.
fn until_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn memory_that_a_user_offers_who_is_trusted_for_the_port_alone_is_not_taken() {
    assert!(is_asked_for_memory(0), "the same user's is");
    assert!(!is_asked_for_memory(ALICE));
}

/// Places for the rings of other processes.
const PLACES: usize = 256;

#[test]
fn the_rings_of_a_user_who_is_trusted_for_the_port_alone_leave_places_for_others() {
    let mut config: StackConfig = config();
    config.local_memory = true;
    config.group.trust = Trust::Users(vec![ALICE]);
    let stack = stack(&config);
    std::thread::scope(|scope| {
        let rings = scope.spawn(|| {
            become_user(ALICE);
            let member = Member::join(&config.group);
            let call = |_| member.call(stack.block(), member.block());
            let rings: Vec<_> = (0..PLACES).map_while(call).collect();
            (member, rings)
        });
        let rings = rings.join().unwrap();
        assert!(!rings.1.is_empty());
        let member = Member::join(&config.group);
        assert!(member.call(stack.block(), member.block()).is_some());
    });
}
