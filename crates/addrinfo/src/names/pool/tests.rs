use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use super::*;

/// Time limit for steps that normally take milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(50);
/// Long enough for a thread to start on a busy machine.
const START_TIME: Duration = Duration::from_secs(3);

/// Work that signals its start and ends when the sender is dropped.
fn gate() -> (Sender<()>, Receiver<()>, impl FnOnce() + Send) {
    let (open, waits) = channel::<()>();
    let (begun, has_begun) = channel();
    let work = move || {
        let _ = begun.send(());
        let _ = waits.recv();
    };
    (open, has_begun, work)
}

type Done<T> = Box<dyn FnOnce(Result<T, Unanswered>) + Send>;
type Told<T> = Receiver<(usize, Result<T, Unanswered>)>;

/// A collector of outcomes, each with a number.
fn outcomes<T: Send + 'static>() -> (impl Fn(usize) -> Done<T>, Told<T>) {
    let (sender, receiver) = channel();
    let done = move |number| {
        let sender = sender.clone();
        Box::new(move |outcome| sender.send((number, outcome)).expect("the caller waits")) as _
    };
    (done, receiver)
}

#[test]
fn many_jobs_share_few_threads_and_each_gets_its_own_result() {
    let pool = Pool::start(THREADS_MAX).expect("pool");
    let (done, told) = outcomes();
    let submit = |number| pool.submit(PATIENCE, move || number * 2, done(number));
    let pending: Vec<_> = (0..500).map(submit).collect();
    assert!(pool.threads() <= THREADS_MAX);
    let mut results: Vec<_> = (0..500)
        .map(|_| told.recv_timeout(PATIENCE).expect("told"))
        .collect();
    results.sort_unstable_by_key(|(number, _)| *number);
    for (at, (number, result)) in results.into_iter().enumerate() {
        assert_eq!((number, result), (at, Ok(at * 2)));
    }
    assert!(pending.iter().all(Result::is_ok));
    assert!(told.try_recv().is_err(), "each job has one outcome");
}

#[test]
fn jobs_queued_and_running_are_answered_at_their_deadlines_while_every_thread_is_stuck() {
    let pool = Pool::start(2).expect("pool");
    let (done, told) = outcomes();
    let gates: Vec<_> = (0..2)
        .map(|number| {
            let (open, has_begun, work) = gate();
            let pending = pool.submit(START_TIME, work, done(number)).expect("room");
            has_begun.recv_timeout(PATIENCE).expect("a thread took it");
            (open, pending)
        })
        .collect();
    let _queued: Vec<_> = (2..50)
        .map(|number| pool.submit(SHORT, || {}, done(number)).expect("room"))
        .collect();
    for _ in 0..50 {
        let (number, outcome) = told.recv_timeout(PATIENCE).expect("by the timer");
        assert_eq!(outcome, Err(Unanswered::Expired), "job {number}");
    }
    assert_eq!(pool.threads(), 2, "no thread was started for them");
    drop(gates);
    let _next = pool.submit(PATIENCE, || {}, done(99)).expect("room");
    let next = told.recv_timeout(PATIENCE);
    assert_eq!(next, Ok((99, Ok(()))), "the threads serve again");
}

#[test]
fn a_dropped_job_has_no_outcome_and_does_not_run_if_it_was_queued() {
    let pool = Pool::start(1).expect("pool");
    let (done, told) = outcomes();
    let (open, has_begun, work) = gate();
    let running = pool.submit(PATIENCE, work, done(0)).expect("room");
    has_begun.recv_timeout(PATIENCE).expect("a thread took it");
    let owned = Arc::new(());
    let own = Arc::clone(&owned);
    let queued = pool.submit(PATIENCE, move || drop(own), done(1));
    drop(queued.expect("room"));
    assert_eq!(
        Arc::strong_count(&owned),
        1,
        "its resources are freed at once"
    );
    drop((running, open));
    let _last = pool.submit(PATIENCE, || {}, done(2)).expect("room");
    assert_eq!(told.recv_timeout(PATIENCE), Ok((2, Ok(()))));
    drop((pool, done));
    let rest = told.recv_timeout(PATIENCE);
    assert_eq!(rest, Err(RecvTimeoutError::Disconnected), "no other sender");
}

#[test]
fn a_job_that_panics_reports_it_and_its_thread_serves_the_next() {
    let pool = Pool::start(1).expect("pool");
    let (done, told) = outcomes();
    let panics = || -> usize { std::panic::panic_any("on purpose") };
    let _first = pool.submit(PATIENCE, panics, done(0)).expect("room");
    assert_eq!(
        told.recv_timeout(PATIENCE),
        Ok((0, Err(Unanswered::Panicked)))
    );
    let _second = pool.submit(PATIENCE, || 7, done(1)).expect("room");
    assert_eq!(told.recv_timeout(PATIENCE), Ok((1, Ok(7))));
}

