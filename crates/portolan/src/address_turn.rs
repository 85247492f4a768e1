//! Resolving an address turn by turn: a question that is lost on the way is asked again within the deadline.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portolan_provider::Result;
use portolan_provider::error::errno;

use crate::cm::{CmId, Event};
use crate::deadline;

/// How long the provider is given to resolve an address at a time, of all the time there is. When a neighbour's
/// answer was lost, or came before the question was noted (as it does on a veth pair), Linux looks again only
/// when that time is over.
const TURN_MAX: Duration = Duration::from_secs(1);

/// Starts a turn. Starts again, before the deadline, if the processes that share the port gave no
/// answer: their coordinator was stopped, or the next one is not ready yet.
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

/// Whether the event that resolution failed tells only that the time of a turn was over, and there is more.
pub(crate) fn is_over(event: &Event, deadline: Instant) -> bool {
    event.status() == -errno::ETIMEDOUT && has_time(deadline)
}

fn has_time(deadline: Instant) -> bool {
    !deadline::left(deadline).is_zero()
}
