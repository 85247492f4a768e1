//! What happens when the coordinator dies.
//!
//! 1. The kernel closes its sockets. That frees the group's name, and ends each member's connection to it (`uplink`).
//! 2. Each member becomes an orphan and tries to bind the name. One succeeds and is the new coordinator. The others
//!    connect to it, or retry after a pause (`backoff`).
//! 3. The new coordinator checks the names of all blocks. If a block's name is free, its process is dead, and every
//!    member is notified ([`MemberService::peer_death`](super::MemberService::peer_death)).
//! 4. Each member, the new coordinator included, registers its ports again
//!    ([`MemberService::replay`](super::MemberService::replay)). Until all living members have, or
//!    [`REPLAY_GRACE`](super::config::REPLAY_GRACE) is over, the coordinator answers no requests, and keeps the
//!    management datagrams for blocks whose members have not returned (`registry`, `connections`). A member that comes
//!    later loses the ports that others have taken meanwhile
//!    ([`MemberService::replayed`](super::MemberService::replayed)). Until it comes, or
//!    [`RETURN_TIME_MAX`](super::config::RETURN_TIME_MAX) is over, the coordinator drops requests to services without a
//!    registered listener, because the listener may be such a member.
//!
//! Meanwhile data flows: each process reads its own block's sockets, which `descriptor_store` keeps open.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::block::{Block, BlockSet};
use super::config::BACKOFF_MAX;
use super::coordinator::Coordinator;
use super::fork::PrivateFd;
use super::name::Call;
use super::state::{MemberState, REFUSED_PAUSE, Role};
use super::stranger;
use super::trust::{Credentials, Own};
use super::uplink::Uplink;

impl MemberState {
    /// The connection to the coordinator has ended. The first attempt to replace it is due after `wait`.
    pub(super) fn lose_coordinator(&mut self, wait: Duration, now: Instant) {
        let mut backoff = Backoff::start(self.context.own, now);
        if !wait.is_zero() {
            backoff.failed(wait, now);
        }
        if let Role::Member(uplink) = &self.role {
            uplink.unwatch(&self.context);
            self.context.counters.coordinators_lost += u64::from(uplink.is_joined());
        }
        self.role = Role::Orphan(backoff);
        self.requests.coordinator_lost(now);
        self.context.surveys.clear();
        self.replay_due = false;
    }

    /// Tries once to become the coordinator, or else to find it.
    pub(super) fn elect(&mut self, now: Instant) {
        let elected = match self.context.name.listen() {
            Ok(Some(listener)) => self.become_coordinator(listener),
            Ok(None) => self.find_coordinator(now),
            Err(errno) => {
                tracing::warn!(%errno, "cannot bind the coordinator's name");
                Err(BACKOFF_MAX)
            }
        };
        match (elected, &mut self.role) {
            (Ok(role), _) => self.role = role,
            (Err(wait), Role::Orphan(backoff)) => {
                backoff.failed(wait, now);
                if stranger::is_time_to_look(backoff.attempts())
                    && let Some(cause) =
                        stranger::with_name(&self.context.name, &self.context.config.trust)
                {
                    self.shut_out(cause);
                }
            }
            (Err(_), _) => {}
        }
    }

    /// Becomes the coordinator, or returns the minimum wait before the next attempt.
    fn become_coordinator(&mut self, listener: PrivateFd) -> Result<Role, Duration> {
        // The living members will reconnect; blocks of dead processes are retired.
        let own = self.context.own;
        let (mut alive, mut dead) = (BlockSet::EMPTY, BlockSet::EMPTY);
        let places = self.context.places();
        for block in Block::members() {
            match block != own && self.context.retire_if_dead(&places, block) {
                true => dead.insert(block),
                false => alive.insert(block),
            }
        }
        // The look may have taken long, and the members have their whole time from now on.
        let now = Instant::now();
        match Coordinator::open(listener, alive, dead, &mut self.context, now) {
            Ok(coordinator) => {
                self.shut_out = None;
                self.context.counters.times_coordinator += 1;
                self.context.service.reset();
                self.new_epoch();
                Ok(Role::Coordinator(Box::new(coordinator)))
            }
            Err(error) => {
                // Dropping the listener lets another member try.
                tracing::warn!(%error, "cannot serve as coordinator");
                Err(BACKOFF_MAX)
            }
        }
    }

    /// Connects to the coordinator, or returns the minimum wait before the next attempt.
    fn find_coordinator(&mut self, now: Instant) -> Result<Role, Duration> {
        let connection = match self.context.name.call() {
            Ok(Call::Connected(connection)) => connection,
            Ok(Call::NobodyListens | Call::Busy) => return Err(Duration::ZERO),
            Err(errno) => {
                tracing::warn!(%errno, "cannot call the coordinator");
                return Err(BACKOFF_MAX);
            }
        };
        let coordinator = Credentials::of_peer(connection.as_fd()).map_err(|_| BACKOFF_MAX)?;
        let own = Own::here();
        if !self.context.config.trust.admits(own, coordinator.uid) {
            self.shut_out(stranger::not_trusted(coordinator, own));
            return Err(REFUSED_PAUSE);
        }
        let uplink = Uplink::rejoin(connection, coordinator, &mut self.context, now);
        uplink.map(Role::Member).map_err(|_| Duration::ZERO)
    }
}
