//! Replacing an endpoint's buffers by larger ones.

use crate::endpoint::Endpoint;
use crate::phase::Phase;

/// A buffer of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhichBuffer {
    /// Of data to the peer.
    Send,
    /// Of data from the peer.
    Receive,
}

impl Endpoint {
    /// The buffer that limits the rate, and the bytes of the larger one that the owner should allocate.
    pub fn wants_to_grow(&self) -> Option<(WhichBuffer, u32)> {
        if self.phase != Phase::Open {
            return None;
        }
        let sends = self.sender.stalls.wanted().filter(|_| self.sends);
        let receives = || self.receiver.stalls.wanted().filter(|_| self.receives);
        sends
            .map(|bytes| (WhichBuffer::Send, bytes))
            .or_else(|| receives().map(|bytes| (WhichBuffer::Receive, bytes)))
    }

    /// Sends from the larger buffer from now on.
    pub fn grow_send(&mut self) {
        self.sender.grow();
    }

    /// Receives into the larger buffer as soon as the peer has filled what was granted of the first one.
    pub fn grow_receive(&mut self, addr: u64, key: u32) {
        self.grown = (addr, key);
        self.receiver.grow();
    }

    /// The owner has no larger buffer.
    pub fn stay(&mut self, which: WhichBuffer) {
        match which {
            WhichBuffer::Send => self.sender.stalls.stay(),
            WhichBuffer::Receive => self.receiver.stalls.stay(),
        }
    }
}
