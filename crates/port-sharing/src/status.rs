//! The visible state of a group.

use super::block::Block;

/// A group as one member sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStatus {
    /// Whether this process is the coordinator.
    pub is_coordinator: bool,
    /// The coordinator's process id in this PID namespace; `None` if there is no coordinator or it is not visible.
    pub coordinator_pid: Option<u32>,
    /// The known members: all of them if this process is the coordinator, otherwise only itself.
    pub members: Vec<MemberStatus>,
    /// Counters.
    pub counters: GroupCounters,
}

/// A member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its block.
    pub block: Block,
    /// Its process id in this PID namespace, 0 if it is not visible.
    pub pid: u32,
    /// Its effective user id.
    pub uid: u32,
}

/// Counts of events in this process since it joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounters {
    /// Datagrams forwarded to another member or to the coordinator.
    pub forwarded: u64,
    /// Datagrams dropped because their connection was full or closing.
    pub queue_full: u64,
    /// Datagrams dropped because this process did not fetch them.
    pub inbox_full: u64,
    /// Datagrams dropped because no process has their block.
    pub no_member: u64,
    /// Management datagrams dropped because no member is their receiver, or because the receiver may not have registered
    /// again with a new coordinator.
    pub unrouted: u64,
    /// Datagrams to block 0 that are too short or too long for a packet.
    pub malformed: u64,
    /// Processes refused.
    pub refused: u64,
    /// Connections without a hello in time.
    pub hello_timeouts: u64,
    /// Connections closed because of protocol violations.
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
