//! Two hand-overs, in every order of steps that the memory model allows: between the writer and the reader of a ring, and
//! between a process that copies by a right and the one that withdraws it. This is the device's own source with a model
//! checker's primitives.
#![allow(unreachable_pub, dead_code, reason = "a test")]
#![allow(unsafe_code, reason = "memory that the model checker watches")]

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    pub(crate) fn fence_after_exchange() {
        fence(Ordering::SeqCst);
    }
}

#[path = "../src/io/net/shm/cursor.rs"]
mod cursor;

#[path = "../src/io/net/shm/hazard.rs"]
mod hazard;

use cursor::{Asleep, Head, Mark, RoomWanted, Sleepers};
use hazard::{Hazard, Version};
use loom::sync::Arc;
use loom::thread;

/// The mark of a record that is there.
const THERE: u32 = 1;

/// A ring of two records, at the positions 0 and 8.
struct Ring {
    marks: [Mark; 2],
    wanted: RoomWanted,
    head: Head,
    asleep: Asleep,
}

fn ring() -> Arc<Ring> {
    Arc::new(Ring {
        marks: [Mark::new(), Mark::new()],
        wanted: RoomWanted::new(),
        head: Head::new(),
        asleep: Asleep::new(),
    })
}

impl Ring {
    fn write(&self, record: usize) -> Sleepers {
        let fence = || sync::fence(sync::Ordering::SeqCst);
        self.marks[record].publish(THERE, 8 * record as u64, &self.head, &self.asleep, fence)
    }

    fn has(&self, record: usize) -> bool {
        self.marks[record].read() == THERE
    }
}

#[test]
fn records_that_are_published_together_are_seen_together() {
    loom::model(|| {
        let ring = ring();
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                ring.marks[1].prepare(THERE);
                ring.write(0)
            })
        };
        if ring.has(0) {
            assert!(ring.has(1));
        }
        writer.join().unwrap();
    });
}

#[test]
fn what_looks_like_a_record_is_gone_before_the_reader_gets_there() {
    loom::model(|| {
        let ring = ring();
        // A payload of an earlier lap.
        ring.marks[1].prepare(THERE);
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                ring.marks[1].prepare(THERE - 1);
                ring.write(0)
            })
        };
        if ring.has(0) {
            assert!(!ring.has(1));
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_record_written_as_the_reader_falls_asleep_is_seen_or_rings_the_bell() {
    loom::model(|| {
        let ring = ring();
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.write(0))
        };
        ring.asleep.announce();
        let seen = ring.has(0);
        let rung = writer.join().unwrap();
        assert!(seen || rung.thread);
    });
}

#[test]
fn a_record_written_as_a_waiting_thread_falls_asleep_is_seen_or_rings_its_bell() {
    loom::model(|| {
        let ring = ring();
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.write(0))
        };
        ring.asleep.announce_waiter();
        let seen = ring.has(0);
        let rung = writer.join().unwrap();
        assert!(seen || rung.waiter);
        assert!(!rung.thread, "the progress thread leaves the rings to it");
    });
}

#[test]
fn a_record_written_as_a_poller_hands_over_to_the_progress_thread_is_seen_or_rings_a_bell() {
    loom::model(|| {
        let ring = ring();
        ring.asleep.announce_waiter();
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.write(0))
        };
        // A poller reads the rings for the waiter, and then stops without a word. The progress thread notices.
        ring.asleep.end_waiter();
        ring.asleep.announce();
        let seen = ring.has(0);
        let rung = writer.join().unwrap();
        assert!(seen || rung.any());
    });
}

#[test]
fn a_record_written_as_the_reader_finishes_the_previous_one_is_seen_or_rings_the_bell() {
    loom::model(|| {
        let ring = ring();
        ring.asleep.announce();
        assert!(ring.write(0).thread);
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.write(1))
        };
        // The bell has woken it: it reads the records, releases their room, and checks once more.
        let mut read = 0;
        while read < 2 && ring.has(read) {
            read += 1;
        }
        let _ = ring.head.release(8 * read as u64, &ring.wanted);
        if read < 2 && ring.has(read) {
            read += 1;
        }
        let rung = writer.join().unwrap();
        assert!(read == 2 || rung.thread);
    });
}

