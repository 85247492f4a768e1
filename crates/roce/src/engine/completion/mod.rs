//! Completion queues.

use portolan_provider::verbs::{WcStatus, WorkCompletion};
use portolan_provider::{Error, Result, Step};
use portolan_wire::Qpn;

use super::Completion;
use super::fifo::Fifo;

/// The queued completions that [`CompletionQueue::may_have`] looks at.
const LOOKED_AT_MAX: usize = 1024;

/// A completion did not fit. The queue is then in error, and its owner gets
/// [`AsyncEvent::CqErr`](portolan_provider::verbs::AsyncEvent::CqErr).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the completion queue overflowed: it holds {capacity} completions")]
pub struct CqOverflow {
    /// Maximum number of completions.
    pub capacity: u32,
}

/// A completion queue: a limited number of completions, and notifications.
#[derive(Debug)]
pub struct CompletionQueue {
    entries: Fifo<WorkCompletion>,
    capacity: u32,
    /// The completions that the owner requested a notification for (`ibv_req_notify_cq(3)`).
    armed: Kinds,
    /// Completions that arrived since the queue was last empty, last notified, or its event was taken.
    unannounced: Kinds,
    /// The owner has taken an event while completions were queued, and has not polled since.
    owner_polls: bool,
    notification: bool,
    overflowed: bool,
}

/// A set of kinds of completions, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kinds(u8);

impl Kinds {
    const NONE: Self = Self(0);
    const UNSOLICITED: Self = Self(1);
    const SOLICITED: Self = Self(2);
    const ALL: Self = Self(3);

