//! The first messages of an unreliable connection (UC) to another process of this host wait a moment for the link through memory.
//!
//! A packet in a ring could overtake an earlier one in the socket, and nobody acknowledges those of UC. So a queue pair that has
//! sent by the socket stays with it. The link is usually up about a millisecond after both ends are connected.

use std::time::Duration;

use portolan_provider::verbs::QpType;
use portolan_wire::Qpn;

use crate::io::host::Host;
use crate::io::host::queue_pair::LockedQp;

/// Longer than two processes take to create their link.
const LINK_WAIT_MAX: Duration = Duration::from_millis(10);

/// What a queue pair knows about its wait.
#[derive(Debug, Default)]
pub(crate) struct LinkWait {
    /// The end of its wait. Set when it first waits.
    due: Option<Duration>,
    /// It is in the list of those that wait.
    is_noted: bool,
}

impl Host {
    /// Whether a queue pair must not send yet, because its link is being created.
    #[inline]
    pub(super) fn waits_for_link(&self, state: &mut LockedQp, now: Duration) -> bool {
        let (Some(links), Some(peer), None) = (&self.links, state.peer, &state.link) else {
            return false;
        };
        let may_wait = state.engine.qp_type() == QpType::Uc
            && state.engine.has_sends()
            && state.engine.can_change_way();
        if !may_wait || links.is_refused(peer) {
            return false;
        }
        let wait = &mut state.link_wait;
        let due = *wait.due.get_or_insert(now + LINK_WAIT_MAX);
        if now >= due {
            return false;
        }
        if !std::mem::replace(&mut wait.is_noted, true) {
            self.awaiting_link.note(state.engine.qpn());
        }
        self.progress.wake_before(due);
        true
    }

    /// Looks again at all queue pairs that wait for their links. The caller holds no lock.
    #[inline]
    pub(crate) fn look_for_links(&self) {
        if self.awaiting_link.any() {
            self.look_for_each_link();
        }
    }

    #[cold]
    fn look_for_each_link(&self) {
        // Those that go on waiting are noted again, so take each once.
        let waiting: Vec<Qpn> = std::iter::from_fn(|| self.awaiting_link.take()).collect();
        for qpn in waiting {
            if let Some(qp) = self.qps.find(qpn) {
                let mut state = qp.lock();
                state.link_wait.is_noted = false;
                if !state.closed {
                    self.settle(&qp, &mut state, self.clock.recent());
                }
            }
        }
    }
}