#[test]
fn room_made_as_the_writer_begins_to_wait_is_seen_or_rings_its_bell() {
    loom::model(|| {
        let ring = ring();
        let reader = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.head.release(8, &ring.wanted))
        };
        ring.wanted.set();
        let seen = ring.head.read() == 8;
        let rung = reader.join().unwrap();
        assert!(seen || rung);
    });
}

#[test]
fn a_writer_that_waits_for_room_which_the_reader_only_shows_is_woken_for_what_the_reader_reads_next()
 {
    loom::model(|| {
        let ring = ring();
        ring.marks.iter().for_each(|mark| mark.prepare(THERE));
        let reader = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                ring.head.show(8);
                ring.head.release(16, &ring.wanted)
            })
        };
        // It waits for more than the first record's room, and both are there to be read.
        ring.wanted.set();
        let seen = ring.head.read() == 16;
        let rung = reader.join().unwrap();
        assert!(seen || rung);
    });
}

#[test]
fn a_record_written_as_one_thread_has_read_and_another_one_falls_asleep_is_seen_or_rings_the_bell()
{
    loom::model(|| {
        let ring = ring();
        ring.marks[0].prepare(THERE);
        // The lock of the reading end, and whether the first record was read.
        let lock = Arc::new(loom::sync::Mutex::new(false));
        let poller = {
            let (ring, lock) = (Arc::clone(&ring), Arc::clone(&lock));
            thread::spawn(move || {
                let mut has_read = lock.lock().unwrap();
                ring.head.show(8);
                *has_read = true;
            })
        };
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.write(1))
        };
        ring.asleep.announce();
        let seen = {
            let has_read = lock.lock().unwrap();
            sync::fence(sync::Ordering::SeqCst);
            ring.has(usize::from(*has_read))
        };
        poller.join().unwrap();
        let rung = writer.join().unwrap();
        assert!(seen || rung.thread);
    });
}

/// Memory that another process copies by a right, and who takes it back and uses the memory for something else.
struct Right {
    version: Version,
    hazard: Hazard,
    memory: loom::cell::UnsafeCell<u64>,
}

fn right() -> Arc<Right> {
    let right = Right {
        version: Version::new(),
        hazard: Hazard::new(),
        memory: loom::cell::UnsafeCell::new(0),
    };
    right.version.give();
    Arc::new(right)
}

/// Copies if the right is still given after the announcement.
fn copy(right: &Right) -> bool {
    if !right.hazard.announce(1) {
        return false;
    }
    let version = right.version.given();
    let allowed = version.is_some_and(|version| right.version.is_still(version));
    if allowed {
        // SAFETY: the model checker fails if another thread uses it at the same time.
        right.memory.with_mut(|memory| unsafe { *memory += 1 });
    }
    right.hazard.end();
    allowed
}

#[test]
fn memory_whose_right_is_withdrawn_is_not_copied_after_the_last_announcement() {
    loom::model(|| {
        let right = right();
        let peer = {
            let right = Arc::clone(&right);
            thread::spawn(move || copy(&right))
        };
        right.version.take_back();
        if right.hazard.announced() == 0 {
            // SAFETY: as in `copy`.
            right.memory.with_mut(|memory| unsafe { *memory = 100 });
        }
        peer.join().unwrap();
    });
}

#[test]
fn two_threads_of_a_process_do_not_announce_in_one_place_at_a_time() {
    loom::model(|| {
        let right = right();
        let other = {
            let right = Arc::clone(&right);
            thread::spawn(move || copy(&right))
        };
        let own = copy(&right);
        assert!(other.join().unwrap() || own);
        // SAFETY: both have ended.
        let copies = right.memory.with(|memory| unsafe { *memory });
        assert!(copies > 0);
        assert_eq!(right.hazard.announced(), 0);
    });
}

