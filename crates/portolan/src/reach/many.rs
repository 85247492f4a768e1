//! Many GIDs at once, a bounded number of them under way.

use std::collections::HashMap;
use std::sync::mpsc::channel;
use std::time::Duration;

use portolan_wire::addr::Gid;

use super::{Port, Reached, Unreachable, ask};

/// Questions under way at a time, at most.
pub const AT_ONCE_MAX: usize = 1024;

/// Asks for each GID from the port beside it, `at_once` (1 to [`AT_ONCE_MAX`]) at a time, each within
/// `within` from when its turn comes; blocks until all are told. `tell` gets the place of each question and
/// its outcome, in the order in which answers come.
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
        // Each question has its answer within its time, and this end holds a sender.
        let Ok((place, outcome)) = outcomes.recv() else {
            return;
        };
        under_way.remove(&place);
        tell(place, outcome);
    }
}
