//! Members of multicast groups.

use std::net::Ipv4Addr;
use std::time::Duration;

use portolan_provider::cm::JoinKind;

use super::Class;
use crate::simulator::rng::Rng;

/// A program with an id that joins groups.
#[derive(Clone, Debug)]
pub(in crate::simulator) struct MemberPlan {
    pub(in crate::simulator) host: usize,
    pub(in crate::simulator) start_at: Duration,
    pub(in crate::simulator) joins: Vec<JoinPlan>,
    /// When it destroys its id, counted from the start.
    pub(in crate::simulator) destroy_after: Duration,
}

/// One membership.
#[derive(Clone, Copy, Debug)]
pub(in crate::simulator) struct JoinPlan {
    pub(in crate::simulator) group: Ipv4Addr,
    pub(in crate::simulator) kind: JoinKind,
    /// Time since the program's start.
    pub(in crate::simulator) after: Duration,
    /// Whether the host's sockets can join.
    pub(in crate::simulator) succeeds: bool,
    /// How long the join takes.
    pub(in crate::simulator) answer_delay: Duration,
    pub(in crate::simulator) leaving: Leaving,
}

/// When a group is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulator) enum Leaving {
    /// When the id is destroyed.
    WithId,
    /// This long after the join.
    After(Duration),
    /// After the host's answer and before the program takes the event.
    BeforeEvent,
}

/// Groups to join.
const GROUPS: [Ipv4Addr; 3] = [
    Ipv4Addr::new(239, 1, 2, 3),
    Ipv4Addr::new(239, 1, 2, 4),
    Ipv4Addr::new(224, 0, 1, 129),
];

/// Members on IPv4 hosts; the simulator models groups for IPv4 only.
pub(super) fn draw_members(rng: &mut Rng, class: Class, hosts: usize) -> Vec<MemberPlan> {
    let count = rng.below(if class == Class::Chaos { 8 } else { 5 });
    (0..count).map(|_| MemberPlan::draw(rng, hosts)).collect()
}

impl MemberPlan {
    fn draw(rng: &mut Rng, hosts: usize) -> Self {
        let (joins, longest_ms) = (rng.between(1, 4), rng.pick(&[5, 500, 9000]));
        Self {
            host: rng.below(hosts as u64) as usize,
            start_at: rng.millis(1, 3000),
            joins: (0..joins).map(|_| JoinPlan::draw(rng)).collect(),
            destroy_after: rng.millis(0, longest_ms),
        }
    }
}

impl JoinPlan {
    fn draw(rng: &mut Rng) -> Self {
        let longest_ms = rng.pick(&[0, 5, 500]);
        let slowest_ms = rng.pick(&[1, 50, 4000]);
        Self {
            group: rng.pick(&GROUPS),
            kind: rng.pick(&[JoinKind::FullMember, JoinKind::SendOnlyFullMember]),
            after: rng.millis(0, longest_ms),
            succeeds: rng.percent(80),
            answer_delay: rng.millis(0, slowest_ms),
            leaving: match rng.below(10) {
                0..4 => Leaving::WithId,
                4..9 => Leaving::After(rng.millis(0, slowest_ms * 2)),
                _ => Leaving::BeforeEvent,
            },
        }
    }
}
