//! The trace of a run, for a reader. Runs are traced only when they are repeated after a failure.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use portolan_wire::cm::CmMessage;
use portolan_wire::rocev2::Packet;

/// Column where the text begins, after time and hosts.
const HOSTS_WIDTH: usize = 12;

/// The last lines of a run, and its clock. Both can be read after a panic.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    shared: Rc<Shared>,
}

#[derive(Debug)]
struct Shared {
    now: Cell<Duration>,
    /// How many lines are kept. 0 turns tracing off.
    capacity: usize,
    lines: RefCell<VecDeque<String>>,
}

impl Trace {
    pub(super) fn new(capacity: usize) -> Self {
        let (now, lines) = (Cell::default(), RefCell::default());
        Self {
            shared: Rc::new(Shared {
                now,
                capacity,
                lines,
            }),
        }
    }

    pub(super) fn set_now(&self, now: Duration) {
        self.shared.now.set(now);
    }

    pub(super) fn now(&self) -> Duration {
        self.shared.now.get()
    }

    pub(super) fn is_on(&self) -> bool {
        self.shared.capacity > 0
    }

    /// Notes an event at a host.
    pub(super) fn note(&self, host: usize, what: impl FnOnce() -> String) {
        if self.is_on() {
            self.push(&format!("h{host}"), &what());
        }
    }

    /// Notes a packet from host to host, and its fate.
    pub(super) fn packet(&self, from: usize, to: usize, bytes: &[u8], fate: impl fmt::Display) {
        if self.is_on() {
            let hosts = format!("h{from} ──▶ h{to}");
            self.push(&hosts, &format!("{}{fate}", Described(bytes)));
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.shared.lines.borrow().iter().cloned().collect()
    }

    fn push(&self, hosts: &str, what: &str) {
        let mut lines = self.shared.lines.borrow_mut();
        if lines.len() == self.shared.capacity {
            lines.pop_front();
        }
        let seconds = self.now().as_secs_f64();
        let width = HOSTS_WIDTH;
        lines.push_back(format!("{seconds:>13.6}  {hosts:<width$}{what}"));
    }
}

/// A UDP payload, described in words.
struct Described<'a>(&'a [u8]);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(packet) = Packet::parse(self.0) else {
            return write!(f, "{} bytes that are not a packet", self.0.len());
        };
        match packet.mad().map(CmMessage::parse) {
            Some(Ok((_, message))) => message.fmt(f),
            _ => packet.fmt(f),
        }
    }
}
