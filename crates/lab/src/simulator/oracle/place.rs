//! Positions of bytes, in memory and in a sequence of messages.

/// Where a message's bytes belong: pieces of memory in sequence.
#[derive(Clone, Debug, Default)]
pub(in crate::simulator) struct Target {
    pieces: Vec<(u64, u32)>,
}

impl Target {
    pub(in crate::simulator) fn push(&mut self, addr: u64, len: u32) {
        self.pieces.push((addr, len));
    }

    pub(in crate::simulator) fn pieces(&self) -> &[(u64, u32)] {
        &self.pieces
    }

    /// The address of byte `offset`, and the bytes left in that piece.
    pub(super) fn at(&self, offset: u64) -> Option<(u64, u64)> {
        let mut before = 0;
        for (addr, len) in &self.pieces {
            let within = offset - before;
            if within < u64::from(*len) {
                return Some((addr + within, u64::from(*len) - within));
            }
            before += u64::from(*len);
        }
        None
    }
}

/// A position in a sequence of messages.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::simulator) struct Cursor {
    /// Index of the message among its sender's requests.
    pub(in crate::simulator) message: usize,
    /// Bytes of the message placed so far.
    pub(in crate::simulator) offset: u64,
    /// Receives used by the earlier messages.
    pub(in crate::simulator) receives: usize,
}

impl Cursor {
    /// Whether all `len` bytes of the message are placed.
    pub(super) fn is_past(&self, message: usize, len: u64) -> bool {
        self.message > message || (self.message == message && self.offset >= len)
    }
}
