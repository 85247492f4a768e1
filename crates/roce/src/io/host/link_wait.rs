//! The first message of an unreliable connection (UC) to another process of this host waits a moment for the link through memory.
//!
//! A packet in a ring could overtake an earlier one in the socket, and UC has no acknowledgements. So a queue pair that has
//! sent by the socket stays with it. The link is usually up about a millisecond after both ends are connected.

use std::time::Duration;

use portolan_provider::verbs::QpType;

use crate::io::host::Host;
use crate::io::host::queue_pair::LockedQp;
use crate::io::net::shm::links::LINK_WAIT_MAX;
use crate::io::polling::progress::LOOK_INTERVAL;

impl Host {
    /// Whether a queue pair must not send yet, because its link is being created. It is settled again when the link is up or
    /// refused, or else by its timer.
    #[inline]
    pub(super) fn waits_for_link(&self, state: &mut LockedQp, now: Duration) -> bool {
        if state.engine.qp_type() != QpType::Uc {
            return false;
        }
        state.link_wait.next_look = self.next_look(state, now);
        state.link_wait.next_look.is_some()
    }

    fn next_look(&self, state: &mut LockedQp, now: Duration) -> Option<Duration> {
        let (Some(links), Some(peer), None) = (&self.links, state.peer, &state.link) else {
            return None;
        };
        if !state.engine.is_about_to_start() {
            return None;
        }
        let due = *state.link_wait.due.get_or_insert(now + LINK_WAIT_MAX);
        let waits = now < due && !links.is_refused(peer);
        if waits {
            links.wait(state.engine.qpn());
        }
        waits.then_some(due.min(now + LOOK_INTERVAL))
    }
}
