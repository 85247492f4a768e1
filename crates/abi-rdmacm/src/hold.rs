//! Holds requests back from programs that have room for only one (`PORTOLAN_HOLD_REQUESTS_MS`).
//!
//! rping of rdma-core before 57 takes events in one thread and leaves each request in one variable for another
//! thread, so a second request overwrites the first. With this setting, `rdma_get_cm_event` waits before the next
//! event until the program has called a function with the id of the last request, at most for that many milliseconds.
//! Without the setting nothing waits.

use once_cell::race::OnceBox;
use portolan_threads::lock::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::fork::Known;
use crate::layout::{CmId, EventChannel};

const SETTING: &str = "PORTOLAN_HOLD_REQUESTS_MS";
/// Maximum of the setting. A program that never makes a call for a request still gets the next one.
const MOST: Duration = Duration::from_secs(60);

/// The requests passed to the program, and the ids that it has not used yet.
#[derive(Default)]
struct Holding {
    given: Mutex<Given>,
    /// Signalled when the program uses an id for the first time.
    called: Condvar,
}

/// Requests passed to the program, by address.
#[derive(Default)]
struct Given {
    /// The id of the last request of each channel.
    last: HashMap<usize, usize>,
    /// Ids that the program has not used yet.
    fresh: HashSet<usize>,
}

static HOLDING: Known<Holding> = Known::new();

/// How long a request is held. `None` unless the setting is a number of milliseconds.
fn limit() -> Option<Duration> {
    static LIMIT: OnceBox<Option<Duration>> = OnceBox::new();
    let find = || std::env::var(SETTING).ok().and_then(|text| parse(&text));
    *LIMIT.get_or_init(|| Box::new(find()))
}

fn parse(text: &str) -> Option<Duration> {
    let limit = Duration::from_millis(text.trim().parse().ok()?);
    (!limit.is_zero()).then_some(limit.min(MOST))
}

/// Call this before passing a request to the program.
pub(crate) fn give(channel: *mut EventChannel, child: *mut CmId) {
    if limit().is_some() {
        let mut given = HOLDING.get().given.lock();
        given.fresh.insert(child.addr());
        given.last.insert(channel.addr(), child.addr());
    }
}

/// Call this when the program calls a function with an id.
pub(crate) fn note_call(id: *mut CmId) {
    if limit().is_none() {
        return;
    }
    let holding = HOLDING.get();
    if holding.given.lock().fresh.remove(&id.addr()) {
        holding.called.notify_all();
    }
}

/// Waits until the program has used the id of the channel's last request.
pub(crate) fn wait(channel: *mut EventChannel) {
    let Some(limit) = limit() else { return };
    let holding = HOLDING.get();
    let mut given = holding.given.lock();
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
        (given, _) = holding.called.wait_timeout(given, left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_of_milliseconds_up_to_a_minute_holds_requests() {
        assert_eq!(parse("250"), Some(Duration::from_millis(250)));
        assert_eq!(parse("9999999"), Some(MOST));
        for text in ["", "0", "-1", "yes", "2.5"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
