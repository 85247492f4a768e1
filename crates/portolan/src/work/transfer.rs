//! A transfer: a posted work request with its buffer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_provider::verbs::{WcStatus, WorkCompletion};
use portolan_provider::{Cause, Error, Step};

use super::outcome::{Done, Failed};
use crate::connection::Inner;
use crate::deadline;
use crate::sys::Buffer;

/// Posted work. Waiting for it returns its buffer.
///
/// Dropping it does not stop the work: the connection keeps the buffer until the work completes,
/// and then frees it.
#[derive(Debug)]
#[must_use = "a dropped transfer goes on, but its buffer and its failure are lost"]
pub struct Transfer {
    connection: Arc<Inner>,
    key: Option<usize>,
}

impl Transfer {
    pub(crate) fn new(connection: Arc<Inner>, key: usize) -> Self {
        Self {
            connection,
            key: Some(key),
        }
    }

    /// Waits for the transfer to complete.
    ///
    /// If the peer dies, the queue pair's own retries end the transfer.
    ///
    /// # Errors
    /// The work failed.
    pub fn wait(mut self) -> Result<Done, Failed> {
        // Without a deadline, only a failure of the device itself ends the wait early.
        self.wait_until(None).unwrap_or_else(|error| {
            Err(Failed {
                error,
                buffer: None,
            })
        })
    }

    /// Waits for the transfer to complete, at most for `timeout`.
    ///
    /// # Errors
    /// The transfer itself, still posted, if it has not completed in time.
    pub fn wait_within(mut self, timeout: Duration) -> Result<Result<Done, Failed>, Self> {
        match self.wait_until(Some(deadline::after(timeout))) {
            Ok(done) => Ok(done),
            Err(_) => Err(self),
        }
    }

    /// Returns the result if the transfer has completed.
    pub(crate) fn try_take(&mut self) -> Option<Result<Done, Failed>> {
        if self.connection.reason_due().is_some() {
            return None;
        }
        let (buffer, completion) = self.connection.work.taken(self.key?)?;
        self.key = None;
        Some(self.connection.finished(buffer, &completion))
    }

    fn wait_until(
        &mut self,
        deadline: Option<Instant>,
    ) -> portolan_provider::Result<Result<Done, Failed>> {
        let connection = self.connection.clone();
        connection.wait_until(deadline, || self.try_take())
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.connection.work.abandon(key);
        }
    }
}

impl Inner {
    /// Builds the result of a work request from its completion.
    pub(crate) fn finished(
        &self,
        buffer: Buffer,
        completion: &WorkCompletion,
    ) -> Result<Done, Failed> {
        if completion.status == WcStatus::Success {
            let (length, immediate) = (completion.byte_len as usize, completion.imm_data);
            return Ok(Done {
                buffer,
                length,
                immediate,
            });
        }
        let cause = match completion.status {
            WcStatus::WrFlushErr => self
                .how_ended()
                .unwrap_or(Cause::WorkFailed(completion.status)),
            status => Cause::WorkFailed(status),
        };
        let error = self.explain(Error::new(Step::Transfer, cause));
        Err(Failed {
            error,
            buffer: Some(buffer),
        })
    }
}
