//! Completion queues.

use alloc::collections::VecDeque;

use portolan_provider::verbs::{WcStatus, WorkCompletion};
use portolan_provider::{Error, Result, Step};
use portolan_wire::Qpn;

/// A completion found no room: the queue is in error from now on and its owner gets
/// [`AsyncEvent::CqErr`](portolan_provider::verbs::AsyncEvent::CqErr).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the completion queue overflowed: it holds {capacity} completions")]
pub struct CqOverflow {
    /// Completions it can hold.
    pub capacity: u32,
}

/// A completion queue: a bounded ring, and the hand-off of notifications.
#[derive(Debug)]
pub struct CompletionQueue {
    ring: VecDeque<WorkCompletion>,
    capacity: u32,
    armed: Option<Arming>,
    /// What came since the queue was last found empty or last notified, and was not announced.
    unannounced: Option<News>,
    notification: bool,
    overflowed: bool,
}

/// What the owner waits for (`ibv_req_notify_cq(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arming {
    Any,
    Solicited,
}

/// The most urgent of the completions that no notification announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum News {
    Unsolicited,
    Solicited,
}

impl CompletionQueue {
    /// A queue for `capacity` completions.
    ///
    /// # Errors
    /// `InvalidArgument` unless `capacity` is 1 to `limit`.
    pub fn new(capacity: u32, limit: u32) -> Result<Self> {
        if capacity == 0 || capacity > limit {
            let expected = format_args!("1 to {limit}");
            return Err(Error::invalid(Step::CreateCq, "cqe", expected, capacity));
        }
        Ok(Self {
            ring: VecDeque::new(),
            capacity,
            armed: None,
            unannounced: None,
            notification: false,
            overflowed: false,
        })
    }

    /// Completions it can hold.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Changes how many completions it can hold (`ibv_resize_cq(3)`). What waits stays, in order, and
    /// so does the request for an event by arming.
    ///
    /// # Errors
    /// `InvalidArgument` unless `capacity` is 1 to `limit` and the waiting completions fit; nothing has changed
    /// then.
    pub fn resize(&mut self, capacity: u32, limit: u32) -> Result<()> {
        let waiting = u32::try_from(self.ring.len()).unwrap_or(u32::MAX);
        let least = waiting.max(1);
        if !(least..=limit).contains(&capacity) {
            let expected = format_args!("{least} to {limit}, with {waiting} waiting");
            return Err(Error::invalid(Step::ResizeCq, "cqe", expected, capacity));
        }
        self.capacity = capacity;
        if self.ring.capacity() > capacity as usize {
            self.ring.shrink_to(capacity as usize);
        }
        Ok(())
    }

    /// Completions that wait.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether no completion waits.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Whether a completion was lost because the queue was full.
    pub fn is_overflowed(&self) -> bool {
        self.overflowed
    }

    /// Adds a completion. One that failed counts as solicited (IBTA 11.4.2.2).
    ///
    /// # Errors
    /// [`CqOverflow`]: the completion is lost. The queue pairs attached are moved to the error
    /// state by the host.
    pub fn push(
        &mut self,
        wc: WorkCompletion,
        solicited: bool,
    ) -> core::result::Result<(), CqOverflow> {
        if self.ring.len() >= self.capacity as usize {
            self.overflowed = true;
            return Err(CqOverflow {
                capacity: self.capacity,
            });
        }
        self.ring.push_back(wc);
        let news = if solicited || wc.status != WcStatus::Success {
            News::Solicited
        } else {
            News::Unsolicited
        };
        self.unannounced = self.unannounced.max(Some(news));
        self.announce();
        Ok(())
    }

    /// Takes completions, oldest first, into the front of `out`; their number. Fewer than
    /// `out.len()` means that the queue was found empty.
    pub fn poll(&mut self, out: &mut [WorkCompletion]) -> usize {
        let count = out.len().min(self.ring.len());
        for (slot, wc) in out.iter_mut().zip(self.ring.drain(..count)) {
            *slot = wc;
        }
        if count < out.len() {
            self.unannounced = None;
        }
        count
    }

    /// Forgets the completions of a queue pair that is destroyed or reset.
    pub fn forget(&mut self, qpn: Qpn) {
        self.ring.retain(|wc| wc.qp_num != qpn);
    }

    /// Asks for one notification, at the next completion or the next solicited one. Due at once if
    /// such a completion came since the queue was last found empty and was not announced, so that
    /// an owner that polls and then arms misses nothing. Asking for any completion widens an earlier
    /// request for solicited ones, never the reverse.
    pub fn arm(&mut self, solicited_only: bool) {
        if !solicited_only {
            self.armed = Some(Arming::Any);
        } else if self.armed.is_none() {
            self.armed = Some(Arming::Solicited);
        }
        self.announce();
    }

    /// Whether a notification was asked for and is still to come.
    pub fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    /// Whether a notification is due; taking it takes it away.
    pub fn take_notification(&mut self) -> bool {
        core::mem::take(&mut self.notification)
    }

    /// Turns arming and news, when they meet, into a notification.
    fn announce(&mut self) {
        let due = match (self.armed, self.unannounced) {
            (Some(Arming::Any), Some(_)) => true,
            (Some(Arming::Solicited), Some(news)) => news == News::Solicited,
            _ => false,
        };
        if due {
            self.armed = None;
            self.unannounced = None;
            self.notification = true;
        }
    }
}

#[cfg(test)]
mod tests;
