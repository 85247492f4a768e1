//! Planted defects in the library's part above the engines: event channels, and the group of
//! processes that share a port.

use std::cell::Cell;

/// A defect in the migration of ids between channels, or in the announcement of deaths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Waiting events stay behind when their id migrates.
    EventsLeftBehind,
    /// Waiting requests stay behind when their listener migrates, but the requests' ids move.
    RequestsLeftBehind,
    /// The coordinator waits forever to announce a death to a process that is itself dead.
    DeadMemberStaysBehind,
}

impl Mutant {
    /// All mutants.
    pub const ALL: [Self; 3] = [
        Self::EventsLeftBehind,
        Self::RequestsLeftBehind,
        Self::DeadMemberStaysBehind,
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
