//! Planted defects: what the simulator must find to be believed when it finds nothing.
//!
//! Without the feature `mutants`, which nothing that ships turns on, `is_planted` is `false` to the
//! compiler and no trace of them remains. With it a thread plants one at a time, and none at first.

/// A defect of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// What a destroyed id answered to a SIDR REQ is forgotten with it.
    AnswerForgotten,
    /// Communication ids are drawn from other blocks than the engine's own.
    BlockIgnored,
    /// A copy of a REQ is taken for a new one.
    CopyMakesSecondChild,
    /// A copy of a SIDR REQ is taken for a new one.
    CopyMakesSecondQuestion,
    /// The ports of an owner that is gone stay taken.
    DeadOwnersPortsKept,
    /// What was displaced before it was taken is still offered to its taker.
    DisplacedStillQueued,
    /// The end of a connection is reported as often as it is learned of.
    DisconnectToldTwice,
    /// The peer asked for more time (MRA) and gets none.
    GrantIgnored,
    /// Any number of connections may be half-open.
    HalfOpenUnbounded,
    /// A request that is held for a listener is not given to it.
    HeldForgotten,
    /// A group that the host is still joining is not left when its member leaves.
    JoinNotTakenBack,
    /// The event of a membership comes even if it was left before.
    LeftGroupStillTold,
    /// A destroyed id stays in its groups.
    MembershipsLeak,
    /// A destroyed id leaves the names of its peer in the tables.
    NamesLeak,
    /// Any Q_Key that a SIDR REP gives is taken.
    QkeyNotCompared,
    /// A SIDR REQ that was lost is not sent again.
    QuestionAskedOnce,
    /// A REP that was lost is not sent again.
    RepSentOnce,
    /// A late copy of the REQ of a destroyed connection opens a new one.
    StaleRequestTaken,
    /// A message is sent again once, and then its timer is gone.
    TimerLost,
    /// Time-wait is over at once.
    TimewaitSkipped,
}

impl Mutant {
    /// Every one.
    pub const ALL: [Self; 20] = [
        Self::AnswerForgotten,
        Self::BlockIgnored,
        Self::CopyMakesSecondChild,
        Self::CopyMakesSecondQuestion,
        Self::DeadOwnersPortsKept,
        Self::DisplacedStillQueued,
        Self::DisconnectToldTwice,
        Self::GrantIgnored,
        Self::HalfOpenUnbounded,
        Self::HeldForgotten,
        Self::JoinNotTakenBack,
        Self::LeftGroupStillTold,
        Self::MembershipsLeak,
        Self::NamesLeak,
        Self::QkeyNotCompared,
        Self::QuestionAskedOnce,
        Self::RepSentOnce,
        Self::StaleRequestTaken,
        Self::TimerLost,
        Self::TimewaitSkipped,
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

    /// Gives the engines of this thread the defect, in place of any other, or none.
    pub fn plant(mutant: Option<Mutant>) {
        PLANTED.set(mutant);
    }

    /// Whether the engines of this thread have the defect.
    pub(crate) fn is_planted(mutant: Mutant) -> bool {
        PLANTED.get() == Some(mutant)
    }
}
