//! Planted defects of what the library does above the engines: event channels, and the group of processes that
//! share a port.

use std::cell::Cell;

/// A defect of how ids move between channels, or of how deaths are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Events that wait stay behind when their id migrates.
    EventsLeftBehind,
    /// The requests that wait at a listener stay behind when it migrates, but not their ids.
    RequestsLeftBehind,
    /// The coordinator waits without end to tell a process of a death, which died before it could be told.
    DeadMemberStaysBehind,
}

impl Mutant {
    /// Every one.
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
