//! Limits on the number of objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use portolan_provider::{Cause, Error, Result, Step};

/// Counts the objects of one kind up to a limit.
#[derive(Debug)]
pub(crate) struct Gauge {
    what: &'static str,
    limit: u32,
    used: AtomicU32,
}

impl Gauge {
    pub(crate) fn new(what: &'static str, limit: u32) -> Arc<Self> {
        Arc::new(Self {
            what,
            limit,
            used: AtomicU32::new(0),
        })
    }

    pub(crate) fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// Counts one more object until the permit is dropped.
    pub(crate) fn take(self: &Arc<Self>, step: Step) -> Result<Permit> {
        let more = |used| (used < self.limit).then_some(used + 1);
        match self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
        {
            Ok(_) => Ok(Permit(Arc::clone(self))),
            Err(_) => {
                let (what, limit) = (self.what, u64::from(self.limit));
                Err(Error::new(step, Cause::LimitReached { what, limit }))
            }
        }
    }
}

/// One object counted by a [`Gauge`].
#[derive(Debug)]
pub(crate) struct Permit(Arc<Gauge>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_an_error_and_a_dropped_object_makes_room() {
        let gauge = Gauge::new("things", 2);
        let first = gauge.take(Step::CreateQp).unwrap();
        let _second = gauge.take(Step::CreateQp).unwrap();
        let error = gauge.take(Step::CreateQp).unwrap_err();
        assert_eq!(
            error.cause,
            Cause::LimitReached {
                what: "things",
                limit: 2
            }
        );
        assert_eq!(gauge.used(), 2);
        drop(first);
        assert_eq!(gauge.used(), 1);
        gauge.take(Step::CreateQp).unwrap();
    }
}
