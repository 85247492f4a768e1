//! Resolving an address turn by turn: a question that is lost on the way is asked again within the deadline.

use std::time::{Duration, Instant};

use portolan_provider::error::errno;

use crate::cm::Event;
use crate::deadline;

/// How long the provider is given to resolve an address at a time, of all the time there is. When a neighbour's
/// answer was lost, or came before the question was noted (as it does on a veth pair), Linux looks again only
/// when that time is over.
const TURN_MAX: Duration = Duration::from_secs(1);

/// How long a turn takes at most, of what is left.
pub(crate) fn within(left: Duration) -> Duration {
    left.min(TURN_MAX)
}

/// Whether the event that resolution failed tells only that the time of a turn was over, and there is more.
pub(crate) fn is_over(event: &Event, deadline: Instant) -> bool {
    event.status() == -errno::ETIMEDOUT && !deadline::left(deadline).is_zero()
}
