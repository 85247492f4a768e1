use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::thread::scope;
use std::time::{Duration, Instant};

use super::run::START;
use super::*;

/// Waits until locks may have owners.
fn prepare() {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_possible() {
        prepare_if_wanted();
        assert!(
            Instant::now() < deadline,
            "this kernel has no membarrier(2)"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes this thread the owner.
fn own<T, const MENDS: bool>(lock: &Mutex<T, MENDS>) {
    prepare();
    while !lock.belongs_to_this_thread() {
        drop(lock.lock());
    }
}

fn own_reading<T>(lock: &RwLock<T>) {
    prepare();
    while !lock.belongs_to_this_thread() {
        drop(lock.read());
    }
}

#[test]
fn a_lock_gets_an_owner_after_a_run_of_one_thread() {
    prepare();
    let lock = Mutex::new(());
    for _ in 1..START {
        drop(lock.lock());
    }
    assert!(!lock.belongs_to_this_thread());
    let last = lock.lock();
    assert!(!lock.belongs_to_this_thread(), "not while it is held");
    drop(last);
    assert!(lock.belongs_to_this_thread());
}

#[test]
fn threads_that_lock_in_turn_never_own_the_lock() {
    prepare();
    let lock = Mutex::new(());
    for _ in 0..START {
        drop(lock.lock());
        scope(|scope| {
            scope.spawn(|| drop(lock.lock()));
        });
        assert!(!lock.belongs_to_this_thread());
    }
}

#[test]
fn the_next_run_is_longer_after_the_ownership_was_taken_away() {
    let lock = Mutex::new(());
    own(&lock);
    scope(|scope| {
        scope.spawn(|| drop(lock.lock()));
    });
    assert!(!lock.belongs_to_this_thread());
    for _ in 1..2 * START {
        drop(lock.lock());
    }
    assert!(!lock.belongs_to_this_thread());
    drop(lock.lock());
    assert!(lock.belongs_to_this_thread());
}

#[test]
fn an_owner_and_another_thread_never_hold_the_lock_together() {
    let lock = Mutex::new([0u64; 2]);
    let add = |times: u64, pause: Duration| {
        for _ in 0..times {
            let mut counts = lock.lock();
            counts[0] += 1;
            std::hint::black_box(&mut *counts);
            counts[1] += 1;
            assert_eq!(counts[0], counts[1]);
            drop(counts);
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
        }
    };
    scope(|scope| {
        scope.spawn(|| {
            own(&lock);
            add(3_000_000, Duration::ZERO);
        });
        scope.spawn(|| add(300, Duration::from_micros(100)));
        scope.spawn(|| {
            let mut taken = 0;
            while taken < 300 {
                if let Some(mut counts) = lock.try_lock() {
                    counts[0] += 1;
                    counts[1] += 1;
                    assert_eq!(counts[0], counts[1]);
                    taken += 1;
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        });
    });
    assert_eq!(lock.lock()[0], 3_000_600);
}

#[test]
fn a_lock_is_busy_for_everybody_while_its_owner_or_another_thread_holds_it() {
    let lock = Mutex::new(());
    let is_busy = || scope(|scope| scope.spawn(|| lock.try_lock().is_none()).join().unwrap());
    let held = lock.lock();
    assert!(lock.try_lock().is_none() && is_busy());
    drop(held);
    own(&lock);
    let held = lock.lock();
    assert!(lock.try_lock().is_none() && is_busy());
    drop(held);
    assert!(!is_busy());
    assert!(!lock.belongs_to_this_thread());
    assert!(lock.try_lock().is_some());
}

#[test]
fn a_thread_waits_until_the_owner_has_unlocked() {
    const HOLDS: Duration = Duration::from_millis(50);
    let lock = Mutex::new(false);
    own(&lock);
    let mut held = lock.lock();
    let start = Instant::now();
    scope(|scope| {
        let waits = scope.spawn(|| *lock.lock());
        std::thread::sleep(HOLDS);
        *held = true;
        drop(held);
        assert!(waits.join().unwrap());
    });
    assert!(start.elapsed() >= HOLDS);
}

#[test]
fn an_owner_that_locks_what_it_holds_panics_and_still_holds_it() {
    let lock = Mutex::new(());
    own(&lock);
    let held = lock.lock();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(lock.lock()))).is_err());
    assert!(lock.try_lock().is_none());
    drop(held);
    assert!(lock.try_lock().is_some());
    let other = || scope(|scope| scope.spawn(|| lock.try_lock().is_some()).join().unwrap());
    assert!(other());
}

#[test]
fn state_left_by_a_panic_is_repaired_once() {
    for is_owned in [false, true] {
        let lock = Mutex::mending(1);
        if is_owned {
            own(&lock);
        }
        let panics = || {
            let _guard = lock.lock();
            panic!("a panic requested by the test");
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!(lock.belongs_to_this_thread(), is_owned);
        assert_eq!(*lock.lock_or_mend(|value| *value = 7), 7);
        assert_eq!(*lock.lock_or_mend(|value| *value = 8), 7);
        // A guard that a destructor takes and drops while its thread panics mends nothing.
        struct Locks<'a>(&'a MendingMutex<i32>);
        impl Drop for Locks<'_> {
            fn drop(&mut self) {
                drop(self.0.lock());
            }
        }
        let panics = || {
            let _locks = Locks(&lock);
            panic!("a panic requested by the test");
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!(*lock.lock_or_mend(|value| *value = 9), 7);
    }
}

#[test]
fn a_writer_waits_for_the_reader_that_owns_the_lock_and_for_the_others() {
    let lock = RwLock::new(0);
    own_reading(&lock);
    let outer = lock.read();
    let inner = lock.read();
    let together = Barrier::new(2);
    scope(|scope| {
        let reads = scope.spawn(|| {
            let read = lock.read();
            together.wait();
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(*read, 0);
        });
        together.wait();
        scope.spawn(|| *lock.write() += 1);
        std::thread::sleep(Duration::from_millis(40));
        reads.join().unwrap();
        assert_eq!((*outer, *inner), (0, 0));
        drop(inner);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(*outer, 0);
        drop(outer);
    });
    assert_eq!(*lock.read(), 1);
    assert!(!lock.belongs_to_this_thread());
}

#[test]
fn readers_never_see_half_of_a_change() {
    let lock = RwLock::new([0u64; 2]);
    let read = |times: u64| {
        for _ in 0..times {
            let read = lock.read();
            assert_eq!(read[0], std::hint::black_box(&*read)[1]);
        }
    };
    // Without the others: another reader could become the owner, and after the last change nothing would end that.
    let is_owned = Barrier::new(3);
    scope(|scope| {
        scope.spawn(|| {
            own_reading(&lock);
            is_owned.wait();
            read(3_000_000);
        });
        scope.spawn(|| {
            is_owned.wait();
            read(30_000);
        });
        scope.spawn(|| {
            is_owned.wait();
            for _ in 0..300 {
                let mut both = lock.write();
                both[0] += 1;
                std::hint::black_box(&mut *both);
                both[1] += 1;
                drop(both);
                std::thread::sleep(Duration::from_micros(100));
            }
        });
    });
    assert_eq!(*lock.read(), [300; 2]);
}

#[test]
fn a_reader_that_writes_remains_the_owner() {
    let lock = RwLock::new(0);
    own_reading(&lock);
    *lock.write() += 1;
    assert!(lock.belongs_to_this_thread());
    let read = lock.read();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(lock.write()))).is_err());
    drop(read);
    *lock.write() += 1;
    assert_eq!(*lock.read(), 2);
}
