//! Planted defects: what the simulator must find to be believed when it finds nothing.
//!
//! Without the feature `mutants`, which nothing that ships turns on, `is_planted` is `false` to the
//! compiler and no trace of them remains. With it a thread plants one at a time, and none at first.

/// A defect of the queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// An acknowledgement counts for one packet more than it says.
    AcknowledgesTooMuch,
    /// A copy of an atomic is carried out like the first.
    AtomicExecutedAgain,
    /// A request that was carried out is carried out again.
    DuplicateExecuted,
    /// A fenced request does not wait for the reads before it.
    FenceIgnored,
    /// What is flushed completes in the wrong order.
    FlushedBackwards,
    /// A request is carried out though one before it is missing.
    GapUnnoticed,
    /// The data of a datagram takes the room of its network header.
    HeaderRoomTaken,
    /// The limit of a shared receive queue stays armed when it was told.
    LimitStaysArmed,
    /// On an unreliable connection the packet after a lost one is taken for the lost one.
    LossInMessageUnnoticed,
    /// "Receiver not ready" is not heard.
    NotReadyIgnored,
    /// "Receiver not ready" counts as an acknowledgement.
    NotReadyTakenForAck,
    /// Sequence numbers are compared as if they never wrapped.
    PsnsComparedAsIntegers,
    /// A datagram is taken whatever its Q_Key is.
    QKeyUnchecked,
    /// A peer may go beyond the end of a region.
    RangeUnchecked,
    /// Read responses have the sequence number after theirs.
    ReadNumberedFromNext,
    /// Receives left at the end do not complete.
    ReceivesNotFlushed,
    /// After the first timeout no other comes.
    TimerLost,
    /// As much is sent as was posted.
    WindowIgnored,
}

impl Mutant {
    /// Every one.
    pub const ALL: [Self; 18] = [
        Self::AcknowledgesTooMuch,
        Self::AtomicExecutedAgain,
        Self::DuplicateExecuted,
        Self::FenceIgnored,
        Self::FlushedBackwards,
        Self::GapUnnoticed,
        Self::HeaderRoomTaken,
        Self::LimitStaysArmed,
        Self::LossInMessageUnnoticed,
        Self::NotReadyIgnored,
        Self::NotReadyTakenForAck,
        Self::PsnsComparedAsIntegers,
        Self::QKeyUnchecked,
        Self::RangeUnchecked,
        Self::ReadNumberedFromNext,
        Self::ReceivesNotFlushed,
        Self::TimerLost,
        Self::WindowIgnored,
    ];
}

/// Whether the engines of this thread have the defect.
#[cfg(not(feature = "mutants"))]
pub(crate) const fn is_planted(_: Mutant) -> bool {
    false
}

#[cfg(feature = "mutants")]
pub(crate) use planted::is_planted;
#[cfg(feature = "mutants")]
pub use planted::plant;

#[cfg(feature = "mutants")]
mod planted {
    use core::cell::Cell;

    use super::Mutant;

    thread_local! {
        static PLANTED: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Gives the engines of this thread the defect, in place of any other, or none.
    pub fn plant(mutant: Option<Mutant>) {
        PLANTED.set(mutant);
    }

    /// Whether the engines of this thread have the defect.
    pub(crate) fn is_planted(mutant: Mutant) -> bool {
        PLANTED.get() == Some(mutant)
    }
}