#[test]
fn dropping_a_pool_answers_what_it_leaves() {
    let pool = Pool::start(1).expect("pool");
    let (done, told) = outcomes();
    let (open, has_begun, work) = gate();
    let _running = pool.submit(PATIENCE, work, done(0)).expect("room");
    has_begun.recv_timeout(PATIENCE).expect("a thread took it");
    let _queued = pool.submit(PATIENCE, || {}, done(1)).expect("room");
    drop(pool);
    let mut left: Vec<_> = (0..2)
        .map(|_| told.recv_timeout(PATIENCE).expect("told"))
        .collect();
    left.sort_unstable_by_key(|(number, _)| *number);
    let stopped = Err(Unanswered::Stopped);
    assert_eq!(left, [(0, stopped), (1, stopped)]);
    drop(open);
}

#[test]
fn too_many_jobs_and_too_long_deadlines_are_refused() {
    let pool = Pool::start(1).expect("pool");
    let (open, has_begun, work) = gate();
    let _running = pool.submit(PATIENCE, work, |_| {}).expect("room");
    has_begun.recv_timeout(PATIENCE).expect("a thread took it");
    let submit = || pool.submit(PATIENCE, || {}, |_| {});
    let mut pending: Vec<_> = (1..JOBS_MAX).map(|_| submit().expect("room")).collect();
    let limit = JOBS_MAX as u64;
    let refused = submit().expect_err("full");
    assert!(matches!(refused, Cause::LimitReached { limit: found, .. } if found == limit));
    pending.pop();
    pending.push(submit().expect("dropping one made room"));
    let long = DEADLINE_MAX + Duration::from_secs(1);
    let refused = pool.submit(long, || {}, |_| {}).expect_err("too long");
    assert!(matches!(refused, Cause::InvalidArgument { .. }));
    drop(open);
}

#[test]
fn a_job_is_refused_if_no_thread_can_be_started_even_while_others_try_the_same() {
    const CALLERS: usize = 4;
    let never = |_: &str, _: Box<dyn FnOnce() + Send>| {
        // Long enough for the callers to overlap.
        std::thread::sleep(SHORT);
        Err(Cause::Os {
            call: "starting a thread",
            errno: 11,
        })
    };
    let shared = threads::start_with(CALLERS, never).expect("its timer");
    let pool = Pool { shared };
    std::thread::scope(|scope| {
        let submit = || pool.submit(PATIENCE, || {}, |_| {});
        let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(submit)).collect();
        for caller in callers {
            let refused = caller.join().expect("no panic");
            assert!(
                matches!(refused, Err(Cause::Os { errno: 11, .. })),
                "{refused:?}"
            );
        }
    });
    assert_eq!(pool.threads(), 0);
}

/// Panics when dropped.
struct PanicsAtItsEnd;

impl Drop for PanicsAtItsEnd {
    fn drop(&mut self) {
        std::panic::panic_any("on purpose");
    }
}

#[test]
fn deadlines_are_kept_after_a_job_that_panics_when_it_is_dropped_unrun() {
    let pool = Pool::start(1).expect("pool");
    let (done, told) = outcomes();
    let (open, has_begun, work) = gate();
    let _running = pool.submit(PATIENCE, work, done(0)).expect("room");
    has_begun.recv_timeout(PATIENCE).expect("a thread took it");
    let bad = PanicsAtItsEnd;
    let pending = [
        pool.submit(SHORT, move || drop(bad), done(1)),
        pool.submit(SHORT * 2, || {}, done(2)),
    ];
    for number in [1, 2] {
        let late = Err(Unanswered::Expired);
        assert_eq!(told.recv_timeout(PATIENCE), Ok((number, late)));
    }
    drop((open, pending));
}

#[test]
fn a_completion_may_look_up_the_next_name_at_once() {
    let pool = Arc::new(Pool::start(1).expect("pool"));
    let (done, told) = outcomes();
    let (again, next) = (Arc::clone(&pool), done(1));
    let (keep, kept) = channel();
    let first = pool.submit(
        PATIENCE,
        || {},
        move |_: Result<(), _>| {
            let _ = keep.send(again.submit(PATIENCE, || {}, next));
        },
    );
    assert_eq!(told.recv_timeout(PATIENCE), Ok((1, Ok(()))));
    drop((first, kept));
}