/// The program's memory: a copy ends at a gate that is closed, as in one call of process_vm_writev(2).
struct Gated {
    version: Version,
    hazard: Hazard,
    /// The gate that is told.
    told: loom::sync::atomic::AtomicU64,
    /// The gate that is mapped, and how often the memory was copied to. The lock stands for the call.
    mapped: loom::sync::Mutex<(u64, u32)>,
}

#[test]
fn a_writer_that_nobody_waited_for_ends_at_the_gate() {
    use loom::sync::atomic::Ordering;
    loom::model(|| {
        let gated = Arc::new(Gated {
            version: Version::new(),
            hazard: Hazard::new(),
            told: loom::sync::atomic::AtomicU64::new(1),
            mapped: loom::sync::Mutex::new((1, 0)),
        });
        gated.version.give();
        let writer = {
            let gated = Arc::clone(&gated);
            thread::spawn(move || {
                let gate = gated.told.load(Ordering::Acquire);
                assert!(gated.hazard.announce(1));
                let version = gated.version.given();
                if version.is_some_and(|version| gated.version.is_still(version)) {
                    let mut mapped = gated.mapped.lock().unwrap();
                    if mapped.0 == gate {
                        mapped.1 += 1;
                    }
                }
                gated.hazard.end();
            })
        };
        gated.version.take_back();
        let is_announced = gated.hazard.announced() != 0;
        let mut mapped = gated.mapped.lock().unwrap();
        if is_announced {
            mapped.0 = 2;
            gated.told.store(2, Ordering::Release);
        }
        let copies = mapped.1;
        drop(mapped);
        writer.join().unwrap();
        let after = gated.mapped.lock().unwrap().1;
        assert_eq!(after, copies, "no copy comes after the withdrawal");
    });
}

#[test]
fn memory_read_without_an_announcement_counts_only_if_its_right_is_still_given() {
    use loom::sync::atomic::{AtomicU32, Ordering, fence};
    loom::model(|| {
        let of = Arc::new((Version::new(), AtomicU32::new(1)));
        of.0.give();
        let first = of.0.given();
        let reader = {
            let of = Arc::clone(&of);
            thread::spawn(move || {
                let before = of.0.given()?;
                let copied = of.1.load(Ordering::Relaxed);
                fence(Ordering::SeqCst);
                (of.0.given() == Some(before)).then_some((Some(before), copied))
            })
        };
        of.0.take_back();
        // The memory is used for something else, and then the new contents are granted.
        of.1.store(2, Ordering::Relaxed);
        of.0.give();
        if let Some((version, copied)) = reader.join().unwrap() {
            assert_eq!(copied, if version == first { 1 } else { 2 });
        }
    });
}

#[test]
fn a_right_is_read_as_it_was_granted_or_not_at_all() {
    loom::model(|| {
        let version = Arc::new(Version::new());
        let covers = Arc::new([0, 0].map(loom::sync::atomic::AtomicU64::new));
        let set = |covers: &[loom::sync::atomic::AtomicU64; 2], value| {
            for word in covers {
                word.store(value, loom::sync::atomic::Ordering::Relaxed);
            }
        };
        set(&covers, 1);
        version.give();
        let owner = {
            let (version, covers) = (Arc::clone(&version), Arc::clone(&covers));
            thread::spawn(move || {
                version.take_back();
                set(&covers, 2);
                version.give();
            })
        };
        if let Some(given) = version.given() {
            let read = covers
                .each_ref()
                .map(|word| word.load(loom::sync::atomic::Ordering::Relaxed));
            assert!(!version.is_still(given) || read[0] == read[1], "{read:?}");
        }
        owner.join().unwrap();
    });
}
