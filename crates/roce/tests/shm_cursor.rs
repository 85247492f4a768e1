//! The hand-over between the writer and the reader of a ring, in every order of steps that the memory model
//! allows: the device's own source with a model checker's primitives.
#![allow(unreachable_pub, dead_code, reason = "a test")]

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

#[path = "../src/io/net/shm/cursor.rs"]
mod cursor;

use cursor::{Asleep, Head, Tail};
use loom::sync::Arc;
use loom::thread;

struct Ring {
    tail: Tail,
    head: Head,
    asleep: Asleep,
}

fn ring() -> Arc<Ring> {
    Arc::new(Ring {
        tail: Tail::new(),
        head: Head::new(),
        asleep: Asleep::new(),
    })
}

#[test]
fn a_record_written_as_the_reader_falls_asleep_is_seen_or_rings_the_bell() {
    loom::model(|| {
        let ring = ring();
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.tail.publish(0, 8, &ring.head, &ring.asleep))
        };
        ring.asleep.announce();
        let seen = ring.tail.written() == 8;
        let rung = writer.join().unwrap();
        assert!(seen || rung);
    });
}

#[test]
fn a_record_written_as_the_reader_finishes_the_previous_one_is_seen_or_rings_the_bell() {
    loom::model(|| {
        let ring = ring();
        ring.asleep.announce();
        assert!(ring.tail.publish(0, 8, &ring.head, &ring.asleep));
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.tail.publish(8, 16, &ring.head, &ring.asleep))
        };
        // The bell has woken it: it reads the records, releases their room, and checks once more.
        let mut read = ring.tail.written();
        let _ = ring.head.release(read, &ring.tail);
        if ring.tail.written() != read {
            read = ring.tail.written();
            let _ = ring.head.release(read, &ring.tail);
        }
        let rung = writer.join().unwrap();
        assert!(read == 16 || rung);
    });
}

#[test]
fn room_made_as_the_writer_begins_to_wait_is_seen_or_rings_its_bell() {
    loom::model(|| {
        let ring = ring();
        let reader = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.head.release(8, &ring.tail))
        };
        ring.tail.want_room();
        let seen = ring.head.read() == 8;
        let rung = reader.join().unwrap();
        assert!(seen || rung);
    });
}
