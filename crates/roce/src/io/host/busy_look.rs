//! A look at the rings and sockets by the progress thread, which polls for one-sided requests before it sleeps.

use std::time::Duration;

use crate::io::host::Host;
use crate::io::host::drive::{Answer, Taken};
use crate::io::net::shm::head_page::HeadPage;
use crate::io::polling::busy_poll::Look;
use crate::io::polling::clock::as_nanos;

/// While it lives, the writers of the rings do not wake the progress thread, because that thread reads them all the time.
pub(crate) struct Awake<'a>(&'a HeadPage);

impl Drop for Awake<'_> {
    /// The progress thread looks at each ring once more after this, and then sleeps.
    fn drop(&mut self) {
        self.0.asleep().announce();
    }
}

impl Host {
    /// Called by the progress thread, which watches the rings and is about to poll. `None` if it has no links.
    pub(crate) fn stay_awake(&self) -> Option<Awake<'_>> {
        let head_page = self.links.as_ref()?.head_page();
        head_page.asleep().end();
        Some(Awake(head_page))
    }

    /// Looks for a one-sided request and executes it.
    pub(crate) fn look_for_one_sided(&self, now: Duration) -> Look {
        let has_other_work = self.progress.is_wanted(now)
            || self.deadlines.next_ns() <= as_nanos(now)
            || self.copying.any()
            || self.comm_est.any();
        if has_other_work {
            return Look::Enough;
        }
        // If a poller has the lock, it reads the packets.
        let Some(mut receiver) = self.receiver.try_lock() else {
            return Look::Enough;
        };
        match self.read_rings_and_due_sockets(&mut receiver, Answer::Now, now) {
            Taken {
                one_sided: true, ..
            } => Look::OneSided,
            Taken { datagrams: 0, .. } => Look::Nothing,
            Taken { .. } => Look::Enough,
        }
    }
}
