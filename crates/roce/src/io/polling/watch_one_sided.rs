//! When the progress thread reads the sockets although a program polls.
//!
//! A poller says that it is here, and not that it goes: it may take its completion and from then on look at its
//! memory only, until the peer has written there (`ib_write_lat` of perftest does). If the thread then yielded for as
//! long as a visit counts, each such write would be late by that. So where the thread, on one of its looks, finds that
//! a poller is away and that peers' writes, reads or atomics wait, it continues
//! to watch the sockets beside the pollers, until it has woken many times without need.

/// Wakings without such a request that end it. A program of that kind is woken for once by an
/// acknowledgement, which it polls for, and once by the peer's request.
const VAIN_MAX: u32 = 64;

/// Whether the thread watches beside pollers.
#[derive(Debug, Default)]
pub(crate) struct WatchOneSided {
    /// How many more fruitless wake-ups are allowed.
    left: u32,
}

impl WatchOneSided {
    /// Whether it is kept.
    pub(crate) fn is_kept(&self) -> bool {
        self.left > 0
    }

    /// The thread has slept, `yielding` to pollers or not, and `found` requests of peers that no completion
    /// tells of.
    pub(crate) fn woken(&mut self, yielding: bool, found: bool) {
        self.left = match found && (yielding || self.is_kept()) {
            true => VAIN_MAX,
            false => self.left.saturating_sub(1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watching_begins_with_a_request_that_waited_while_the_thread_yielded_and_ends_without_requests()
     {
        let mut watch = WatchOneSided::default();
        watch.woken(false, true);
        assert!(
            !watch.is_kept(),
            "without pollers this thread watches anyway"
        );
        watch.woken(true, false);
        assert!(!watch.is_kept(), "pollers handle what they wait for");
        watch.woken(true, true);
        for _ in 0..1000 {
            watch.woken(false, false);
            assert!(watch.is_kept());
            watch.woken(false, true);
        }
        for _ in 0..VAIN_MAX {
            assert!(watch.is_kept());
            watch.woken(false, false);
        }
        assert!(!watch.is_kept());
    }
}
