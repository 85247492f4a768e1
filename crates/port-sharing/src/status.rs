//! What can be seen of a group from outside.

use super::block::Block;

/// A group as one member sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStatus {
    /// Whether this process is the coordinator.
    pub is_coordinator: bool,
    /// The coordinator's process id as seen from here; `None` while there is no coordinator or it is out of sight.
    pub coordinator_pid: Option<u32>,
    /// The members this process knows of: all of them if it is the coordinator, else itself alone.
    pub members: Vec<MemberStatus>,
    /// What happened so far.
    pub counters: GroupCounters,
}

/// A member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its block.
    pub block: Block,
    /// Its process id as seen from here, 0 if it lives in a pid namespace that is out of sight.
    pub pid: u32,
    /// Its effective user id.
    pub uid: u32,
}

/// Counts of what happened in this process since it joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounters {
    /// Datagrams sent on to another member, or to the coordinator.
    pub forwarded: u64,
    /// Datagrams dropped because the connection they should go over was full or closing.
    pub queue_full: u64,
    /// Datagrams dropped because this process does not take them out.
    pub inbox_full: u64,
    /// Datagrams dropped because no process has their block.
    pub no_member: u64,
    /// Management datagrams dropped because they concern no member.
    pub unrouted: u64,
    /// Datagrams to block 0 too short or too long to be packets.
    pub malformed: u64,
    /// Processes not let in.
    pub refused: u64,
    /// Connections that never said hello.
    pub hello_timeouts: u64,
    /// Connections closed because of what they said.
    pub violations: u64,
    /// Times this process lost its coordinator.
    pub coordinators_lost: u64,
    /// Times this process became the coordinator, founding included.
    pub times_coordinator: u64,
}

impl GroupCounters {
    /// Name and value of each count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Self {
            forwarded,
            queue_full,
            inbox_full,
            no_member,
            unrouted,
            malformed,
            refused,
            hello_timeouts,
            violations,
            coordinators_lost,
            times_coordinator,
        } = *self;
        [
            ("forwarded", forwarded),
            ("queue_full", queue_full),
            ("inbox_full", inbox_full),
            ("no_member", no_member),
            ("unrouted", unrouted),
            ("malformed", malformed),
            ("refused", refused),
            ("hello_timeouts", hello_timeouts),
            ("violations", violations),
            ("coordinators_lost", coordinators_lost),
            ("times_coordinator", times_coordinator),
        ]
        .into_iter()
    }
}
