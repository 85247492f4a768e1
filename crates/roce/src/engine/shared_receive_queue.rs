//! Shared receive queues: receives that several queue pairs use (IBTA 10.2.9).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use portolan_provider::verbs::{RecvWr, Sge, SrqAttr, Srqn};
use portolan_provider::{Error, Result, Step};

use super::mutant::{Mutant, is_planted};
use super::qp::{ReceiveEntry, check_pieces, full};
use super::{PdId, QpLimits};

/// A shared receive queue.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    srqn: Srqn,
    pd: PdId,
    attr: SrqAttr,
    max_wr: u32,
    entries: VecDeque<ReceiveEntry>,
    spare_sges: Vec<Vec<Sge>>,
    limit_reached: bool,
}

impl SharedReceiveQueue {
    /// Creates an empty queue. `max_wr` limits its size, `limits` the scatter/gather elements of a receive.
    ///
    /// # Errors
    /// `InvalidArgument` for a size of 0 or above the maximum, or a limit greater than the size.
    pub fn new(
        srqn: Srqn,
        pd: PdId,
        attr: &SrqAttr,
        max_wr: u32,
        limits: &QpLimits,
    ) -> Result<Self> {
        check_size(Step::CreateSrq, attr.max_wr, max_wr)?;
        if attr.max_sge > limits.max_sge {
            let expected = format_args!("at most {}", limits.max_sge);
            return Err(Error::invalid(
                Step::CreateSrq,
                "max_sge",
                expected,
                attr.max_sge,
            ));
        }
        check_limit(Step::CreateSrq, attr.srq_limit, attr.max_wr)?;
        Ok(Self {
            srqn,
            pd,
            attr: *attr,
            max_wr,
            entries: VecDeque::new(),
            spare_sges: Vec::new(),
            limit_reached: false,
        })
    }

    /// Its number.
    pub fn number(&self) -> Srqn {
        self.srqn
    }

    /// Its protection domain.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Number of queued receives.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The sizes, and the limit while it is armed (`ibv_query_srq(3)`).
    pub fn query(&self) -> SrqAttr {
        self.attr
    }

    /// Appends a receive (`ibv_post_srq_recv(3)`).
    ///
    /// # Errors
    /// `LimitReached` for a full queue; `InvalidArgument` for too many scatter/gather elements.
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<()> {
        if self.entries.len() >= self.attr.max_wr as usize {
            let what = "receive work requests";
            return Err(full(Step::PostReceive, what, self.attr.max_wr));
        }
        check_pieces(wr, self.attr.max_sge)?;
        let spare = self.spare_sges.pop().unwrap_or_default();
        self.entries.push_back(ReceiveEntry::new(wr, spare));
        Ok(())
    }

    /// Takes the oldest receive (see `ReceiveSource::take`). If fewer than the limit remain, an event is due once, and
    /// the limit is disarmed.
    pub fn take(&mut self, spare: Vec<Sge>) -> Option<ReceiveEntry> {
        let entry = self.entries.pop_front()?;
        if self.spare_sges.len() < self.attr.max_wr as usize {
            self.spare_sges.push(spare);
        }
        if self.entries.len() < self.attr.srq_limit as usize {
            if !is_planted(Mutant::LimitStaysArmed) {
                self.attr.srq_limit = 0;
            }
            self.limit_reached = true;
        }
        Some(entry)
    }

    /// Takes the limit event: whether the owner must be notified that the limit was reached.
    pub fn take_limit_event(&mut self) -> bool {
        core::mem::take(&mut self.limit_reached)
    }

    /// Changes the size, rearms the limit, or both (`ibv_modify_srq(3)`). The limit is checked whenever a receive is
    /// taken, so a limit above the remaining number takes effect with the next.
    ///
    /// # Errors
    /// `InvalidArgument` for a size above the maximum or below the number of queued receives, or a limit greater than
    /// the size. An error changes nothing.
    pub fn modify(&mut self, max_wr: Option<u32>, srq_limit: Option<u32>) -> Result<()> {
        let size = max_wr.unwrap_or(self.attr.max_wr);
        let limit = srq_limit.unwrap_or(self.attr.srq_limit);
        check_size(Step::ModifySrq, size, self.max_wr)?;
        if (size as usize) < self.entries.len() {
            let expected = format_args!("at least the {} posted", self.entries.len());
            return Err(Error::invalid(Step::ModifySrq, "max_wr", expected, size));
        }
        check_limit(Step::ModifySrq, limit, size)?;
        self.attr.max_wr = size;
        self.attr.srq_limit = limit;
        Ok(())
    }
}

fn check_size(step: Step, found: u32, max: u32) -> Result<()> {
    if (1..=max).contains(&found) {
        return Ok(());
    }
    Err(Error::invalid(
        step,
        "max_wr",
        format_args!("1 to {max}"),
        found,
    ))
}

fn check_limit(step: Step, found: u32, max: u32) -> Result<()> {
    if found <= max {
        return Ok(());
    }
    let expected = format_args!("at most max_wr, {max}");
    Err(Error::invalid(step, "srq_limit", expected, found))
}
