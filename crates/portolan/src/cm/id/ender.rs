//! Which side ended an id's connection.

use std::sync::atomic::{AtomicU8, Ordering};

const NOBODY: u8 = 0;
const THIS_SIDE: u8 = 1;
const PEER: u8 = 2;

/// The side that ended the connection first.
#[derive(Debug, Default)]
pub(in crate::cm) struct Ender(AtomicU8);

impl Ender {
    /// Notes that this side disconnects, unless a side has ended the connection before. Returns whether it was noted.
    pub(super) fn note_this_side(&self) -> bool {
        self.note(NOBODY, THIS_SIDE)
    }

    /// Takes back that this side disconnects: it failed.
    pub(super) fn take_back(&self) {
        self.note(THIS_SIDE, NOBODY);
    }

    /// Notes that the end was reported, which is the peer's unless this side disconnected before.
    pub(in crate::cm) fn note_reported(&self) {
        self.note(NOBODY, PEER);
    }

    pub(in crate::cm) fn is_this_side(&self) -> bool {
        self.0.load(Ordering::Acquire) == THIS_SIDE
    }

    fn note(&self, from: u8, to: u8) -> bool {
        let noted = self
            .0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        noted.is_ok()
    }
}
