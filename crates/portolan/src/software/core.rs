//! The engine under its lock, and what its outputs lead to: events to their channels, datagrams to
//! the device, questions to the routing and neighbour tables and to the host's groups.

use portolan_threads::lock::Mutex;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use portolan_addrinfo::neighbour::Watch;
use portolan_cm::{Cm, Listed, MadPath};
use portolan_port_sharing::Block;
use portolan_provider::cm::MembershipNumber;
use portolan_provider::{Cause, Error, Result, Step};
use portolan_roce::io::{MadOptions, MulticastMembership, Stack};
use portolan_wire::addr::ServiceId;

use super::Usage;
use super::claim::ClaimId;
use super::ports::Claims;
use super::state::{Outputs, ProviderState};

/// The software rdma_cm of a process.
pub(super) struct Core {
    pub(super) epoch: Instant,
    pub(super) claims: Arc<Claims>,
    /// The groups that this process has joined on its interfaces for its ids.
    pub(super) groups: Mutex<HashMap<MembershipNumber, MulticastMembership>>,
    /// The watched next hops, by interface and address. Ids with the same next hop share its watch.
    pub(super) watches: Mutex<HashMap<(u32, IpAddr), Weak<Watch>>>,
    /// Both set once, when the block is known and before the stack runs.
    state: OnceLock<Mutex<ProviderState>>,
    stack: OnceLock<Arc<Stack>>,
    me: Weak<Self>,
}

