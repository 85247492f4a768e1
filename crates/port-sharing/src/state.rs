//! A member's whole state: the role context, its current role, and its requests.
//!
//! The connection to the coordinator determines the role. While it lasts, this process is a plain member. When it ends,
//! `election` decides what it becomes.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use portolan_provider::Cause;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;

use super::backoff::Backoff;
use super::block::Block;
use super::config::{BACKOFF_MAX, EVENTS_PER_TURN, REPLAYS_MAX};
use super::context::{KEY_UPLINK, RoleContext};
use super::coordinator::Coordinator;
use super::datagram::Datagram;
use super::requests::Requests;
use super::status::{GroupStatus, MemberStatus};
use super::stranger;
use super::trust::{Credentials, Own};
use super::uplink::{Outcome, Uplink};

/// How long a process waits before it connects again to a coordinator that refused it or that it does not trust.
/// Meanwhile it keeps its block and its packets; it only misses requests and management datagrams.
pub(super) const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// A member's state, under one lock.
#[derive(Debug)]
pub(super) struct MemberState {
    pub(super) context: RoleContext,
    pub(super) requests: Requests,
    pub(super) role: Role,
    /// Number of coordinator changes, so that a replay goes to the coordinator it was made for.
    epoch: u64,
    pub(super) replay_due: bool,
    /// Why this process is not a member under the current coordinator, if so.
    pub(super) shut_out: Option<Cause>,
}

#[derive(Debug)]
pub(super) enum Role {
    /// Reads block 0 and serves the others.
    Coordinator(Box<Coordinator>),
    /// Has a coordinator, or waits for a new one's welcome.
    Member(Uplink),
    /// Has no coordinator.
    Orphan(Backoff),
    /// Has left the group.
    Left,
}

/// Work that a turn leaves to the caller.
#[derive(Clone, Debug, Default)]
pub(super) struct Turned {
    /// A request was answered.
    pub(super) answered: bool,
    /// Registrations to replay to the coordinator of this epoch, without the lock.
    pub(super) replay: Option<u64>,
    /// Surveys to answer; the report is made without the lock.
    pub(super) surveys: Vec<u64>,
}

impl MemberState {
    pub(super) fn new(context: RoleContext, role: Role) -> Self {
        let mut state = Self {
            context,
            requests: Requests::default(),
            role,
            epoch: 0,
            replay_due: false,
            shut_out: None,
        };
        if matches!(state.role, Role::Coordinator(_)) {
            state.context.counters.times_coordinator = 1;
            state.context.service.reset();
        }
        state
    }

    /// Does all work that is possible without waiting.
    pub(super) fn turn(&mut self, now: Instant) -> Turned {
        let mut turned = Turned::default();
        let mut events = [MaybeUninit::uninit(); EVENTS_PER_TURN];
        let no_wait = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match epoll::wait(self.context.as_fd(), &mut events, Some(&no_wait)) {
            Ok((events, _)) => {
                for event in events {
                    self.ready(event.data.u64(), event.flags, now, &mut turned);
                }
            }
            Err(Errno::INTR) => {}
            Err(errno) => tracing::error!(%errno, "epoll_wait"),
        }
        self.timers(now, &mut turned);
        self.send_requests(now, &mut turned);
        if std::mem::take(&mut self.replay_due) {
            turned.replay = Some(self.epoch);
        }
        turned.surveys = std::mem::take(&mut self.context.surveys);
        turned
    }

    /// Registers everything again, if the coordinator of `epoch` is still the current one.
    pub(super) fn replay(&mut self, epoch: u64, payloads: &[Vec<u8>]) {
        if epoch != self.epoch {
            return;
        }
        if payloads.len() > REPLAYS_MAX {
            let (count, limit) = (payloads.len(), REPLAYS_MAX);
            tracing::error!(
                count,
                limit,
                "too many registrations: the last are not replayed"
            );
        }
        let payloads = payloads.get(..REPLAYS_MAX).unwrap_or(payloads);
        match &mut self.role {
            Role::Coordinator(coordinator) => {
                for payload in payloads {
                    let answer = self.context.ask_service(self.context.own, payload);
                    self.context.replayed.push((payload.clone(), answer));
                }
                coordinator.own_replay_done(&self.context);
            }
            Role::Member(uplink) => uplink.replay(payloads, &mut self.context),
            Role::Orphan(_) | Role::Left => {}
        }
    }

