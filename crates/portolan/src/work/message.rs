//! A received message.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use portolan_provider::Result;
use portolan_provider::verbs::{WcOpcode, WorkCompletion};

use crate::connection::Inner;
use crate::sys::Buffer;

/// A message in one of the connection's own receives, or of its [`SharedReceiveQueue`](crate::SharedReceiveQueue).
///
/// Dropping it reposts the receive. If the program holds [`Options::held_messages`](crate::Options::held_messages)
/// messages, the peer's next message waits. A program that keeps messages for a long time should take their buffers
/// ([`Message::into_buffer`]).
///
/// ```
/// # let (server, client) = portolan::doc_pair()?;
/// client.send_with_immediate(b"ahoy".to_vec(), 7)?.wait()?;
/// let message = server.receive()?;
/// assert_eq!((&message[..], message.immediate()), (&b"ahoy"[..], Some(7)));
/// // It may be kept without holding a receive.
/// let kept = message.into_buffer()?;
/// # Ok::<(), portolan::Error>(())
/// ```
pub struct Message {
    connection: Arc<Inner>,
    buffer: Option<Buffer>,
    length: usize,
    written: Option<usize>,
    immediate: Option<u32>,
}

impl Message {
    pub(crate) fn new(connection: Arc<Inner>, buffer: Buffer, completion: &WorkCompletion) -> Self {
        let bytes = completion.byte_len as usize;
        // A write put its bytes elsewhere. The receive contains those of an earlier message.
        let is_write = completion.opcode == WcOpcode::RecvRdmaWithImm;
        Self {
            connection,
            length: if is_write { 0 } else { bytes.min(buffer.len()) },
            buffer: Some(buffer),
            written: is_write.then_some(bytes),
            immediate: completion.imm_data,
        }
    }

    /// The number of bytes that the peer wrote to shared memory, if this is the immediate data of a write. All of them
    /// are in the memory. The message itself is empty then. For a write of more than 1 GiB, this is the length of the
    /// last work request only.
    pub fn written(&self) -> Option<usize> {
        self.written
    }

    /// The immediate data of the message: the number that the peer gave, if both machines have the same byte order.
    ///
    /// The device transports four bytes as they are in memory, here and in `imm_data` of datagrams and of the low layer.
    /// C programs usually pass `htonl(number)`, which is `u32::from_be` to read.
    pub fn immediate(&self) -> Option<u32> {
        self.immediate
    }
}

impl Message {
    /// Takes the message out as a buffer of its length, without copying, and posts a receive of the same size in its
    /// place. The program may keep the buffer.
    ///
    /// # Errors
    /// There is no memory for the new receive. The message is lost, and its receive is posted again.
    pub fn into_buffer(mut self) -> Result<Buffer> {
        // The receive exists until the message is dropped.
        let size = self.buffer.as_ref().map_or(0, |whole| whole.len());
        let fresh = Buffer::new(&self.connection.work.pd, size);
        let fresh = fresh.map_err(|error| self.connection.explain(error))?;
        let mut kept = self
            .buffer
            .replace(fresh)
            .unwrap_or_else(|| Buffer::from(Vec::new()));
        // The rest of the receive exists as long as the message.
        drop(kept.split_off(self.length));
        Ok(kept)
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("length", &self.length)
            .field("immediate", &self.immediate)
            .field("written", &self.written)
            .field("remote", &self.connection.addresses.remote)
            .finish_non_exhaustive()
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.buffer {
            Some(buffer) => &buffer[..self.length],
            None => &[],
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        self.connection.note_given_back();
        if let Some(buffer) = self.buffer.take() {
            self.connection.work.repost(buffer);
        }
    }
}
