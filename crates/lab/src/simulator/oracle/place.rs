//! Places of bytes: in memory, and in a sequence of messages.

/// Where a message's bytes are to go: pieces of memory, one after the other.
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

    /// The address of byte `offset`, and how many bytes are there before the next piece.
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

/// A place in a sequence of messages.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::simulator) struct Cursor {
    /// The message, as an index of its sender's requests.
    pub(in crate::simulator) message: usize,
    /// Bytes of it that are placed.
    pub(in crate::simulator) offset: u64,
    /// Receives that the messages before it took.
    pub(in crate::simulator) receives: usize,
}

impl Cursor {
    /// Whether all `len` bytes of the message are placed.
    pub(super) fn is_past(&self, message: usize, len: u64) -> bool {
        self.message > message || (self.message == message && self.offset >= len)
    }
}