    /// Leaves the group for good, as a dying process would. If it was the coordinator, the others notice.
    pub(super) fn leave(&mut self) {
        self.context.leave();
        self.role = Role::Left;
        self.replay_due = false;
        self.shut_out = Some(Cause::GroupRefused("this process has left it".to_owned()));
    }

    /// Whether this process has left the group for good.
    pub(super) fn has_left(&self) -> bool {
        matches!(self.role, Role::Left)
    }

    /// Answers surveys of the current coordinator; surveys of a former one have lost their observer.
    pub(super) fn report(&mut self, surveys: &[u64], payloads: &[Vec<u8>]) {
        for survey in surveys {
            match &mut self.role {
                Role::Coordinator(coordinator) => {
                    coordinator.report(*survey, payloads, &mut self.context)
                }
                Role::Member(uplink) if uplink.is_joined() => {
                    uplink.report(*survey, payloads, &mut self.context);
                }
                Role::Member(_) | Role::Orphan(_) | Role::Left => {}
            }
        }
    }

    /// Sends a datagram that arrived here to the process that owns its block.
    pub(super) fn forward(&mut self, block: Block, datagram: Datagram<'_>) {
        if block == self.context.own {
            self.context.deliver(&datagram);
            return;
        }
        match &mut self.role {
            Role::Coordinator(coordinator) => {
                coordinator.forward(block, datagram, &mut self.context);
            }
            Role::Member(uplink) => {
                uplink.forward(block, datagram, &mut self.context);
            }
            Role::Orphan(_) | Role::Left => self.context.counters.no_member += 1,
        }
    }

    /// Delivers a datagram that this process sends to QP1 of its own host, without a socket. `false` if it must be sent.
    pub(super) fn deliver_here(&mut self, datagram: Datagram<'_>) -> bool {
        match &mut self.role {
            // A socket's buffer holds more than the queues.
            Role::Coordinator(coordinator) => {
                coordinator.forward(Block::COORDINATOR, datagram, &mut self.context)
            }
            // Half of UDP's work, and it wakes the coordinator in the same way.
            Role::Member(uplink) if uplink.is_joined() => {
                uplink.forward(Block::COORDINATOR, datagram, &mut self.context)
            }
            Role::Member(_) | Role::Orphan(_) | Role::Left => false,
        }
    }

