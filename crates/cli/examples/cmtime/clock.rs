//! When each step of each connection began and ended.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// A step of a connection's life, in their order; numbered so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Step {
    CreateId,
    Bind,
    ResolveAddress,
    ResolveRoute,
    CreateQueuePair,
    Connect,
    /// With the end of the queue pair.
    Disconnect,
    Destroy,
}

/// How many there are.
const STEPS: usize = 8;

impl Step {
    /// All, in order.
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

    /// As cmtime names it.
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

/// The times of so many connections. One thread begins steps, another one ends them.
#[derive(Debug)]
pub(super) struct Clock {
    epoch: Instant,
    connections: Vec<[Span; STEPS]>,
    whole: [Span; STEPS],
    ended: [AtomicU32; STEPS],
}

/// Nanoseconds since the clock's epoch; 0 is never.
#[derive(Debug, Default)]
struct Span {
    began: AtomicU64,
    ended: AtomicU64,
}

/// What a step took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Taken {
    pub(super) step: Step,
    /// From the first connection's beginning to the last one's end.
    pub(super) total_us: f64,
    /// The longest of a single connection.
    pub(super) max_us: f64,
    /// The shortest of a single connection.
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

    /// The step has ended for a connection; `false`, and not counted, if it has not begun or had ended before.
    pub(super) fn end(&self, step: Step, connection: usize) -> bool {
        let spans = self.connections.get(connection);
        let is_ended = spans.is_some_and(|spans| spans[step as usize].end(self.epoch));
        if is_ended {
            self.ended[step as usize].fetch_add(1, Ordering::Release);
        }
        is_ended
    }

    /// For how many connections the step has ended.
    pub(super) fn ended(&self, step: Step) -> u32 {
        self.ended[step as usize].load(Ordering::Acquire)
    }

    /// What the steps took that were taken.
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

    /// Whether that is the end of what began.
    fn end(&self, epoch: Instant) -> bool {
        let has_begun = self.began.load(Ordering::Acquire) > 0;
        has_begun
            && self
                .ended
                .compare_exchange(0, now_ns(epoch), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// `None` if it has not ended.
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
    fn a_step_that_was_not_taken_is_not_told() {
        let clock = Clock::new(2);
        clock.begin_all(Step::Connect);
        for connection in 0..2 {
            clock.begin(Step::Connect, connection);
            assert!(clock.end(Step::Connect, connection));
        }
        clock.end_all(Step::Connect);
        // Begun and never ended.
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
    fn a_connection_that_is_none_of_the_clocks_is_not_counted() {
        let clock = Clock::new(1);
        clock.begin(Step::Connect, 1);
        assert!(!clock.end(Step::Connect, 1));
        assert_eq!(clock.ended(Step::Connect), 0);
    }

    #[test]
    fn a_step_that_has_not_begun_or_has_ended_before_is_not_counted() {
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
