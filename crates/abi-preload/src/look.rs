//! Readiness of sockets.

use std::ffi::c_int;

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM, c_short};
use portolan::stream::{Direction, Ready};

use crate::connect::{Progress, advance};
use crate::listen::listener;
use crate::socket::{Kind, Socket};
use crate::wait::Waits;

/// A socket's ready events, as in poll(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) events: c_short,
    /// State for edge-triggered sets: they report again if it has changed.
    pub(crate) edge: Edge,
}

/// Counters and flags that change with every event of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edge {
    /// Of a listener, the number of streams.
    received_bytes: u64,
    blocked: [u32; 2],
    ends: c_short,
    is_writable: bool,
}

/// How the caller learns of the next change.
pub(crate) enum Next<'a> {
    /// Not at all: it soon looks again.
    Nothing,
    /// By the descriptors of [`Socket::watch`], until it drops the waits.
    Descriptor(&'a mut Vec<Waits>),
    /// By a call of the device, which the caller drives.
    Call {
        /// Also if the socket is ready.
        always: bool,
    },
}

/// What a program may ask for to be told that it can write.
const WRITES: c_short = POLLOUT | POLLWRNORM;
/// The other names of `POLLIN` and `POLLOUT`: a stream has only ordinary data.
const SYNONYMS: [(c_short, c_short); 2] = [(POLLIN, POLLRDNORM), (POLLOUT, POLLWRNORM)];

/// Checks readiness, and requests to be told of the next change.
pub(crate) fn look(socket: &Socket, number: c_int, events: c_short, next: Next<'_>) -> Look {
    let mut asked = events;
    for (event, synonym) in SYNONYMS {
        asked |= if events & synonym != 0 { event } else { 0 };
    }
    let mut seen = look_at_kind(socket, number, asked, next);
    for (event, synonym) in SYNONYMS {
        seen.events |= if seen.events & event != 0 { synonym } else { 0 };
    }
    seen.events &= events | POLLERR | POLLHUP;
    seen
}

fn look_at_kind(socket: &Socket, number: c_int, events: c_short, next: Next<'_>) -> Look {
    match socket.kind() {
        Kind::Connected => connected(socket, events, next),
        Kind::Listening => {
            let Some(listener) = listener(socket, number) else {
                return plain(0);
            };
            let edge = Edge {
                received_bytes: listener.arrived(),
                blocked: [socket.blocked(Direction::Read), 0],
                ..Edge::default()
            };
            Look {
                events: if listener.is_empty() {
                    0
                } else {
                    POLLIN & events
                },
                edge,
            }
        }
        Kind::Connecting => match advance(socket) {
            Progress::Connected => connected(socket, events, next),
            Progress::Refused => refused(events),
            Progress::Pending | Progress::Tcp => plain(0),
        },
        Kind::Refused => refused(events),
        Kind::Fresh | Kind::Plain => plain(0),
    }
}

impl Edge {
    /// The `events` that an edge-triggered set reports if its last report was at `last`.
    pub(crate) fn news(self, last: Option<Self>, events: c_short) -> c_short {
        let Some(last) = last else {
            return events;
        };
        let reads = (self.received_bytes, self.blocked[0], self.ends);
        let writes = (self.is_writable, self.blocked[1], self.ends);
        let mut news = 0;
        if reads != (last.received_bytes, last.blocked[0], last.ends) {
            news |= events & !WRITES;
        }
        if writes != (last.is_writable, last.blocked[1], last.ends) {
            news |= events & WRITES;
        }
        // Like the kernel, report everything that is ready if anything has changed.
        if news == 0 { 0 } else { events }
    }
}

fn plain(events: c_short) -> Look {
    Look {
        events,
        edge: Edge::default(),
    }
}

fn refused(events: c_short) -> Look {
    let ends = POLLERR | POLLHUP;
    Look {
        events: ends | events & (POLLIN | POLLOUT | POLLRDHUP),
        edge: Edge {
            ends,
            ..Edge::default()
        },
    }
}

fn connected(socket: &Socket, events: c_short, next: Next<'_>) -> Look {
    let Some(stream) = socket.stream() else {
        return plain(0);
    };
    // Every wait is also one for an end of the stream. Data that is not read must not end a wait for POLLRDHUP alone.
    let directions = [events & POLLIN != 0, events & POLLOUT != 0];
    let [read, write] = directions;
    let ready = match next {
        Next::Nothing => stream.ready(),
        Next::Call { always } => stream
            .glance(directions, always)
            .unwrap_or_else(|| stream.ready_or_watch(read, write)),
        Next::Descriptor(waits) => {
            let (wait, ready) = Waits::begin(stream, directions);
            waits.push(wait);
            ready
        }
    };
    let mut found = of_ready(ready);
    if socket.is_failure_told() {
        found &= !POLLERR;
    }
    // TCP hangs up when both directions have ended. Until this side has ended its own, it knows of the peer's only.
    if !ready.failed && !socket.is_write_over() {
        found &= !POLLHUP;
    }
    Look {
        events: found & (events | POLLERR | POLLHUP),
        edge: Edge {
            received_bytes: ready.received_bytes,
            blocked: [Direction::Read, Direction::Write].map(|each| socket.blocked(each)),
            ends: found & (POLLRDHUP | POLLERR | POLLHUP),
            is_writable: ready.writable,
        },
    }
}

fn of_ready(ready: Ready) -> c_short {
    [
        (ready.readable, POLLIN),
        (ready.writable, POLLOUT),
        (ready.read_closed, POLLRDHUP),
        (ready.hung_up || ready.failed, POLLHUP),
        (ready.failed, POLLERR),
    ]
    .into_iter()
    .filter(|(is_so, _)| *is_so)
    .fold(0, |found, (_, event)| found | event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_is_reported_once_and_again_after_new_data_or_a_full_buffer() {
        let first = Edge {
            received_bytes: 10,
            is_writable: true,
            ..Edge::default()
        };
        let ready = POLLIN | POLLOUT;
        assert_eq!(first.news(None, ready), ready);
        assert_eq!(first.news(Some(first), ready), 0);
        let more = Edge {
            received_bytes: 11,
            ..first
        };
        assert_eq!(more.news(Some(first), ready), ready);
        // A read that found no data does not make the socket writable again.
        let drained = Edge {
            blocked: [1, 0],
            ..first
        };
        assert_eq!(drained.news(Some(first), POLLOUT), 0);
        assert_eq!(drained.news(Some(first), POLLWRNORM), 0);
        let full = Edge {
            blocked: [0, 1],
            ..first
        };
        assert_eq!(full.news(Some(first), POLLOUT), POLLOUT);
        assert_eq!(full.news(Some(first), POLLWRNORM), POLLWRNORM);
    }
}
