//! Planted defects in the library's part above the engines: event channels, the group of
//! processes that share a port, and copies between processes of one host.

use std::cell::Cell;

/// A defect in the migration of ids between channels, in the announcement of deaths, or in copies between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Waiting events stay behind when their id migrates.
    EventsLeftBehind,
    /// Waiting requests stay behind when their listener migrates, but the requests' ids move.
    RequestsLeftBehind,
    /// The coordinator waits forever to announce a death to a process that is itself dead.
    DeadMemberStaysBehind,
    /// A process copies to another one's memory without checking the right.
    RightUnchecked,
    /// The record of a write with immediate data is sent before its bytes are copied.
    RecordBeforeData,
    /// A process that is asked to copy answers before the copy.
    PulledAnsweredFirst,
    /// A withdrawn region is used for something else although its use is announced.
    WithdrawnRegionCopied,
    /// The gate stays open when a withdrawal no longer waits for a stopped process.
    GateLeftOpen,
}

impl Mutant {
    /// All mutants.
    pub const ALL: [Self; 8] = [
        Self::EventsLeftBehind,
        Self::RequestsLeftBehind,
        Self::DeadMemberStaysBehind,
        Self::RightUnchecked,
        Self::RecordBeforeData,
        Self::PulledAnsweredFirst,
        Self::WithdrawnRegionCopied,
        Self::GateLeftOpen,
    ];
}

thread_local! {
    static PLANTED: Cell<Option<Mutant>> = const { Cell::new(None) };
}

pub(super) fn plant(mutant: Option<Mutant>) {
    PLANTED.set(mutant);
}

pub(super) fn is_planted(mutant: Mutant) -> bool {
    PLANTED.get() == Some(mutant)
}
