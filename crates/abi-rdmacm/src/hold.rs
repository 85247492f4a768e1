//! Requests held back from a program that has room for one (`PORTOLAN_HOLD_REQUESTS_MS`).
//!
//! rping of rdma-core before 57 takes events in one thread and leaves each request in one variable for another thread. A
//! second request overwrites the first. With this setting `rdma_get_cm_event` waits before the next event until the program
//! has made a call with the id of the last request, for as many milliseconds at most. Without it nothing waits.

use portolan_threads::lock::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

use crate::layout::{CmId, EventChannel};

const SETTING: &str = "PORTOLAN_HOLD_REQUESTS_MS";
/// Longest hold: a program that never calls for a request still gets the next.
const MOST: Duration = Duration::from_secs(60);

/// Requests that were given to the program, by addresses.
#[derive(Default)]
struct Given {
    /// The id of the last request of a channel.
    last: HashMap<usize, usize>,
    /// Ids with which the program has made no call.
    fresh: HashSet<usize>,
}

static GIVEN: LazyLock<Mutex<Given>> = LazyLock::new(Mutex::default);
/// An id is not fresh any more; with the lock of [`GIVEN`].
static CALLED: Condvar = Condvar::new();

/// How long a request is held; `None` unless the setting is a number of milliseconds.
fn limit() -> Option<Duration> {
    static LIMIT: OnceLock<Option<Duration>> = OnceLock::new();
    *LIMIT.get_or_init(|| std::env::var(SETTING).ok().and_then(|text| parse(&text)))
}

fn parse(text: &str) -> Option<Duration> {
    let limit = Duration::from_millis(text.trim().parse().ok()?);
    (!limit.is_zero()).then_some(limit.min(MOST))
}

/// A request is about to be given to the program.
pub(crate) fn give(channel: *mut EventChannel, child: *mut CmId) {
    if limit().is_some() {
        let mut given = GIVEN.lock();
        given.fresh.insert(child.addr());
        given.last.insert(channel.addr(), child.addr());
    }
}

/// The program makes a call with an id.
pub(crate) fn note_call(id: *mut CmId) {
    if limit().is_some() && GIVEN.lock().fresh.remove(&id.addr()) {
        CALLED.notify_all();
    }
}

/// Waits until the program has made a call with the id of the channel's last request.
pub(crate) fn wait(channel: *mut EventChannel) {
    let Some(limit) = limit() else { return };
    let mut given = GIVEN.lock();
    let Some(child) = given.last.remove(&channel.addr()) else {
        return;
    };
    let until = Instant::now() + limit;
    while given.fresh.contains(&child) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            given.fresh.remove(&child);
            break;
        }
        (given, _) = CALLED.wait_timeout(given, left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_of_milliseconds_holds_requests_and_no_longer_than_a_minute() {
        assert_eq!(parse("250"), Some(Duration::from_millis(250)));
        assert_eq!(parse("9999999"), Some(MOST));
        for text in ["", "0", "-1", "yes", "2.5"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
