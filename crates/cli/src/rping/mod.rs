//! The protocol of rdma-core's rping, so that either end may be rping.
//!
//! One iteration, on a reliable connection:
//!
//! 1. the client sends an advertisement of its source buffer ([`Advertisement`], 16 bytes);
//! 2. the server reads that buffer by RDMA READ and sends 16 bytes, "go ahead";
//! 3. the client sends an advertisement of its sink buffer;
//! 4. the server writes the data back by RDMA WRITE and sends 16 bytes, "done";
//! 5. the client compares the buffers.
//!
//! The server's messages carry no information except their arrival; rping sends the contents of its send buffer,
//! usually zeros. Each side keeps at least one receive posted. The client disconnects after the last iteration.
//!
//! [`Client`] and [`Server`] are state machines without I/O: messages and completions go in, work requests come out.

mod client;
mod pattern;
mod server;

pub(crate) use client::{Client, ClientStep};
pub(crate) use pattern::{Mismatch, compare, fill};
pub(crate) use server::{Server, ServerStep};

/// Length of every sent message.
pub(crate) const MESSAGE_LEN: usize = 16;
/// rping's default data size, in bytes.
pub(crate) const DEFAULT_SIZE: u32 = 64;
/// Maximum data size here, in bytes. rping itself supports less than 64 KiB.
pub(crate) const MAX_SIZE: u32 = 16 << 20;

/// The "go ahead" or "done" message of a server.
pub(crate) const GO_AHEAD: [u8; MESSAGE_LEN] = [0; MESSAGE_LEN];

/// The location of a client's buffer: `struct rping_rdma_info`, big-endian on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Advertisement {
    /// Virtual address.
    pub(crate) addr: u64,
    /// Remote key.
    pub(crate) rkey: u32,
    /// Length in bytes.
    pub(crate) size: u32,
}

impl Advertisement {
    /// Reads a message.
    ///
    /// # Errors
    ///
    /// [`Error::MessageLength`].
    pub(crate) fn parse(message: &[u8]) -> Result<Advertisement, Error> {
        let &[
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7,
            k0,
            k1,
            k2,
            k3,
            s0,
            s1,
            s2,
            s3,
        ] = message
        else {
            return Err(Error::MessageLength { got: message.len() });
        };
        Ok(Advertisement {
            addr: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            rkey: u32::from_be_bytes([k0, k1, k2, k3]),
            size: u32::from_be_bytes([s0, s1, s2, s3]),
        })
    }

    /// The message.
    pub(crate) fn emit(&self) -> [u8; MESSAGE_LEN] {
        let mut message = [0; MESSAGE_LEN];
        let fields = self
            .addr
            .to_be_bytes()
            .into_iter()
            .chain(self.rkey.to_be_bytes())
            .chain(self.size.to_be_bytes());
        for (byte, value) in message.iter_mut().zip(fields) {
            *byte = value;
        }
        message
    }
}

/// A protocol violation of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// A message of another length.
    #[error("rping's messages have {MESSAGE_LEN} bytes, the peer sent one of {got}")]
    MessageLength {
        /// Its length.
        got: usize,
    },
    /// A buffer of invalid size.
    #[error("the peer advertised a buffer of {got} bytes; 1 to {max} are served")]
    Size {
        /// Its size.
        got: u32,
        /// The bound.
        max: u32,
    },
    /// A sink that is too small for the source's data.
    #[error("the peer advertised a sink of {sink} bytes for a source of {source_size}")]
    SinkTooSmall {
        /// Size of the source.
        source_size: u32,
        /// Size of the sink.
        sink: u32,
    },
    /// An unexpected message or completion.
    #[error("received {what} while awaiting {awaited}")]
    OutOfTurn {
        /// What was received.
        what: &'static str,
        /// What was expected.
        awaited: &'static str,
    },
}

#[cfg(test)]
mod tests;