impl Core {
    pub(super) fn new() -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            epoch: Instant::now(),
            claims: Arc::default(),
            groups: Mutex::default(),
            watches: Mutex::default(),
            state: OnceLock::new(),
            stack: OnceLock::new(),
            me: me.clone(),
        })
    }

    /// Makes it ready for use, once.
    pub(super) fn set(&self, cm: Cm, stack: &Arc<Stack>) {
        let _ = self.state.set(Mutex::new(ProviderState::new(cm)));
        let _ = self.stack.set(stack.clone());
    }

    /// For what the core itself keeps, which must not keep it.
    pub(super) fn downgrade(&self) -> Weak<Self> {
        self.me.clone()
    }

    pub(super) fn stack(&self) -> &Arc<Stack> {
        // `start` gives no core away before the stack is set.
        self.stack
            .get()
            .unwrap_or_else(|| unreachable!("a core is used after its start"))
    }

    /// How much there is of everything.
    pub(super) fn usage(&self) -> Usage {
        let sizes = self.state().cm.table_sizes();
        let objects = self.stack().objects();
        Usage {
            ids: sizes.ids,
            half_open: sizes.half_open,
            listeners: sizes.listeners,
            ports: self.claims.len(),
            memberships: sizes.memberships,
            protection_domains: objects.protection_domains,
            completion_queues: objects.completion_queues,
            queue_pairs: objects.queue_pairs,
            memory_regions: objects.memory_regions,
        }
    }

    /// The ids that have a peer.
    pub(super) fn listing(&self) -> Vec<Listed> {
        let listed = |state: &Mutex<ProviderState>| state.lock().cm.listing().collect();
        self.state.get().map_or_else(Vec::new, listed)
    }

    /// The services that ids listen on.
    pub(super) fn services(&self) -> HashSet<ServiceId> {
        let services = |state: &Mutex<ProviderState>| state.lock().cm.services().collect();
        self.state.get().map_or_else(HashSet::new, services)
    }

    /// What the engine counted.
    pub(super) fn cm_counters(&self) -> portolan_cm::Counters {
        let counters = |state: &Mutex<ProviderState>| *state.lock().cm.counters();
        self.state.get().map(counters).unwrap_or_default()
    }

    /// Gives the engine a command, then carries out its outputs.
    pub(super) fn run<T>(&self, command: impl FnOnce(&mut Cm, Duration) -> Result<T>) -> Result<T> {
        self.run_state(|state, now| command(&mut state.cm, now))
    }

    /// As [`run`](Self::run), for a command that also changes state beside the engine.
    pub(super) fn run_state<T>(
        &self,
        command: impl FnOnce(&mut ProviderState, Duration) -> Result<T>,
    ) -> Result<T> {
        let Some(state) = self.state.get() else {
            return Err(Error::new(
                Step::Event,
                Cause::NoSuchObject("the software provider"),
            ));
        };
        let (result, outputs) = {
            let mut state = state.lock();
            let result = command(&mut state, self.epoch.elapsed());
            let mut outputs = state.drain();
            // A timeout that has moved away is not worth waking the thread for.
            let due = state.cm.poll_timeout();
            outputs.wakes = due.is_some_and(|due| state.is_due_in_sleep(due));
            (result, outputs)
        };
        self.carry_out(outputs);
        result
    }

    /// The processes on this host that had `blocks` are dead: their connections end.
    pub(super) fn peer_processes_died(&self, blocks: &[Block]) {
        let Some(state) = self.state.get() else {
            return;
        };
        // Another host's processes have blocks, too.
        let is_here = |path: &MadPath| {
            path.remote.is_loopback()
                || self.stack().device_of(path.remote, path.scope_id).is_some()
        };
        let is_dead = |block: u8| blocks.iter().any(|dead| dead.index() == block);
        let ids = state
            .lock()
            .cm
            .ids_with_peer(|path, block| is_dead(block) && is_here(path));
        for id in ids {
            // It may be gone since. Each on its own, so that no queue of the engine fills up.
            let _ = self.run(|cm, now| cm.peer_died(now, id));
        }
    }

    /// How long until [`timeout`](Self::timeout) has something to do, as the progress thread asks
    /// before it sleeps.
    pub(super) fn next_timeout(&self) -> Option<Duration> {
        let mut state = self.state.get()?.lock();
        let now = self.epoch.elapsed();
        // A port that is given back after this sees what is noted here, and wakes the thread.
        let claims_due = self.claims.next_timeout().map(|wait| now + wait);
        // A timeout that has moved away, as with each connection that is made in time, is not told: the
        // thread wakes once without need rather than being woken for the next connection's.
        let told = state.sleeps_until.filter(|until| *until > now);
        let due = [state.cm.poll_timeout(), claims_due, told];
        state.sleeps_until = due.into_iter().flatten().min();
        Some(state.sleeps_until?.saturating_sub(now))
    }

    /// Does everything that is due.
    pub(super) fn timeout(&self) {
        let _ = self.run(|cm, now| {
            cm.handle_timeout(now);
            Ok(())
        });
        if let Some(stack) = self.stack.get() {
            self.claims.give_back_old(stack);
        }
    }

    /// Gives a port back.
    pub(super) fn release(&self, claim: ClaimId) {
        self.claims.release(self.stack(), claim);
        let due = self.claims.next_timeout();
        let due = due.map(|wait| self.epoch.elapsed() + wait);
        if due.is_some_and(|due| self.state().is_due_in_sleep(due)) {
            self.stack().wake();
        }
    }

    fn carry_out(&self, outputs: Outputs) {
        for transmit in &outputs.transmits {
            let path = &transmit.path;
            let remote = match path.remote {
                IpAddr::V6(ip) => SocketAddrV6::new(ip, 0, 0, path.scope_id).into(),
                ip => SocketAddr::new(ip, 0),
            };
            let options = MadOptions {
                traffic_class: transmit.traffic_class,
                hop_limit: transmit.hop_limit,
            };
            // A datagram that cannot be sent is a lost one: the protocol sends it again.
            if let Err(error) = self
                .stack()
                .send_mad(path.local, remote, options, &transmit.mad)
            {
                tracing::debug!(%error, "management datagram not sent");
            }
        }
        for query in outputs.queries {
            self.answer_address_query(query);
        }
        for query in outputs.groups {
            self.answer_group_query(query);
        }
        if outputs.wakes {
            self.stack().wake();
        }
    }

    pub(super) fn state(&self) -> portolan_threads::lock::MutexGuard<'_, ProviderState> {
        self.state
            .get()
            .unwrap_or_else(|| unreachable!("a core is used after its start"))
            .lock()
    }
}

/// Short: the channels, and so everything that has one, hold it.
impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("stack", &self.stack.get())
            .finish_non_exhaustive()
    }
}
