//! Queries many GIDs with bounded concurrency.

use std::collections::HashMap;
use std::sync::mpsc::channel;
use std::time::Duration;

use portolan_wire::addr::Gid;

use super::{Port, Reached, Unreachable, ask};

/// Maximum number of concurrent queries.
pub const AT_ONCE_MAX: usize = 1024;

/// Queries each GID from its port, `at_once` (1 to [`AT_ONCE_MAX`]) at a time, each within `within`
/// of its start. Blocks until all have ended. `tell` gets the index and outcome of each query, in
/// the order of completion.
///
/// ```
/// use portolan::reach::{Port, reach_many};
/// use std::net::Ipv4Addr;
/// use std::time::Duration;
///
/// # let provider = portolan::provider::software_provider()?;
/// # let (device, _) = provider.device_of(Ipv4Addr::LOCALHOST.into())?;
/// // `device` has the address 127.0.0.1.
/// let port = Port::of(&*device, 1).expect("a loopback interface is up");
/// let questions = [Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST].map(|ip| (&port, ip.into()));
/// let mut reached = [None; 2];
/// reach_many(questions, Duration::from_secs(5), 64, |index, outcome| {
///     reached[index] = Some(outcome.is_ok());
/// });
/// assert_eq!(reached, [Some(true), Some(false)]);
/// # Ok::<(), portolan::Error>(())
/// ```
pub fn reach_many<'a>(
    questions: impl IntoIterator<Item = (&'a Port, Gid)>,
    within: Duration,
    at_once: usize,
    mut tell: impl FnMut(usize, Result<Reached, Unreachable>),
) {
    let (send, outcomes) = channel();
    let at_once = at_once.clamp(1, AT_ONCE_MAX);
    let mut waiting = questions.into_iter().enumerate();
    let mut under_way = HashMap::new();
    loop {
        while under_way.len() < at_once
            && let Some((place, (port, gid))) = waiting.next()
        {
            let send = send.clone();
            let done = Box::new(move |outcome| {
                let _ = send.send((place, outcome));
            });
            under_way.insert(place, ask(port, gid, within, done));
        }
        if under_way.is_empty() {
            return;
        }
        // Cannot fail: each query ends within its time, and this end holds a sender.
        let Ok((place, outcome)) = outcomes.recv() else {
            return;
        };
        under_way.remove(&place);
        tell(place, outcome);
    }
}
