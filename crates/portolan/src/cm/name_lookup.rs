//! The state of an id's name lookup.

use portolan_addrinfo::AddrInfo;
use portolan_addrinfo::background::Outcome;
use portolan_addrinfo::names::pool::Pending;
use portolan_wire::Gid;

/// The state of an id's lookup. Each lookup has a number, which its event carries; the event of an
/// abandoned lookup is ignored.
#[derive(Debug, Default)]
pub(super) struct NameLookup {
    pub(super) number: u64,
    pub(super) stage: Stage,
    /// GID of the InfiniBand port that the id is bound to.
    pub(super) fabric_port: Option<Gid>,
}

#[derive(Debug, Default)]
pub(super) enum Stage {
    /// No lookup is in progress.
    #[default]
    Idle,
    /// A lookup is in progress; dropping the value cancels it.
    Started(#[allow(dead_code, reason = "held for its drop")] Option<Pending>),
    /// The lookup has ended and its event is queued.
    Ended(Box<Outcome>),
    /// The event was taken; the result can be taken.
    Ready(Vec<AddrInfo>),
    /// The id is destroyed.
    Closed,
}