    /// When [`turn`](Self::turn) has work although no descriptor is ready.
    pub(super) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let requests = self.requests.next_timeout();
        match &self.role {
            Role::Coordinator(coordinator) => {
                let requests = requests.filter(|_| coordinator.registry().grace(now).is_none());
                [coordinator.next_timeout(now), requests]
                    .into_iter()
                    .flatten()
                    .min()
            }
            Role::Member(uplink) if uplink.is_joined() => requests,
            Role::Member(uplink) => uplink.next_timeout(),
            Role::Orphan(backoff) => Some(backoff.next_at()),
            Role::Left => None,
        }
    }

    /// Number of coordinator changes.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The coordinator, if it is another process.
    pub(super) fn coordinator(&self) -> Option<Credentials> {
        match &self.role {
            Role::Member(uplink) => Some(uplink.coordinator()),
            Role::Coordinator(_) | Role::Orphan(_) | Role::Left => None,
        }
    }

    /// Why this process is not a member under the current coordinator, if so.
    pub(super) fn why_shut_out(&self) -> Option<&Cause> {
        self.shut_out.as_ref()
    }

    pub(super) fn status(&self) -> GroupStatus {
        let pid = std::process::id();
        let own = MemberStatus {
            block: self.context.own,
            pid,
            uid: Own::here().uid,
        };
        let mut members = vec![own];
        let (is_coordinator, coordinator_pid) = match &self.role {
            Role::Coordinator(coordinator) => {
                let others = coordinator.registry().members();
                members.extend(
                    others.map(|(block, Credentials { pid, uid })| MemberStatus {
                        block,
                        pid,
                        uid,
                    }),
                );
                (true, Some(pid))
            }
            Role::Member(uplink) => (
                false,
                Some(uplink.coordinator().pid).filter(|pid| *pid != 0),
            ),
            Role::Orphan(_) | Role::Left => (false, None),
        };
        members.sort_by_key(|member| member.block);
        GroupStatus {
            is_coordinator,
            coordinator_pid,
            members,
            counters: self.context.counters,
        }
    }

    fn ready(&mut self, key: u64, flags: EventFlags, now: Instant, turned: &mut Turned) {
        match &mut self.role {
            Role::Coordinator(coordinator) => coordinator.ready(key, flags, &mut self.context, now),
            Role::Member(uplink) if key == KEY_UPLINK => {
                let outcome = uplink.ready(flags, &mut self.context, &mut self.requests, now);
                self.follow(outcome, now, turned);
            }
            Role::Member(_) | Role::Orphan(_) | Role::Left => {}
        }
    }

    fn timers(&mut self, now: Instant, turned: &mut Turned) {
        match &mut self.role {
            Role::Coordinator(coordinator) => coordinator.timers(&mut self.context, now),
            Role::Member(uplink) => {
                let outcome = uplink.timers(now);
                self.follow(outcome, now, turned);
            }
            Role::Orphan(_) | Role::Left => {}
        }
        // Also right after the coordinator was lost, because the first attempt is due at once.
        if let Role::Orphan(backoff) = &self.role
            && backoff.is_due(now)
        {
            self.elect(now);
        }
    }

    fn follow(&mut self, outcome: Outcome, now: Instant, turned: &mut Turned) {
        match outcome {
            Outcome::Lasts { welcomed, answered } => {
                turned.answered |= answered;
                if welcomed {
                    self.shut_out = None;
                    self.new_epoch();
                }
            }
            Outcome::Lost { wait } => self.lose_coordinator(wait, now),
            Outcome::Refused(refusal) => {
                if let Some(coordinator) = self.coordinator() {
                    let RoleContext { name, config, .. } = &self.context;
                    self.shut_out(stranger::refusal_cause(
                        refusal,
                        coordinator,
                        name,
                        &config.trust,
                    ));
                }
                self.lose_coordinator(REFUSED_PAUSE, now);
            }
        }
    }

    pub(super) fn new_epoch(&mut self) {
        self.epoch += 1;
        self.replay_due = true;
    }

    /// There is a coordinator, but this process is not its member.
    pub(super) fn shut_out(&mut self, why: Cause) {
        if self.shut_out.as_ref() != Some(&why) {
            tracing::error!(
                %why,
                "requests and management datagrams do not reach this process"
            );
        }
        self.shut_out = Some(why);
    }

    fn send_requests(&mut self, now: Instant, turned: &mut Turned) {
        match &mut self.role {
            Role::Coordinator(coordinator) if coordinator.registry().grace(now).is_none() => {
                for (id, payload) in self.requests.take_due(now) {
                    let response = self.context.ask_service(self.context.own, &payload);
                    turned.answered |= self.requests.answered(id, response);
                }
            }
            Role::Member(uplink) if uplink.is_joined() => {
                for (id, payload) in self.requests.take_due(now) {
                    uplink.request(id, &payload, &mut self.context);
                }
            }
            Role::Coordinator(_) | Role::Member(_) | Role::Orphan(_) | Role::Left => {}
        }
    }

    /// Maximum interval between a leader's checks of the state, in case it misses a wake-up.
    pub(super) const LOOK_INTERVAL: Duration = BACKOFF_MAX;
}
