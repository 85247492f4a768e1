//! A transfer: a posted work request with its buffer.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_provider::verbs::{WcStatus, WorkCompletion};
use portolan_provider::{Error, Step};

use super::outcome::{Done, Failed};
use super::pieces::Gather;
use crate::connection::Inner;
use crate::deadline;

/// Posted work. Waiting for it returns its buffer, whether the work succeeded or failed.
///
/// A wait with a time limit returns the transfer if the time is over, and you can wait again:
///
/// ```no_run
/// # use std::time::Duration;
/// # fn send(connection: &portolan::Connection) -> Result<(), portolan::Error> {
/// let mut sending = connection.send(connection.buffer(64)?)?;
/// let done = loop {
///     match sending.wait_within(Duration::from_millis(5)) {
///         Ok(done) => break done?,
///         Err(posted) => sending = posted,
///     }
///     eprintln!("the peer is slow");
/// };
/// # Ok(())
/// # }
/// ```
///
/// Only the end of the connection stops posted work. A send whose wait timed out is still delivered, and sending its
/// message again delivers it twice.
///
/// * Dropping the transfer gives up its buffer: the connection frees it when the work completes. This is right for sends
///   whose outcome does not matter. If one fails, the connection has ended, which the next call reports.
/// * [`Transfer::abandon`] leaves the buffer and the outcome to the connection
///   ([`Connection::take_abandoned`](crate::Connection::take_abandoned)).
#[must_use = "a dropped transfer goes on, but its buffer and its failure are lost"]
pub struct Transfer {
    connection: Arc<Inner>,
    key: Option<usize>,
    tag: Option<u64>,
}

impl Transfer {
    pub(crate) fn new(connection: Arc<Inner>, key: usize) -> Self {
        Self {
            connection,
            key: Some(key),
            tag: None,
        }
    }

    /// Gives the work a tag, by which the program recognizes it if it is abandoned
    /// ([`Connection::take_abandoned_tagged`](crate::Connection::take_abandoned_tagged)). Any number will do, such as the
    /// message's; the peer does not see it.
    ///
    /// ```
    /// # let (server, client) = portolan::doc_pair()?;
    /// client.send(b"first".to_vec())?.tagged(1).abandon();
    /// client.send(b"second".to_vec())?.tagged(2).abandon();
    /// let second = client.take_abandoned_tagged(2).expect("it is known");
    /// assert_eq!(&second.wait()?.buffer[..], b"second");
    /// assert_eq!(client.take_abandoned().expect("the other").tag(), Some(1));
    /// # drop(server);
    /// # Ok::<(), portolan::Error>(())
    /// ```
    pub fn tagged(mut self, tag: u64) -> Self {
        self.tag = Some(tag);
        self
    }

    /// The tag ([`Transfer::tagged`]).
    pub fn tag(&self) -> Option<u64> {
        self.tag
    }

