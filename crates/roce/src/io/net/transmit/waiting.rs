//! Datagrams and queue pairs that wait for room in a socket or a ring.

use std::collections::VecDeque;

use portolan_wire::Qpn;

use crate::io::net::path::Path;
use crate::io::net::send_batch::Run;

/// Maximum of datagrams that wait for room in one socket's send buffer or in one ring. Queue pairs stop while any wait, so
/// this bounds MADs, what other threads are sending at that moment, and datagrams for a process that may be stopped.
pub(super) const WAITING_DATAGRAMS_MAX: usize = 1024;
/// Maximum of their bytes, apart from the last one's.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// Packets and queue pairs that wait for room.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) datagrams: VecDeque<WaitingDatagram>,
    /// Bytes of all of them.
    bytes: usize,
    /// Queue pairs that have more to send: those that found no room, and those that have just filled it.
    missed: Vec<Qpn>,
    had: Vec<Qpn>,
}

/// Whether a queue pair has sent something since it was last resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It found no room: it comes first when there is some, so that no other one takes it again and again.
    Missed,
    Had,
}

#[derive(Debug)]
pub(super) struct WaitingDatagram {
    path: Path,
    run: Run,
    bytes: Box<[u8]>,
}

impl Waiting {
    /// Registers a queue pair that has more to send.
    pub(super) fn register(&mut self, qpn: Qpn, turn: Turn) {
        match turn {
            Turn::Missed => self.missed.push(qpn),
            Turn::Had => self.had.push(qpn),
        }
    }

    /// The queue pairs that have more to send, in the order of their turns.
    pub(super) fn take_queue_pairs(&mut self) -> Vec<Qpn> {
        let mut all = std::mem::take(&mut self.missed);
        all.append(&mut self.had);
        all
    }

    /// Keeps a datagram. Returns false if too many wait.
    pub(super) fn keep(&mut self, path: &Path, run: &Run, bytes: &[u8]) -> bool {
        if self.datagrams.len() >= WAITING_DATAGRAMS_MAX || self.bytes >= WAITING_BYTES_MAX {
            return false;
        }
        self.bytes += bytes.len();
        self.datagrams.push_back(WaitingDatagram {
            path: *path,
            run: *run,
            bytes: bytes.into(),
        });
        true
    }

    pub(super) fn oldest(&self) -> Option<(&Path, &Run, &[u8])> {
        let datagram = self.datagrams.front()?;
        Some((&datagram.path, &datagram.run, &datagram.bytes))
    }

    pub(super) fn forget_oldest(&mut self) {
        if let Some(datagram) = self.datagrams.pop_front() {
            self.bytes -= datagram.bytes.len();
        }
    }
}
