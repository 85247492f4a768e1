//! The hand-over between progress thread and pollers, in every order of steps that the memory model allows: the
//! device's own source with a model checker's primitives.
#![allow(unreachable_pub, reason = "a test")]

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

    pub(crate) fn fence_after_exchange() {
        fence(Ordering::SeqCst);
    }

    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}

#[path = "../src/io/polling/poll_handoff.rs"]
mod poll_handoff;

use loom::sync::Arc;
use loom::thread;
use poll_handoff::{PollHandoff, Sleep, Watch};
use sync::{AtomicBool, AtomicU64, Ordering};

const FOR_EVER: u64 = u64::MAX;

#[test]
fn a_timer_set_while_the_thread_falls_asleep_is_seen_or_wakes_it() {
    loom::model(|| {
        let sleep = Arc::new(Sleep::new());
        let next_timer = Arc::new(AtomicU64::new(FOR_EVER));
        let setter = {
            let (sleep, next_timer) = (sleep.clone(), next_timer.clone());
            thread::spawn(move || {
                next_timer.swap(5, Ordering::Relaxed);
                sleep.misses(5)
            })
        };
        sleep.announce(FOR_EVER);
        let seen = next_timer.load(Ordering::Relaxed) == 5;
        let woken = setter.join().unwrap();
        assert!(seen || woken, "the thread misses the timer");
        sleep.end();
        assert!(!sleep.misses(5), "a thread that is awake is woken");
    });
}

fn note(watched: &AtomicBool, change: Watch) {
    if let Watch::Sockets(watching) = change {
        watched.store(watching, Ordering::Relaxed);
    }
}

/// A poller that visits once and then leaves.
fn poller_that_leaves(
    handoff: &Arc<PollHandoff>,
    watched: &Arc<AtomicBool>,
) -> thread::JoinHandle<()> {
    let (handoff, watched) = (handoff.clone(), watched.clone());
    thread::spawn(move || {
        handoff.poller_is_here(1);
        handoff.poller_leaves(1, |change| note(&watched, change));
    })
}

/// The state that epoll would get for the sockets.
fn model(handoff: PollHandoff) -> (Arc<PollHandoff>, Arc<AtomicBool>) {
    (Arc::new(handoff), Arc::new(AtomicBool::new(true)))
}

#[test]
fn a_poller_that_leaves_as_the_thread_yields_leaves_the_sockets_watched() {
    loom::model(|| {
        let (handoff, watched) = model(PollHandoff::new(100));
        handoff.poller_is_here(1);
        let poller = {
            let (handoff, watched) = (handoff.clone(), watched.clone());
            thread::spawn(move || {
                handoff.poller_leaves(1, |change| note(&watched, change));
            })
        };
        let _ = handoff.yield_to_pollers(2, |change| note(&watched, change));
        poller.join().unwrap();
        assert!(
            watched.load(Ordering::Relaxed),
            "no thread reads the sockets"
        );
    });
}

#[test]
fn whatever_two_pollers_do_a_long_sleeping_thread_watches_the_sockets() {
    loom::model(|| {
        let (handoff, watched) = model(PollHandoff::new(100));
        let poller = poller_that_leaves(&handoff, &watched);
        handoff.poller_is_here(1);
        let yields = handoff.yield_to_pollers(2, |change| note(&watched, change));
        poller.join().unwrap();
        assert!(
            yields || watched.load(Ordering::Relaxed),
            "the thread sleeps for long and no thread reads the sockets"
        );
    });
}

#[test]
fn visits_count_only_for_their_time() {
    loom::model(|| {
        let (handoff, watched) = model(PollHandoff::new(100));
        let watch = |change| note(&watched, change);
        assert!(!handoff.yield_to_pollers(0, watch));
        handoff.poller_is_here(50);
        assert!(handoff.yield_to_pollers(149, watch));
        assert!(!watched.load(Ordering::Relaxed));
        assert!(!handoff.yield_to_pollers(150, watch));
        assert!(watched.load(Ordering::Relaxed));
    });
}

#[test]
fn a_thread_that_watches_beside_pollers_keeps_watching_as_they_come_and_go() {
    loom::model(|| {
        let (handoff, watched) = model(PollHandoff::new(100));
        handoff.poller_is_here(1);
        assert!(handoff.yield_to_pollers(2, |change| note(&watched, change)));
        let poller = {
            let (handoff, watched) = (handoff.clone(), watched.clone());
            thread::spawn(move || {
                handoff.poller_is_here(3);
                handoff.poller_leaves(1, |change| note(&watched, change));
            })
        };
        handoff.watch_beside_pollers(|change| note(&watched, change));
        poller.join().unwrap();
        assert!(
            watched.load(Ordering::Relaxed),
            "no thread reads the sockets"
        );
    });
}

#[test]
fn a_poller_is_away_after_its_last_visit_until_it_leaves() {
    loom::model(|| {
        let (handoff, watched) = model(PollHandoff::new(100));
        assert!(!handoff.is_poller_away(1000, 20));
        handoff.poller_is_here(50);
        assert!(!handoff.is_poller_away(69, 20));
        assert!(handoff.is_poller_away(70, 20));
        handoff.poller_leaves(1, |change| note(&watched, change));
        assert!(!handoff.is_poller_away(70, 20));
    });
}

