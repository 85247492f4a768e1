//! A process offers its memory to a process that trusts its user only for the port. Only root can act as both users.
#![allow(unsafe_code, reason = "registering memory is unsafe by contract")]
#![allow(unreachable_pub, reason = "a test")]

#[path = "../io/harness.rs"]
#[allow(dead_code, reason = "shared with the tests that need no root")]
mod harness;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use portolan_port_sharing::{LinkMessage, PortGroup, PrivateFd, Trust};
use portolan_provider::verbs::{RemoteAddr, SendOp};
use portolan_roce::io::StackConfig;
use portolan_wire::Qpn;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use harness::*;

const ALICE: u32 = 40_001;
/// Bytes of a head page, and of a table of rights (`crates/roce/src/io/net/shm`).
const HEAD_PAGE_LEN: usize = 20_480;
const KEYS_AT: usize = 4096 + 4096 * 16;
const TABLE_LEN: usize = KEYS_AT + 2048 * 64;
const RKEY: u32 = 0x1234_5678;
/// Queue pairs that connect one after another. The link comes up meanwhile, and the later ones use it.
const ENDS: usize = 20;
/// Longer than the progress thread needs to request the memory.
const MEANWHILE: Duration = Duration::from_millis(500);
/// All remote rights, as bits of the table.
const RIGHTS: u32 = 7;

/// Creates a memory file that is sealed against shrinking.
fn memory_file(bytes: &[u8]) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("offered", flags).unwrap());
    file.write_all_at(bytes, 0).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}

/// Builds a table of rights that gives the queue pairs' peers every remote right to 1 GiB of memory.
fn table(qps: impl Iterator<Item = (Qpn, Qpn)>, tag: u32) -> Vec<u8> {
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
    for (place, word) in [1, RKEY, 1, RIGHTS, 0].into_iter().enumerate() {
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
            let nobody = Arc::new(Nobody);
            let group = PortGroup::join(config.group.clone(), Box::new(Nobody), nobody).unwrap();
            let links = group.link_members().unwrap();
            let first = group.block().first_qpn();
            say.send(first).unwrap();
            let link = until_some("a call", || links.accept().unwrap());
            let mut buffer = [0; 8];
            let mut hear = || match link.receive(&mut buffer).unwrap() {
                LinkMessage::Message(len, files) => Some((buffer[..len].to_vec(), files)),
                LinkMessage::Nothing => None,
                LinkMessage::Closed => panic!("the link ended"),
            };
            let (hello, files): (Vec<u8>, Vec<PrivateFd>) = until_some("its ring", &mut hear);
            let ring = File::from(files[0].as_fd().try_clone_to_owned().unwrap());
            let head_page = memory_file(&[0; HEAD_PAGE_LEN]);
            let theirs = (first..).map(Qpn::new);
            let rights = memory_file(&table(theirs.zip(owns.iter().copied()), tag()));
            let (bell, _own_end) = UnixStream::pair().unwrap();
            let files = [head_page.as_fd(), bell.as_fd(), rights.as_fd()];
            link.send(&[hello[0], 0], &files).unwrap();
            // The first record's mark, which comes after the writer's page.
            let written = || {
                let mut mark = [0; 4];
                ring.read_exact_at(&mut mark, 4096).unwrap();
                u32::from_ne_bytes(mark)
            };
            // Different threads send the request and the packets, so wait a while after the first packet.
            let mut packets_at = None;
            until_some("packets, or the question for memory", || {
                if let Some((message, _)) = hear()
                    && message.starts_with(&[hello[0], 1])
                {
                    return Some(true);
                }
                if written() > 0 {
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
