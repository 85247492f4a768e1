//! Records when each step of each connection began and ended.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// A step of a connection's life. The numbers follow the order of the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Step {
    CreateId,
    Bind,
    ResolveAddress,
    ResolveRoute,
    CreateQueuePair,
    Connect,
    /// Includes the destruction of the queue pair.
    Disconnect,
    Destroy,
}

/// Number of steps.
const STEPS: usize = 8;

impl Step {
    /// All steps, in order.
    pub(super) const ALL: [Step; STEPS] = [
        Step::CreateId,
        Step::Bind,
        Step::ResolveAddress,
        Step::ResolveRoute,
        Step::CreateQueuePair,
        Step::Connect,
        Step::Disconnect,
        Step::Destroy,
    ];

    /// cmtime's name for it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Step::CreateId => "create id",
            Step::Bind => "bind addr",
            Step::ResolveAddress => "resolve addr",
            Step::ResolveRoute => "resolve route",
            Step::CreateQueuePair => "create qp",
            Step::Connect => "connect",
            Step::Disconnect => "disconnect",
            Step::Destroy => "destroy",
        }
    }
}

/// The times of a number of connections. One thread begins steps, another ends them.
#[derive(Debug)]
pub(super) struct Clock {
    epoch: Instant,
    connections: Vec<[Span; STEPS]>,
    whole: [Span; STEPS],
    ended: [AtomicU32; STEPS],
}

/// Nanoseconds since the clock's epoch; 0 means never.
#[derive(Debug, Default)]
struct Span {
    began: AtomicU64,
    ended: AtomicU64,
}

/// The measured times of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Taken {
    pub(super) step: Step,
    /// Time from the beginning of the first connection's step to the end of the last one's.
    pub(super) total_us: f64,
    /// The longest time of one connection.
    pub(super) max_us: f64,
    /// The shortest time of one connection.
    pub(super) min_us: f64,
}

impl Clock {
    pub(super) fn new(connections: u32) -> Clock {
        Clock {
            epoch: Instant::now(),
            connections: (0..connections).map(|_| Default::default()).collect(),
            whole: Default::default(),
            ended: Default::default(),
        }
    }

    /// The step begins for all connections.
    pub(super) fn begin_all(&self, step: Step) {
        self.whole[step as usize].begin(self.epoch);
    }

    /// The step has ended for all connections.
    pub(super) fn end_all(&self, step: Step) {
        self.whole[step as usize].end(self.epoch);
    }

    /// The step begins for a connection.
    pub(super) fn begin(&self, step: Step, connection: usize) {
        if let Some(spans) = self.connections.get(connection) {
            spans[step as usize].begin(self.epoch);
        }
    }

    /// The step has ended for a connection. Returns `false` and ignores it if the step has not begun or has
    /// already ended.
    pub(super) fn end(&self, step: Step, connection: usize) -> bool {
        let spans = self.connections.get(connection);
        let is_ended = spans.is_some_and(|spans| spans[step as usize].end(self.epoch));
        if is_ended {
            self.ended[step as usize].fetch_add(1, Ordering::Release);
        }
        is_ended
    }

    /// Number of connections for which the step has ended.
    pub(super) fn ended(&self, step: Step) -> u32 {
        self.ended[step as usize].load(Ordering::Acquire)
    }

    /// The times of the steps that were taken.
    pub(super) fn taken(&self) -> Vec<Taken> {
        let steps = Step::ALL.into_iter();
        steps.filter_map(|step| self.taken_by(step)).collect()
    }

    fn taken_by(&self, step: Step) -> Option<Taken> {
        let total_us = self.whole[step as usize].us()?;
        let each = self.connections.iter();
        let each = each.filter_map(|spans| spans[step as usize].us());
        let (mut max_us, mut min_us) = (0.0_f64, f64::INFINITY);
        for us in each {
            (max_us, min_us) = (max_us.max(us), min_us.min(us));
        }
        Some(Taken {
            step,
            total_us,
            max_us,
            min_us: min_us.min(max_us),
        })
    }
}

impl Span {
    fn begin(&self, epoch: Instant) {
        self.began.store(now_ns(epoch), Ordering::Release);
    }

    /// Whether this ends a span that has begun.
    fn end(&self, epoch: Instant) -> bool {
        let has_begun = self.began.load(Ordering::Acquire) > 0;
        has_begun
            && self
                .ended
                .compare_exchange(0, now_ns(epoch), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Duration; `None` if it has not ended.
    fn us(&self) -> Option<f64> {
        let began = self.began.load(Ordering::Relaxed);
        let ended = self.ended.load(Ordering::Relaxed);
        let ns = ended.checked_sub(began).filter(|_| began > 0)?;
        Some(ns as f64 / 1e3)
    }
}

fn now_ns(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_nanos()).map_or(u64::MAX, |ns| ns.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_was_not_taken_has_no_times() {
        let clock = Clock::new(2);
        clock.begin_all(Step::Connect);
        for connection in 0..2 {
            clock.begin(Step::Connect, connection);
            assert!(clock.end(Step::Connect, connection));
        }
        clock.end_all(Step::Connect);
        // Begun but not ended.
        clock.begin_all(Step::Disconnect);
        let taken = clock.taken();
        assert_eq!(taken.len(), 1);
        assert_eq!(taken[0].step, Step::Connect);
        assert!(taken[0].min_us <= taken[0].max_us && taken[0].max_us <= taken[0].total_us);
        assert_eq!(clock.ended(Step::Connect), 2);
        assert_eq!(clock.ended(Step::Disconnect), 0);
    }

    #[test]
    fn steps_are_numbered_in_their_order() {
        for (number, step) in Step::ALL.into_iter().enumerate() {
            assert_eq!(step as usize, number);
        }
    }

    #[test]
    fn an_unknown_connection_is_not_counted() {
        let clock = Clock::new(1);
        clock.begin(Step::Connect, 1);
        assert!(!clock.end(Step::Connect, 1));
        assert_eq!(clock.ended(Step::Connect), 0);
    }

    #[test]
    fn the_end_of_a_step_counts_only_once_and_only_after_its_beginning() {
        let clock = Clock::new(2);
        clock.begin(Step::Connect, 0);
        assert!(!clock.end(Step::Connect, 1), "of another connection");
        assert!(!clock.end(Step::Disconnect, 0), "another step");
        assert!(clock.end(Step::Connect, 0));
        assert!(!clock.end(Step::Connect, 0), "twice");
        assert_eq!(clock.ended(Step::Connect), 1);
        assert_eq!(clock.ended(Step::Disconnect), 0);
    }
}
