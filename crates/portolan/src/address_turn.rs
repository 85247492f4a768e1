//! Resolves an address in turns of limited length, so that a lost question is asked again before the deadline.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portolan_provider::Result;
use portolan_provider::error::errno;

use crate::cm::{CmId, Event};
use crate::deadline;

/// Longest time that the provider gets for one turn. If a neighbour's answer is lost or arrives too early (as on a
/// veth pair), Linux tries again only when that time is over.
const TURN_MAX: Duration = Duration::from_secs(1);

/// Starts a turn. Retries until the deadline if the processes that share the port do not answer: their coordinator is
/// stopped, or the next one is not ready yet.
///
/// # Errors
/// As for [`CmId::resolve_addr`].
pub(crate) fn start(
    id: &CmId,
    source: Option<SocketAddr>,
    destination: SocketAddr,
    deadline: Instant,
) -> Result<()> {
    loop {
        // The provider rejects a zero timeout.
        let left = deadline::left(deadline).max(Duration::from_millis(1));
        let started = id.resolve_addr(source, destination, left.min(TURN_MAX));
        match started {
            Err(error) if error.errno() == errno::ETIMEDOUT && has_time(deadline) => {}
            started => return started,
        }
    }
}

/// Whether the event only reports the end of a turn, and time is left before the deadline.
pub(crate) fn is_over(event: &Event, deadline: Instant) -> bool {
    event.status() == -errno::ETIMEDOUT && has_time(deadline)
}

fn has_time(deadline: Instant) -> bool {
    !deadline::left(deadline).is_zero()
}
