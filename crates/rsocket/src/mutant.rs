//! Planted defects, which the simulator must find to show that its checks work.
//!
//! Without the feature `mutants`, which no shipped build enables, `is_planted` is constantly `false` and compiles away.
//! With it, a thread plants one defect at a time, initially none.

/// A defect of the endpoints of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Numbers in memory are written in the own byte order.
    ByteOrderIgnored,
    /// Ending the own direction ends the peer's, too.
    CloseEndsBoth,
    /// More control messages are under way than have places.
    ControlUnbounded,
    /// The peer's credits are not respected.
    CreditsIgnored,
    /// Credits are granted with half of the buffer only.
    CreditsOnlyWithRoom,
    /// A write to mapped memory may pass its end.
    DirectPassesEnd,
    /// The end of both directions is not noted when its message has gone out.
    DisconnectNotNoted,
    /// The end of a direction is lost if its message finds no place.
    EndForgotten,
    /// The peer's table is written at the same entry each time.
    EntryRepeated,
    /// A broken connection counts as an end in order.
    FailureIsEnd,
    /// A stream that has ended in order fails when its connection goes.
    EndIsFailure,
    /// Work under way is forgotten when a caller asks whether all has arrived.
    FlushedEarly,
    /// Work is posted on a broken connection.
    GoesOnAfterFailure,
    /// Half of the buffer is granted as soon as some of it has been read.
    HalfGrantedUnread,
    /// Data of any length is sent inline.
    InlineUnlimited,
    /// Iomap entries are written over the target table.
    IomapOverTable,
    /// The message of a write goes out before it.
    MessageFirst,
    /// The place of a completed write stays reserved.
    PlaceLeaks,
    /// Places of the send queue are not reserved.
    PlaceNotReserved,
    /// The peer's end is not noted by a side that has ended its own direction.
    PeerEndIgnored,
    /// Sent data may be overwritten before it has arrived.
    SendBufferNotReserved,
    /// An entry of the target table is used again and again.
    TableEntryStays,
    /// Data that was not read is dropped when both directions have ended.
    UnreadDropped,
}

impl Mutant {
    /// Every one.
    pub const ALL: [Self; 23] = [
        Self::ByteOrderIgnored,
        Self::CloseEndsBoth,
        Self::ControlUnbounded,
        Self::CreditsIgnored,
        Self::CreditsOnlyWithRoom,
        Self::DirectPassesEnd,
        Self::DisconnectNotNoted,
        Self::EndForgotten,
        Self::EntryRepeated,
        Self::FailureIsEnd,
        Self::EndIsFailure,
        Self::FlushedEarly,
        Self::GoesOnAfterFailure,
        Self::HalfGrantedUnread,
        Self::InlineUnlimited,
        Self::IomapOverTable,
        Self::MessageFirst,
        Self::PlaceLeaks,
        Self::PlaceNotReserved,
        Self::PeerEndIgnored,
        Self::SendBufferNotReserved,
        Self::TableEntryStays,
        Self::UnreadDropped,
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
    extern crate std;

    use core::cell::Cell;

    use super::Mutant;

    std::thread_local! {
        static PLANTED: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Plants the defect in the engines of this thread, replacing any other; `None` removes it.
    pub fn plant(mutant: Option<Mutant>) {
        PLANTED.set(mutant);
    }

    /// Whether the engines of this thread have the defect.
    pub(crate) fn is_planted(mutant: Mutant) -> bool {
        PLANTED.get() == Some(mutant)
    }
}