    #[inline]
    fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    #[inline]
    fn have_any_of(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl CompletionQueue {
    /// Creates a queue for `capacity` completions.
    ///
    /// # Errors
    /// `InvalidArgument` unless `capacity` is 1 to `limit`.
    pub fn new(capacity: u32, limit: u32) -> Result<Self> {
        if capacity == 0 || capacity > limit {
            let expected = format_args!("1 to {limit}");
            return Err(Error::invalid(Step::CreateCq, "cqe", expected, capacity));
        }
        Ok(Self {
            entries: Fifo::default(),
            capacity,
            armed: Kinds::NONE,
            unannounced: Kinds::NONE,
            owner_polls: false,
            notification: false,
            overflowed: false,
        })
    }

    /// Maximum number of completions.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Changes the maximum number of completions (`ibv_resize_cq(3)`). Queued completions keep their order, and the
    /// queue stays armed.
    ///
    /// # Errors
    /// `InvalidArgument` unless `capacity` is 1 to `limit` and the queued completions fit. An error changes nothing.
    pub fn resize(&mut self, capacity: u32, limit: u32) -> Result<()> {
        let waiting = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        let least = waiting.max(1);
        if !(least..=limit).contains(&capacity) {
            let expected = format_args!("{least} to {limit}, with {waiting} waiting");
            return Err(Error::invalid(Step::ResizeCq, "cqe", expected, capacity));
        }
        self.capacity = capacity;
        self.entries.shrink_to(capacity as usize);
        Ok(())
    }

    /// Number of queued completions.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether it is empty and not armed, so that polling it changes nothing.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        let kinds = self.armed.0 | self.unannounced.0;
        self.entries.is_empty() && kinds == 0 && !(self.owner_polls | self.notification)
    }

    /// Whether a completion was lost because the queue was full.
    #[inline]
    pub fn is_overflowed(&self) -> bool {
        self.overflowed
    }

    /// Adds a completion. An error counts as solicited (IBTA 11.4.2.2).
    ///
    /// # Errors
    /// [`CqOverflow`]: the completion is lost. The host then moves the attached queue pairs to the error state.
    #[inline]
    pub fn push(
        &mut self,
        wc: WorkCompletion,
        solicited: bool,
    ) -> core::result::Result<(), CqOverflow> {
        match self.room() {
            0 => {
                self.overflowed = true;
                Err(CqOverflow {
                    capacity: self.capacity,
                })
            }
            _ => {
                self.add(&wc, solicited);
                Ok(())
            }
        }
    }

    /// As [`push`](Self::push) for each. Returns how many are lost.
    #[inline]
    pub fn push_all(&mut self, completions: &[Completion]) -> usize {
        if completions.len() > self.room() {
            return self.push_some(completions);
        }
        for completion in completions {
            self.add(&completion.wc, completion.solicited);
        }
        0
    }

    #[cold]
    fn push_some(&mut self, completions: &[Completion]) -> usize {
        let is_lost = |completion: &&Completion| {
            let pushed = self.push(completion.wc, completion.solicited);
            pushed.is_err()
        };
        completions.iter().filter(is_lost).count()
    }

    #[inline]
    fn room(&self) -> usize {
        (self.capacity as usize).saturating_sub(self.entries.len())
    }

    #[inline]
    fn add(&mut self, wc: &WorkCompletion, solicited: bool) {
        self.unannounced
            .add(match solicited || wc.status != WcStatus::Success {
                true => Kinds::SOLICITED,
                false => Kinds::UNSOLICITED,
            });
        self.entries.push(*wc);
        self.announce();
    }

    /// Takes completions, oldest first, into the front of `out`; returns their number. Fewer than `out.len()` means
    /// that the queue is now empty. If the first poll after an event leaves some, they count as solicited ones that were
    /// not announced.
    #[inline]
    pub fn poll(&mut self, out: &mut [WorkCompletion]) -> usize {
        let mut count = 0;
        for slot in out.iter_mut() {
            let Some(wc) = self.entries.oldest() else {
                break;
            };
            *slot = *wc;
            self.entries.remove_oldest();
            count += 1;
        }
        if self.entries.is_empty() {
            self.unannounced = Kinds::NONE;
            self.owner_polls = false;
        } else if count > 0 && core::mem::take(&mut self.owner_polls) {
            self.unannounced = Kinds::SOLICITED;
            self.announce();
        }
        count
    }

    /// The owner has taken the event that a notification led to, so it polls now. What is already queued needs no other
    /// event, unless the owner leaves it there.
    #[inline]
    pub fn event_taken(&mut self) {
        self.unannounced = Kinds::NONE;
        self.owner_polls = !self.entries.is_empty();
    }

    /// Discards the completions of a queue pair that is destroyed or reset.
    pub fn forget(&mut self, qpn: Qpn) {
        self.entries.retain(|wc| wc.qp_num != qpn);
    }

    /// Whether a completion of a queue pair may be queued. Only a limited number is looked at: it is true if there are more.
    pub fn may_have(&self, qpn: Qpn) -> bool {
        self.entries.len() > LOOKED_AT_MAX || self.entries.all().iter().any(|wc| wc.qp_num == qpn)
    }

    /// Requests one notification, at the next completion or the next solicited one. It is due at once if such a
    /// completion has arrived since the queue was last empty and was not announced. So an owner that polls and then arms
    /// misses nothing. One that has taken an event must poll ([`event_taken`](Self::event_taken)). Arming for any completion
    /// extends an earlier request for solicited ones, never the reverse.
    pub fn arm(&mut self, solicited_only: bool) {
        self.armed.add(match solicited_only {
            true => Kinds::SOLICITED,
            false => Kinds::ALL,
        });
        self.announce();
    }

    /// Whether a requested notification is still pending.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.armed != Kinds::NONE
    }

    /// Takes the notification: returns whether one is due.
    #[inline]
    pub fn take_notification(&mut self) -> bool {
        core::mem::take(&mut self.notification)
    }

    /// Makes a notification due if the queue is armed and has unannounced completions.
    #[inline]
    fn announce(&mut self) {
        if self.armed.have_any_of(self.unannounced) {
            self.armed = Kinds::NONE;
            self.unannounced = Kinds::NONE;
            self.notification = true;
        }
    }
}

#[cfg(test)]
mod tests;
