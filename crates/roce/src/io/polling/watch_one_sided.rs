//! When the progress thread reads the sockets although a program polls.
//!
//! A poller announces its visits, but not that it stops polling. It may take its completion and then only watch its
//! memory until the peer has written there (`ib_write_lat` of perftest does). If the progress thread yielded for as
//! long as a visit counts, each such write would be that late.
//!
//! So if the thread finds no active poller while one-sided requests wait, it watches the sockets beside the pollers,
//! until it has woken many times without need.

/// Wake-ups without such a request after which the thread yields again. In such a program each request comes with one
/// needless wake-up: an acknowledgement, which the program polls for.
const NEEDLESS_MAX: u32 = 64;

/// Whether the thread watches beside pollers.
#[derive(Debug, Default)]
pub(crate) struct WatchOneSided {
    /// Number of further wake-ups without need.
    left: u32,
}

impl WatchOneSided {
    /// Whether the thread watches beside pollers.
    pub(crate) fn is_kept(&self) -> bool {
        self.left > 0
    }

    /// Called after the thread has slept. `yielding`: it left the sockets to pollers. `found`: one-sided requests had
    /// arrived.
    pub(crate) fn woken(&mut self, yielding: bool, found: bool) {
        self.left = match found && (yielding || self.is_kept()) {
            true => NEEDLESS_MAX,
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
        for _ in 0..NEEDLESS_MAX {
            assert!(watch.is_kept());
            watch.woken(false, false);
        }
        assert!(!watch.is_kept());
    }
}
