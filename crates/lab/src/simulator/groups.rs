//! Multicast groups of a machine: the memberships of its sockets and of its programs.

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

/// State of the sockets for a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Joining,
    Joined,
}

/// A membership as its program knows it, under the program's name for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Join {
    pub(super) agent: AgentKey,
    pub(super) membership: MembershipNumber,
    /// Index of the planned member, and of its join.
    pub(super) member: usize,
    pub(super) number: usize,
    /// When the answer is overdue.
    pub(super) due: Duration,
    /// Whether its event was reported.
    pub(super) is_told: bool,
}

impl Sockets {
    /// The engine asks to join or to leave a group. Returns the membership to join, if any.
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

    /// The sockets have finished joining. Ignored if the membership was left meanwhile.
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