    /// Waits for the transfer to complete.
    ///
    /// If the peer dies, a send, write, read or atomic ends when the queue pair's retries run out. A posted receive has no
    /// retries: it ends if the peer was a process of this host or its kernel disconnects for it, and otherwise only with a
    /// [`Keepalive`](crate::Keepalive).
    ///
    /// # Errors
    /// The work failed.
    pub fn wait(mut self) -> Result<Done, Failed> {
        // Without a deadline, only a failure of the device itself ends the wait early.
        self.wait_until(None).unwrap_or_else(|error| {
            Err(Failed {
                error,
                buffer: None,
                more: Box::default(),
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

    /// Returns the result if the transfer has completed; otherwise the transfer itself.
    ///
    /// # Errors
    /// The transfer itself, still posted.
    pub fn try_finish(mut self) -> Result<Result<Done, Failed>, Self> {
        if let Some(done) = self.try_take() {
            return Ok(done);
        }
        // If this fails, so does the next wait.
        let _ = self.connection.work.collect();
        let _ = self.connection.take_events();
        self.try_take().ok_or(self)
    }

    /// Why the work is still posted: `PeerNotReady` if the peer has no receive posted for it or for an earlier message
    /// ([`Connection::send_delay`](crate::Connection::send_delay)). `None` if it has completed, or nothing is known to
    /// delay it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let (server, client) = portolan::doc_pair()?;
    /// # let count = portolan::Options::default().held_messages;
    /// # let mut held = Vec::new();
    /// # for _ in 0..count { client.send(b"".to_vec())?.wait()?; held.push(server.receive()?); }
    /// let sending = client.send(b"one too many".to_vec())?;
    /// let sending = sending.wait_within(Duration::from_millis(100)).unwrap_err();
    /// let delay = sending.delay().expect("the server holds all its messages");
    /// assert!(delay.to_string().contains("the peer has had no receive posted"));
    /// # drop(held);
    /// // The server drops messages, and this one arrives:
    /// sending.wait()?;
    /// # Ok::<(), portolan::Error>(())
    /// ```
    pub fn delay(&self) -> Option<Error> {
        let is_sending = self.connection.work.is_sending(self.key?);
        is_sending.then(|| self.connection.send_delay())?
    }

    /// Leaves the work to the connection, which keeps the buffer and the outcome for
    /// [`Connection::take_abandoned`](crate::Connection::take_abandoned).
    pub fn abandon(mut self) {
        if let Some(key) = self.key.take() {
            self.connection.work.keep(key, self.tag);
        }
    }

    /// Whether it belongs to a connection.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_of(&self, connection: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.connection, connection)
    }

    /// Whether the transfer has completed, for a waiter that cannot borrow it.
    #[cfg(feature = "tokio")]
    pub(crate) fn until_done(&self) -> impl FnMut() -> Option<()> + Send + use<> {
        let (connection, key) = (self.connection.clone(), self.key);
        move || {
            let is_done = key
                .is_none_or(|key| connection.work.is_done(key) && !connection.awaits_reason(key));
            is_done.then_some(())
        }
    }

    /// Returns the result if the transfer has completed.
    pub(crate) fn try_take(&mut self) -> Option<Result<Done, Failed>> {
        let key = self.key?;
        // In this order: another thread may collect its completion meanwhile.
        if !self.connection.work.is_done(key) || self.connection.awaits_reason(key) {
            return None;
        }
        let (pieces, completion, length) = self.connection.work.taken(key)?;
        self.key = None;
        Some(self.connection.finished(pieces, &completion, length))
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
            self.connection.work.give_up(key);
        }
    }
}

impl Inner {
    /// Whether the work `key` was flushed, and the event that explains why may still arrive. Work that succeeded, or that
    /// failed for a reason of its own, awaits none.
    fn awaits_reason(&self, key: usize) -> bool {
        self.reason_due().is_some() && self.work.is_flushed(key)
    }

    /// Builds the result of a work request from its completion.
    pub(crate) fn finished(
        &self,
        pieces: Gather,
        completion: &WorkCompletion,
        length: usize,
    ) -> Result<Done, Failed> {
        if completion.status == WcStatus::Success {
            let immediate = completion.imm_data;
            let (buffer, more) = pieces.split();
            return Ok(Done {
                buffer,
                more,
                length,
                immediate,
            });
        }
        let cause = self.work_cause(completion.status);
        Err(pieces.failed(self.explain(Error::new(Step::Transfer, cause))))
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remote = &self.connection.addresses.remote;
        let is_sending = self
            .key
            .is_some_and(|key| self.connection.work.is_sending(key));
        let mut written = f.debug_struct("Transfer");
        written
            .field("remote", remote)
            .field("is_sending", &is_sending)
            .field("tag", &self.tag);
        written.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use portolan_provider::Cause;
    use portolan_provider::verbs::{QpAttr, QpAttrMask, QpState};

    use super::*;
    use crate::Connection;

    /// Moves the queue pair to ERR. No event explains it.
    fn flush(connection: &Connection) {
        let attr = QpAttr {
            state: QpState::Err,
            ..QpAttr::default()
        };
        let work = &connection.inner.work;
        work.qp.modify(&attr, QpAttrMask::STATE).unwrap();
        work.collect().unwrap();
        assert_eq!(work.broken(), Some(WcStatus::WrFlushErr));
        assert!(connection.inner.reason_due().is_some());
    }

    #[test]
    fn work_that_succeeded_before_an_unexplained_flush_is_returned_at_once() {
        let (peer, connection) = crate::doc_pair().unwrap();
        let sent = connection.send(b"ahoy".to_vec()).unwrap();
        let received = peer.receive().unwrap();
        let key = sent.key.unwrap();
        let is_done = || connection.inner.work.is_done(key);
        while !is_done() {
            connection.inner.work.collect().unwrap();
        }
        flush(&connection);
        let done = sent.try_finish().expect("it has completed").unwrap();
        assert_eq!(done.buffer[..], received[..]);
    }

    #[test]
    fn flushed_work_waits_for_the_event_that_explains_it() {
        let (_peer, connection) = crate::doc_pair().unwrap();
        let receiving = connection.post_receive(connection.buffer(64).unwrap());
        flush(&connection);
        let receiving = receiving.unwrap();
        assert!(connection.inner.work.is_flushed(receiving.key.unwrap()));
        let receiving = receiving.try_finish().unwrap_err();
        let failed = receiving.wait().unwrap_err();
        let cause = Cause::WorkFailed(WcStatus::WrFlushErr);
        assert_eq!(failed.error.cause, cause, "no event came");
        assert!(connection.inner.reason_due().is_none());
    }
}
