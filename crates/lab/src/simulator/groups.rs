//! Multicast groups of a machine: what its sockets have joined, and what its programs know of it.

use std::collections::BTreeMap;
use std::time::Duration;

use portolan_cm::{GroupQuery, Membership, MembershipNumber};

use super::AgentKey;
use super::failure::{Violation, ensure, violation};

/// The machine's sockets.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    memberships: BTreeMap<MembershipNumber, Stage>,
}

/// How far the sockets are with a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Joining,
    Joined,
}

/// A membership as its program knows it, by the name that the program gave it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Join {
    pub(super) agent: AgentKey,
    pub(super) membership: MembershipNumber,
    /// Of the planned ones: whose, and which of theirs.
    pub(super) member: usize,
    pub(super) number: usize,
    /// When the answer is overdue.
    pub(super) due: Duration,
    /// Whether its event came.
    pub(super) is_told: bool,
}

impl Sockets {
    /// The engine wants a group joined or left. The membership that is to be joined.
    pub(super) fn take(&mut self, query: GroupQuery) -> Result<Option<Membership>, Violation> {
        match query {
            GroupQuery::Join(membership) => {
                let before = self.memberships.insert(membership.number, Stage::Joining);
                ensure!(before.is_none(), "{:?} is joined twice", membership.number);
                Ok(Some(membership))
            }
            GroupQuery::Leave(Membership { number, .. }) => {
                match self.memberships.remove(&number) {
                    Some(_) => Ok(None),
                    None => Err(violation!("{number:?} is left, but was not joined")),
                }
            }
        }
    }

    /// The sockets are done with joining, unless that was taken back.
    pub(super) fn finish(&mut self, number: MembershipNumber, succeeds: bool) {
        let Some(stage) = self.memberships.get_mut(&number) else {
            return;
        };
        if succeeds {
            *stage = Stage::Joined;
        } else {
            self.memberships.remove(&number);
        }
    }

    pub(super) fn has_joined(&self, number: MembershipNumber) -> bool {
        self.memberships.get(&number) == Some(&Stage::Joined)
    }

    pub(super) fn len(&self) -> usize {
        self.memberships.len()
    }
}
