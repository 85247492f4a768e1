//! A look at the rings and sockets by the progress thread, which polls for one-sided requests before it sleeps.

use std::time::Duration;

use crate::io::host::Host;
use crate::io::host::drive::{Answer, Taken};
use crate::io::polling::busy_poll::Look;
use crate::io::polling::clock::{Moment, as_nanos};

/// While it lives, the writers of the rings do not wake the progress thread, because that thread reads them all the time.
pub(crate) struct Awake<'a>(&'a Host);

impl<'a> Awake<'a> {
    fn new(host: &'a Host) -> Self {
        if let Some(links) = &host.links {
            host.progress.polls_rings(links);
        }
        Self(host)
    }
}

impl Drop for Awake<'_> {
    /// The progress thread looks at each ring once more after this, and then sleeps.
    fn drop(&mut self) {
        if let Some(links) = &self.0.links {
            self.0.progress.polled_rings(links);
        }
    }
}

impl Host {
    /// Looks for packets, and handles them. The first look stores in `awake` what keeps writers from waking this thread.
    pub(crate) fn look_for_one_sided<'a>(
        &'a self,
        now: Duration,
        awake: &mut Option<Awake<'a>>,
    ) -> Look {
        let has_other_work = self.progress.is_wanted(now)
            || self.deadlines.next_ns() <= as_nanos(now)
            || self.copying.any()
            || self.comm_est.any();
        if has_other_work {
            return Look::Enough;
        }
        awake.get_or_insert_with(|| Awake::new(self));
        // If a poller has the lock, it reads the packets.
        let Some(mut receiver) = self.receiver.try_lock() else {
            return Look::Enough;
        };
        let now = Moment::from(now);
        let taken = self.read_rings_and_due_sockets(&mut receiver, Answer::Now, now);
        drop(receiver);
        // This thread makes the link, too.
        let makes_link = taken.from_host_by_socket && self.make_way_for_link(now.ns);
        match taken {
            Taken {
                one_sided: true, ..
            } if makes_link => Look::LastOneSided,
            Taken {
                one_sided: true, ..
            } => Look::OneSided,
            Taken { datagrams: 0, .. } => Look::Nothing,
            Taken { .. } => Look::Enough,
        }
    }
}
