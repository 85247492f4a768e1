//! The jobs of a pool, ordered by submission and by deadline. Pure; the time is an argument.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use portolan_provider::Cause;

/// A job for a thread: its ticket and its work.
pub(super) type Work<W> = (u64, W);

/// Jobs by ticket. Tickets increase, so their order is that of submission.
#[derive(Debug)]
pub(super) struct Jobs<W, D> {
    next_ticket: u64,
    /// Work that no thread has taken.
    queued: BTreeMap<u64, W>,
    /// Deadlines and completions of the jobs, queued or running.
    pending: HashMap<u64, (Instant, D)>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// Number of jobs on threads. Cancelled and expired ones count until they return.
    running: usize,
}

impl<W, D> Jobs<W, D> {
    pub(super) fn new() -> Self {
        Self {
            next_ticket: 0,
            queued: BTreeMap::new(),
            pending: HashMap::new(),
            deadlines: BTreeSet::new(),
            running: 0,
        }
    }

    /// Adds a job and returns its ticket. At most `max` jobs may be in progress.
    pub(super) fn add(
        &mut self,
        deadline: Instant,
        max: usize,
        work: W,
        done: D,
    ) -> Result<u64, Cause> {
        if self.queued.len() + self.running >= max {
            return Err(Cause::LimitReached {
                what: "name lookups in progress",
                limit: max as u64,
            });
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.queued.insert(ticket, work);
        self.pending.insert(ticket, (deadline, done));
        self.deadlines.insert((deadline, ticket));
        Ok(ticket)
    }

    /// Takes the oldest queued work.
    pub(super) fn take_work(&mut self) -> Option<Work<W>> {
        let work = self.queued.pop_first()?;
        self.running += 1;
        Some(work)
    }

    /// Ends a job whose work has finished; returns its completion unless the job has expired or was
    /// cancelled.
    pub(super) fn finish(&mut self, ticket: u64) -> Option<D> {
        self.running = self.running.saturating_sub(1);
        self.forget(ticket)
    }

    /// Ends a job early; returns its work, if still queued, and its completion.
    pub(super) fn cancel(&mut self, ticket: u64) -> (Option<W>, Option<D>) {
        (self.queued.remove(&ticket), self.forget(ticket))
    }

    /// Takes the next expired job, with its work if still queued.
    pub(super) fn take_expired(&mut self, now: Instant) -> Option<(Option<W>, D)> {
        let (deadline, ticket) = *self.deadlines.first()?;
        if deadline > now {
            return None;
        }
        let (work, done) = self.cancel(ticket);
        done.map(|done| (work, done))
    }

    /// Takes all jobs, each with its work if still queued.
    pub(super) fn take_all(&mut self) -> Vec<(Option<W>, D)> {
        let mut queued = std::mem::take(&mut self.queued);
        self.deadlines.clear();
        let all = self.pending.drain();
        all.map(|(ticket, (_, done))| (queued.remove(&ticket), done))
            .collect()
    }

    /// The earliest deadline.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Number of queued jobs.
    pub(super) fn queued(&self) -> usize {
        self.queued.len()
    }

    fn forget(&mut self, ticket: u64) -> Option<D> {
        let (deadline, done) = self.pending.remove(&ticket)?;
        self.deadlines.remove(&(deadline, ticket));
        Some(done)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Add { lasts_ms: u64 },
        Take,
        Finish(usize),
        Cancel(u64),
        Pass { time_ms: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..50u64).prop_map(|lasts_ms| Step::Add { lasts_ms }),
            3 => Just(Step::Take),
            3 => any::<usize>().prop_map(Step::Finish),
            1 => (0..60u64).prop_map(Step::Cancel),
            2 => (0..20u64).prop_map(|time_ms| Step::Pass { time_ms }),
        ]
    }

    proptest! {
        /// Each job completes once, by its result or its deadline, or not at all after a cancel.
        #[test]
        fn every_job_is_answered_once_or_cancelled(steps in proptest::collection::vec(step(), 0..120)) {
            const MAX: usize = 16;
            let mut now = Instant::now();
            let mut jobs: Jobs<u64, u64> = Jobs::new();
            let mut running: Vec<u64> = Vec::new();
            let (mut open, mut deadlines) = (BTreeSet::new(), HashMap::new());
            for step in steps {
                match step {
                    Step::Add { lasts_ms } => {
                        let name = jobs.next_ticket;
                        let deadline = now + Duration::from_millis(lasts_ms);
                        let is_full = jobs.queued() + running.len() >= MAX;
                        let added = jobs.add(deadline, MAX, name, name);
                        prop_assert_eq!(added.is_err(), is_full);
                        if added.is_ok() {
                            open.insert(name);
                            deadlines.insert(name, deadline);
                        }
                    }
                    Step::Take => {
                        if let Some((ticket, work)) = jobs.take_work() {
                            prop_assert_eq!(ticket, work);
                            prop_assert!(open.contains(&ticket), "abandoned work is not run");
                            running.push(ticket);
                        }
                    }
                    Step::Finish(which) if !running.is_empty() => {
                        let ticket = running.swap_remove(which % running.len());
                        let told = jobs.finish(ticket);
                        prop_assert_eq!(told.is_some(), open.remove(&ticket));
                    }
                    Step::Finish(_) => {}
                    Step::Cancel(ticket) => {
                        let (_, done) = jobs.cancel(ticket);
                        prop_assert_eq!(done.is_some(), open.remove(&ticket));
                    }
                    Step::Pass { time_ms } => {
                        now += Duration::from_millis(time_ms);
                        while let Some((_, done)) = jobs.take_expired(now) {
                            prop_assert!(open.remove(&done));
                            prop_assert!(deadlines[&done] <= now);
                        }
                        let first = open.iter().map(|name| deadlines[name]).min();
                        prop_assert_eq!(jobs.next_timeout(), first);
                    }
                }
                prop_assert!(jobs.queued() + running.len() <= MAX, "bounded");
            }
            let mut left: Vec<u64> = jobs.take_all().into_iter().map(|(_, done)| done).collect();
            left.sort_unstable();
            prop_assert_eq!(left, open.into_iter().collect::<Vec<_>>());
        }
    }
}
