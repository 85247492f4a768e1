//! Sends short messages without waiting for each, using a few buffers in turn.

use std::collections::VecDeque;
use std::time::Duration;

use portolan::{Buffer, Connection, Options, Result, Transfer};

use crate::rping::MESSAGE_LEN;

/// Maximum number of messages in flight. rping's protocol alternates, so two would suffice.
const MAX_IN_FLIGHT: usize = 4;
/// Length of a receive: more than a message, so that the length of a longer one shows.
const RECEIVE_LEN: usize = 4 * MESSAGE_LEN;

/// Options for connections with rping's protocol: rping's own parameters, and queues for its messages.
pub(super) fn rping_options(private_data: &str, timeout: Duration) -> Options {
    Options::default()
        .send_depth(MAX_IN_FLIGHT as u32 + 2)
        .receive_depth(4)
        .receive_size(RECEIVE_LEN)
        .posted_receives(0)
        .responder_resources(1)
        .initiator_depth(1)
        .retry_count(7)
        .rnr_retry_count(7)
        .private_data(private_data.as_bytes().to_vec())
        .timeout(timeout)
        .keepalive(None)
}

/// Messages in flight, oldest first.
#[derive(Debug)]
pub(super) struct Outbox {
    in_flight: VecDeque<Transfer>,
    max_len: usize,
}

impl Outbox {
    /// For messages of at most `max_len` bytes.
    pub(super) fn new(max_len: usize) -> Outbox {
        Outbox {
            in_flight: VecDeque::with_capacity(MAX_IN_FLIGHT),
            max_len,
        }
    }

    /// The oldest message with its buffer, if it must complete before the next one can be posted.
    pub(super) fn full(&mut self) -> Option<Transfer> {
        if self.in_flight.len() < MAX_IN_FLIGHT {
            return None;
        }
        self.in_flight.pop_front()
    }

    /// Posts a message, in the given buffer if any.
    ///
    /// # Errors
    ///
    /// The message is too long, the connection has ended, or memory cannot be registered.
    pub(super) fn post(
        &mut self,
        connection: &Connection,
        message: &[u8],
        buffer: Option<Buffer>,
    ) -> Result<()> {
        let mut buffer = match buffer {
            Some(buffer) => buffer,
            None => connection.buffer(self.max_len)?,
        };
        if let Some(place) = buffer.get_mut(..message.len()) {
            place.copy_from_slice(message);
        }
        // This fails for a message longer than the buffer.
        let transfer = connection
            .send_prefix(buffer, message.len())
            .map_err(|failed| failed.error)?;
        self.in_flight.push_back(transfer);
        Ok(())
    }

    /// Posts a message, waiting for an earlier one to complete if necessary.
    ///
    /// # Errors
    ///
    /// As for [`Outbox::post`]; the earlier message failed.
    pub(super) fn post_or_wait(&mut self, connection: &Connection, message: &[u8]) -> Result<()> {
        let buffer = match self.full() {
            None => None,
            Some(transfer) => Some(transfer.wait().map_err(|failed| failed.error)?.buffer),
        };
        self.post(connection, message, buffer)
    }
}
