//! Atomics on the peer's memory: effects, results and refusals.

use std::thread;

use portolan::{Access, Cause, Connection, RemoteMemory, SharedMemory};

use crate::harness::*;

fn shared(connection: &Connection, words: &[u64]) -> SharedMemory {
    let memory = connection
        .share(words.len() * 8, Access::REMOTE_ATOMIC)
        .unwrap();
    for (at, word) in words.iter().enumerate() {
        memory.store(at * 8, &word.to_ne_bytes());
    }
    memory
}

fn word(memory: &SharedMemory, at: usize) -> u64 {
    let mut bytes = [0; 8];
    memory.load(at * 8, &mut bytes);
    u64::from_ne_bytes(bytes)
}

fn place(memory: &SharedMemory, at: usize) -> RemoteMemory {
    memory.remote().slice(at * 8, 8).unwrap()
}

#[test]
fn fetch_add_returns_the_old_value_and_wraps_around() {
    let (active, passive) = pair();
    let memory = shared(&passive, &[7, u64::MAX - 1, 9]);
    let mut buffer = active.buffer(8).unwrap();
    for (add, before, after) in [
        (3, u64::MAX - 1, 1),
        (0, 1, 1),
        (u64::MAX, 1, 0),
        (1 << 40, 0, 1 << 40),
    ] {
        let posted = active.fetch_add(buffer, place(&memory, 1), add).unwrap();
        let done = posted.wait().unwrap();
        assert_eq!(done.original(), Some(before));
        assert_eq!(word(&memory, 1), after);
        buffer = done.buffer;
    }
    assert_eq!((word(&memory, 0), word(&memory, 2)), (7, 9), "neighbours");
}

#[test]
fn compare_swap_swaps_only_if_the_value_is_as_expected() {
    let (active, passive) = pair();
    let memory = shared(&passive, &[5, 6]);
    let mut buffer = active.buffer(16).unwrap();
    for (compare, swap, before, after) in [
        (5, 50, 5, 50),
        (5, 99, 50, 50),
        (50, u64::MAX, 50, u64::MAX),
    ] {
        let posted = active.compare_swap(buffer, place(&memory, 0), compare, swap);
        let done = posted.unwrap().wait().unwrap();
        assert_eq!(done.original(), Some(before));
        assert_eq!(word(&memory, 0), after);
        buffer = done.buffer;
    }
    assert_eq!(word(&memory, 1), 6, "its neighbour");
}

#[test]
fn additions_of_several_connections_are_all_counted() {
    const THREADS: usize = 4;
    const ADDITIONS: u64 = 100;
    let pairs: Vec<_> = (0..THREADS).map(|_| pair()).collect();
    // One word that each connection accesses through a region of its own protection domain.
    let memory = shared(&pairs[0].1, &[0]);
    let at = place(&memory, 0);
    thread::scope(|scope| {
        for (active, _) in &pairs {
            scope.spawn(move || {
                let mut buffer = active.buffer(8).unwrap();
                for _ in 0..ADDITIONS {
                    let posted = active.fetch_add(buffer, at, 1).unwrap();
                    buffer = posted.wait().unwrap().buffer;
                }
            });
        }
    });
    assert_eq!(word(&memory, 0), THREADS as u64 * ADDITIONS);
}

#[test]
fn an_atomic_at_a_wrong_place_is_refused_and_its_buffer_comes_back() {
    let (active, passive) = pair();
    let memory = shared(&passive, &[1, 2]);
    let remote = memory.remote();
    let cases = [
        (8, remote.slice(4, 8).unwrap(), "address of an atomic"),
        (
            8,
            remote.slice(0, 7).unwrap(),
            "length of an atomic's memory",
        ),
        (7, remote, "length of an atomic's buffer"),
    ];
    for (length, at, what) in cases {
        let buffer = active.buffer(length).unwrap();
        let failed = active.fetch_add(buffer, at, 1).unwrap_err();
        assert_eq!(failed.buffer.map(|buffer| buffer.len()), Some(length));
        match failed.error.cause {
            Cause::InvalidArgument { what: found, .. } => assert_eq!(found, what),
            other => panic!("{other:?}"),
        }
    }
    // The connection still works.
    let posted = active.fetch_add(active.buffer(8).unwrap(), place(&memory, 1), 1);
    assert_eq!(posted.unwrap().wait().unwrap().original(), Some(2));
}

#[test]
fn an_atomic_without_the_right_to_it_breaks_the_connection() {
    let (active, passive) = pair();
    let memory = passive.share(8, Access::REMOTE_WRITE).unwrap();
    memory.store(0, &4u64.to_ne_bytes());
    // A description without access rights, so that this side cannot refuse the atomic.
    let offer = memory.remote();
    let offer = RemoteMemory::new(offer.addr, offer.length, offer.rkey);
    let posted = active.compare_swap(active.buffer(8).unwrap(), offer, 4, 5);
    let failed = posted.unwrap().wait().unwrap_err();
    assert!(
        matches!(failed.error.cause, Cause::WorkFailed(_)),
        "{failed}"
    );
    assert_eq!(word(&memory, 0), 4);
}

#[test]
fn the_owner_of_a_counter_adds_to_it_while_peers_do_and_no_addition_is_lost() {
    const EACH: u64 = 500;
    let (active, passive) = pair();
    let memory = shared(&passive, &[1, 0]);
    thread::scope(|scope| {
        scope.spawn(|| (0..EACH).for_each(|_| _ = memory.fetch_add(8, 2)));
        let mut buffer = active.buffer(8).unwrap();
        for _ in 0..EACH {
            let posted = active.fetch_add(buffer, place(&memory, 1), 1).unwrap();
            buffer = posted.wait().unwrap().buffer;
        }
    });
    assert_eq!((word(&memory, 0), word(&memory, 1)), (1, 3 * EACH));
    assert_eq!(memory.compare_swap(8, 0, 7), 3 * EACH);
    assert_eq!(memory.compare_swap(8, 3 * EACH, 7), 3 * EACH);
    assert_eq!(word(&memory, 1), 7);
    let unaligned =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| memory.fetch_add(4, 1)));
    assert!(unaligned.is_err());
}

#[cfg(feature = "bytes")]
#[test]
fn memory_that_starts_at_an_odd_address_is_loaded_and_stored() {
    let (active, passive) = pair();
    let mut bytes = bytes::BytesMut::from(&[0; 41][..]).split_off(1);
    bytes.fill(3);
    let memory = passive.share_memory(bytes, Access::REMOTE_READ).unwrap();
    memory.store(3, &pattern(30, 1));
    let read = active.read(
        active.buffer(30).unwrap(),
        memory.remote().slice(3, 30).unwrap(),
    );
    assert_same(&read.unwrap().wait().unwrap().buffer, &pattern(30, 1));
    let mut found = [0; 40];
    memory.load(0, &mut found);
    assert_same(&found[3..33], &pattern(30, 1));
    assert_eq!((found[2], found[33]), (3, 3));
}
