//! A received message.

use std::ops::Deref;
use std::sync::Arc;

use crate::connection::Inner;
use crate::sys::Buffer;

/// A message in one of the connection's own receives.
///
/// Dropping it reposts the receive. A peer that sends more messages than the connection's receive
/// depth waits until some are dropped.
#[derive(Debug)]
pub struct Message {
    connection: Arc<Inner>,
    buffer: Option<Buffer>,
    length: usize,
    immediate: Option<u32>,
}

impl Message {
    pub(crate) fn new(
        connection: Arc<Inner>,
        buffer: Buffer,
        length: usize,
        immediate: Option<u32>,
    ) -> Self {
        let length = length.min(buffer.len());
        Self {
            connection,
            buffer: Some(buffer),
            length,
            immediate,
        }
    }

    /// The immediate data of the message.
    pub fn immediate(&self) -> Option<u32> {
        self.immediate
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
        if let Some(buffer) = self.buffer.take() {
            // Posting fails only if the queue pair is in error; then nothing more is received.
            let _ = self.connection.work.post_receive(buffer, true);
        }
    }
}