#[test]
fn a_thread_that_falls_asleep_as_a_sleeper_comes_back_sees_it_or_is_woken() {
    loom::model(|| {
        let (handoff, watched) = model(PollHandoff::new(100));
        let sleep = Arc::new(Sleep::new());
        let sleeper = {
            let (handoff, watched, sleep) = (handoff.clone(), watched.clone(), sleep.clone());
            thread::spawn(move || {
                assert!(handoff.sleeper_takes(1, |change| note(&watched, change)));
                handoff.sleeper_returns(1, Some(1), |change| note(&watched, change));
                sleep.misses(5)
            })
        };
        assert!(!handoff.yield_to_pollers(2, |change| note(&watched, change)));
        let looks = handoff.expects_sleeper(2);
        sleep.announce(FOR_EVER);
        let sees = looks || handoff.is_sleeper_away();
        let woken = sleeper.join().unwrap();
        let is_watched = watched.load(Ordering::Relaxed);
        assert!(sees || woken || is_watched, "no thread reads the sockets");
        // It does not come back.
        assert!(handoff.expects_sleeper(100));
        handoff.yield_to_pollers(101, |change| note(&watched, change));
        assert!(
            watched.load(Ordering::Relaxed),
            "no thread reads the sockets"
        );
    });
}

#[test]
fn while_a_sleeper_waits_for_the_sockets_the_thread_does_not_and_afterwards_it_does() {
    loom::model(|| {
        let (handoff, watched) = model(PollHandoff::new(100));
        let poller = poller_that_leaves(&handoff, &watched);
        assert!(handoff.sleeper_takes(1, |change| note(&watched, change)));
        assert!(!handoff.sleeper_takes(2, |change| note(&watched, change)));
        let yields = handoff.yield_to_pollers(2, |change| note(&watched, change));
        assert!(!watched.load(Ordering::Relaxed), "two threads are woken");
        handoff.sleeper_returns(1, None, |change| note(&watched, change));
        poller.join().unwrap();
        assert!(
            yields || watched.load(Ordering::Relaxed),
            "no thread reads the sockets"
        );
    });
}

#[test]
fn a_sleeper_that_comes_back_in_time_finds_the_sockets_as_it_left_them() {
    loom::model(|| {
        let (handoff, watched) = model(PollHandoff::new(100));
        let watch = |change| note(&watched, change);
        assert!(handoff.sleeper_takes(1, watch));
        handoff.sleeper_returns(1, Some(1), watch);
        handoff.poller_is_here(2);
        handoff.poller_leaves(3, watch);
        assert!(!watched.load(Ordering::Relaxed) && handoff.is_sleeper_away());
        assert!(!handoff.yield_to_pollers(4, watch));
        assert!(!watched.load(Ordering::Relaxed));
        assert!(handoff.sleeper_takes(1, watch));
        assert!(!handoff.is_sleeper_away());
        // After a long sleep, the first packet finds the progress thread as before.
        handoff.sleeper_returns(1, None, watch);
        assert!(watched.load(Ordering::Relaxed));
        // One that never comes back is replaced, and its late return changes nothing for the next one.
        assert!(handoff.sleeper_takes(1, watch));
        handoff.sleeper_is_gone(watch);
        assert!(watched.load(Ordering::Relaxed));
        assert!(handoff.sleeper_takes(2, watch));
        handoff.sleeper_returns(1, None, watch);
        assert!(handoff.has_sleeper() && !watched.load(Ordering::Relaxed));
        handoff.sleeper_returns(2, None, watch);
        // A thread that rests without having slept lately leaves them watched until it takes them.
        handoff.poller_leaves(200, watch);
        assert!(watched.load(Ordering::Relaxed));
    });
}

/// Whether the writers of the rings wake the thread after it has polled the rings, while a poller did `meanwhile`.
fn woken_after_polling_the_rings(
    is_left: bool,
    meanwhile: impl FnOnce(&PollHandoff, &AtomicBool) + Send + 'static,
) -> bool {
    let handoff = Arc::new(PollHandoff::new(100));
    let woken = Arc::new(AtomicBool::new(true));
    let note = |woken: &AtomicBool, change| {
        if let Watch::Rings(watching) = change {
            woken.store(watching, Ordering::Relaxed);
        }
    };
    if is_left {
        handoff.poller_is_here(1);
        assert!(handoff.yield_to_pollers(2, |change| note(&woken, change)));
    }
    let poller = {
        let (handoff, woken) = (handoff.clone(), woken.clone());
        thread::spawn(move || meanwhile(&handoff, &woken))
    };
    handoff.if_watching(|| woken.store(false, Ordering::Relaxed));
    handoff.if_watching(|| woken.store(true, Ordering::Relaxed));
    poller.join().unwrap();
    woken.load(Ordering::Relaxed)
}

#[test]
fn a_thread_that_has_polled_the_rings_is_woken_for_them_unless_it_left_them_to_pollers() {
    loom::model(|| {
        assert!(woken_after_polling_the_rings(false, |_, _| {}));
        assert!(!woken_after_polling_the_rings(true, |_, _| {}));
    });
    loom::model(|| {
        let leave = |handoff: &PollHandoff, woken: &AtomicBool| {
            handoff.poller_leaves(1, |change| {
                if let Watch::Rings(watching) = change {
                    woken.store(watching, Ordering::Relaxed);
                }
            });
        };
        assert!(woken_after_polling_the_rings(true, leave));
    });
}
