//! The ownership of a biased lock, in every order of steps that the memory model allows: the library's own source with a
//! model checker's primitives. Both halves of its barrier are full fences here: that is what membarrier(2) makes of them.
#![allow(unreachable_pub, reason = "a test")]
#![allow(dead_code, reason = "the model uses a part of the source")]
#![allow(unsafe_code, reason = "the value that the lock protects")]

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

    loom::lazy_static! {
        static ref LEFT: loom::sync::Notify = loom::sync::Notify::new();
    }

    pub(crate) fn light_barrier() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy_barrier() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Sleeps until it is woken: a wake-up that is missed is a deadlock.
    pub(crate) fn wait_for_zero(word: &AtomicU32) {
        while word.load(Ordering::Acquire) != 0 {
            LEFT.wait();
        }
    }

    pub(crate) fn wake(_: &AtomicU32) {
        LEFT.notify();
    }
}

#[path = "../src/biased/bias.rs"]
mod bias;

use bias::{Bias, Owner};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

/// Multiples of the number of places, as the library's numbers of threads are.
const FIRST: usize = 64;
const SECOND: usize = 128;

/// A biased lock as the library builds it, whose value counts the threads that have held it.
struct Lock {
    bias: Bias,
    word: Mutex<()>,
    value: UnsafeCell<u32>,
}

// SAFETY: the model checker reports threads that get at the value together.
unsafe impl Sync for Lock {}
// SAFETY: as above.
unsafe impl Send for Lock {}

impl Lock {
    /// The first thread owns it.
    fn new() -> Arc<Self> {
        let bias = Bias::default();
        bias.give_to(FIRST);
        Arc::new(Self {
            bias,
            word: Mutex::new(()),
            value: UnsafeCell::new(0),
        })
    }

    fn count(&self) {
        // SAFETY: this thread holds the lock, which the model checker checks.
        self.value.with_mut(|value| unsafe { *value += 1 });
    }

    fn lock_and_count(&self, thread: usize) {
        if let Some(owner) = self.bias.enter(thread) {
            self.count();
            return self.bias.leave(owner);
        }
        let word = self.word.lock().unwrap();
        if self.bias.owner(thread) == Owner::Another {
            self.bias.revoke();
        }
        self.count();
        drop(word);
    }

    /// Returns whether it got the lock. `gives`: this thread owns it afterwards.
    fn try_lock_and_count(&self, thread: usize, gives: bool) -> bool {
        if let Some(owner) = self.bias.enter(thread) {
            self.count();
            self.bias.leave(owner);
            return true;
        }
        if self.bias.has_entered() {
            return false;
        }
        let Ok(word) = self.word.try_lock() else {
            return false;
        };
        let is_free = match self.bias.owner(thread) {
            Owner::Nobody => true,
            Owner::Itself => !self.bias.has_entered(),
            Owner::Another => self.bias.try_revoke(),
        };
        if !is_free {
            return false;
        }
        self.count();
        if gives && self.bias.owner(thread) == Owner::Nobody {
            self.bias.give_to(thread);
        }
        drop(word);
        true
    }

    fn counted(&self) -> u32 {
        // SAFETY: all other threads have ended.
        self.value.with(|value| unsafe { *value })
    }
}

#[test]
fn the_owner_and_a_thread_that_takes_the_ownership_away_exclude_each_other() {
    loom::model(|| {
        let lock = Lock::new();
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || lock.lock_and_count(SECOND))
        };
        lock.lock_and_count(FIRST);
        lock.lock_and_count(FIRST);
        other.join().unwrap();
        assert_eq!(lock.counted(), 3);
    });
}

#[test]
fn a_thread_that_only_tries_gives_the_ownership_back_or_has_the_lock_alone() {
    loom::model(|| {
        let lock = Lock::new();
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || u32::from(lock.try_lock_and_count(SECOND, false)))
        };
        lock.lock_and_count(FIRST);
        lock.lock_and_count(FIRST);
        assert_eq!(lock.counted_after(other), lock.counted());
    });
}

#[test]
fn a_new_owner_sees_what_the_old_one_did() {
    loom::model(|| {
        let lock = Lock::new();
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                let first = lock.try_lock_and_count(SECOND, true);
                u32::from(first) + u32::from(lock.try_lock_and_count(SECOND, true))
            })
        };
        lock.lock_and_count(FIRST);
        assert_eq!(lock.counted_after(other) - 1, lock.counted());
    });
}

#[test]
fn an_owner_that_tries_to_lock_what_it_holds_fails_whatever_another_thread_tries() {
    loom::model(|| {
        let lock = Lock::new();
        // So that its place is not the first one.
        lock.bias.give_up();
        lock.bias.give_to(SECOND);
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || u32::from(lock.try_lock_and_count(FIRST, false)))
        };
        if let Some(owner) = lock.bias.enter(SECOND) {
            assert!(!lock.try_lock_and_count(SECOND, false));
            lock.count();
            lock.bias.leave(owner);
        }
        other.join().unwrap();
    });
}

#[test]
fn a_writer_waits_for_every_entry_of_the_reader_that_owns_the_lock() {
    loom::model(|| {
        let lock = Lock::new();
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                let _word = lock.word.lock().unwrap();
                lock.bias.revoke();
                lock.count();
            })
        };
        if let Some(owner) = lock.bias.enter_again(FIRST) {
            let again = lock.bias.enter_again(FIRST);
            lock.counted();
            if let Some(owner) = again {
                lock.bias.leave_again(owner);
                lock.counted();
            }
            lock.bias.leave_again(owner);
        }
        other.join().unwrap();
        assert_eq!(lock.counted(), 1);
    });
}

impl Lock {
    /// What there must be after the first thread has counted twice and another one `other` times.
    fn counted_after(&self, other: thread::JoinHandle<u32>) -> u32 {
        2 + other.join().unwrap()
    }
}
