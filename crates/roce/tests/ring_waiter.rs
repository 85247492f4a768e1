//! A thread that sleeps at its bell, and the progress thread that takes over because it did not come, in every order of
//! steps that the memory model allows: the device's own source with a model checker's primitives.
#![allow(unreachable_pub, reason = "a test")]
#![allow(dead_code, reason = "the model uses a part of the source")]

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
}

#[path = "../src/io/polling/ring_waiter.rs"]
mod ring_waiter;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use ring_waiter::RingWaiter;

struct Process {
    waiter: RingWaiter,
    /// An event is queued for the thread. Its lock orders it with the thread's going to sleep.
    events: Mutex<Events>,
    bell: AtomicBool,
}

#[derive(Default)]
struct Events {
    is_queued: bool,
    has_sleeper: bool,
}

impl Process {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            waiter: RingWaiter::new(),
            events: Mutex::new(Events::default()),
            bell: AtomicBool::new(false),
        })
    }

    /// A thread queues an event.
    fn deliver(&self) {
        let mut events = self.events.lock().unwrap();
        events.is_queued = true;
        if events.has_sleeper {
            self.bell.store(true, Ordering::SeqCst);
        }
    }

    /// The progress thread takes over.
    fn take_over(&self) {
        if self.waiter.take_over() {
            self.bell.store(false, Ordering::SeqCst);
            self.bell.store(true, Ordering::SeqCst);
        }
    }

    /// The thread finds that packets have arrived, and does not sleep.
    fn turns(&self) {
        self.waiter.rest();
        self.waiter.rise();
    }

    /// Whether the thread sleeps at its bell.
    fn falls_asleep(&self) -> bool {
        let mut events = self.events.lock().unwrap();
        if events.is_queued {
            return false;
        }
        events.has_sleeper = true;
        drop(events);
        self.waiter.rest();
        self.waiter.expect()
    }
}

#[test]
fn a_thread_at_its_bell_hears_of_an_event_although_the_progress_thread_takes_over() {
    loom::model(|| {
        let process = Process::new();
        let progress = {
            let process = process.clone();
            thread::spawn(move || {
                process.deliver();
                process.take_over();
            })
        };
        let is_asleep = process.falls_asleep();
        progress.join().unwrap();
        let is_woken = process.bell.load(Ordering::SeqCst);
        assert!(
            !is_asleep || is_woken,
            "the thread sleeps and hears nothing"
        );
    });
}

#[test]
fn it_hears_of_an_event_of_another_thread_also_if_it_was_busy_when_the_progress_thread_took_over() {
    loom::model(|| {
        let process = Process::new();
        let others = {
            let process = process.clone();
            thread::spawn(move || process.take_over())
        };
        let third = {
            let process = process.clone();
            thread::spawn(move || process.deliver())
        };
        process.turns();
        let is_asleep = process.falls_asleep();
        others.join().unwrap();
        third.join().unwrap();
        let is_woken = process.bell.load(Ordering::SeqCst);
        assert!(
            !is_asleep || is_woken,
            "the thread sleeps and hears nothing"
        );
    });
}

#[test]
fn nobody_expects_a_thread_that_was_missed() {
    loom::model(|| {
        let waiter = RingWaiter::new();
        waiter.rest();
        assert!(waiter.expect());
        waiter.miss();
        assert!(waiter.is_expected(), "it rests");
        assert!(waiter.rise());
        waiter.miss();
        assert!(!waiter.is_expected());
    });
}

#[test]
fn a_thread_that_was_missed_is_expected_again_after_it_has_found_events_in_calls() {
    /// Events that it finds until it is expected.
    fn finds(waiter: &RingWaiter) -> u32 {
        let mut found = 0;
        while !waiter.is_expected() {
            waiter.find();
            found += 1;
        }
        found
    }
    loom::model(|| {
        let waiter = RingWaiter::new();
        let first = finds(&waiter);
        waiter.miss();
        assert_eq!(finds(&waiter), 2 * first, "it did not come");
        assert!(!waiter.take_over());
        assert_eq!(finds(&waiter), 4 * first, "and others took over");
        waiter.rest();
        assert!(waiter.expect());
        assert!(waiter.rise());
        waiter.miss();
        assert_eq!(finds(&waiter), 2 * first, "it had come in between");
    });
}
