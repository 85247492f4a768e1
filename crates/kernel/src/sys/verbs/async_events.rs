//! A device's asynchronous events, and what they say about queue pairs.
//!
//! They have one reader. If the program does not read them, the library does, to learn which requests of peers the
//! device refused, and keeps them for a program that starts later.

use std::collections::{HashMap, VecDeque};

use portolan_provider::verbs::{AsyncEvent, Refusal, WcStatus};
use portolan_wire::addr::Qpn;

/// Maximum number of events that are kept for a program that does not read them. Beyond that the oldest are dropped.
const KEPT_MAX: usize = 256;

/// Events of a device.
#[derive(Debug, Default)]
pub(super) struct AsyncEvents {
    /// Whether the program reads them.
    has_reader: bool,
    kept: VecDeque<AsyncEvent>,
    /// Refused requests of peers, by the existing queue pair that refused them.
    refusals: HashMap<Qpn, Refusal>,
}

impl AsyncEvents {
    /// The program starts to read the events.
    pub(super) fn set_reader(&mut self) {
        self.has_reader = true;
    }

    pub(super) fn has_reader(&self) -> bool {
        self.has_reader
    }

    /// Takes the oldest event that was kept for the program.
    pub(super) fn take_kept(&mut self) -> Option<AsyncEvent> {
        self.kept.pop_front()
    }

    /// Records an event that was taken from the device.
    pub(super) fn note(&mut self, event: AsyncEvent) {
        let (qpn, status) = match event {
            AsyncEvent::QpAccessErr(qpn) => (qpn, WcStatus::RemAccessErr),
            AsyncEvent::QpReqErr(qpn) => (qpn, WcStatus::RemInvReqErr),
            _ => return,
        };
        let refusal = Refusal::new(status, None);
        self.refusals.entry(qpn).or_insert(refusal);
    }

    /// Keeps an event for the program.
    pub(super) fn keep(&mut self, event: AsyncEvent) {
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(event);
    }

    pub(super) fn refusal(&self, qpn: Qpn) -> Option<Refusal> {
        self.refusals.get(&qpn).copied()
    }

    /// Forgets a destroyed queue pair, whose number may be reused.
    pub(super) fn forget(&mut self, qpn: Qpn) {
        self.refusals.remove(&qpn);
    }
}
