//! The engine under its lock, and the execution of its outputs: events go to their channels, datagrams to the device,
//! questions to the routing and neighbour tables and to the host's groups.

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
use super::queue::Held;
use super::state::{Outputs, ProviderState};

/// The software rdma_cm of a process.
pub(super) struct Core {
    pub(super) epoch: Instant,
    pub(super) claims: Arc<Claims>,
    /// The groups that this process has joined on its interfaces for its ids.
    pub(super) groups: Mutex<HashMap<MembershipNumber, MulticastMembership>>,
    /// The watched next hops, by interface and address. Ids with the same next hop share its watch.
    pub(super) watches: Mutex<HashMap<(u32, IpAddr), Weak<Watch>>>,
    /// Disconnects that wait until the program has polled.
    pub(super) held: Mutex<Vec<Held>>,
    /// Both are set once, when the block is known and before the stack runs.
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
            held: Mutex::default(),
            state: OnceLock::new(),
            stack: OnceLock::new(),
            me: me.clone(),
        })
    }

    /// Completes the core. Call it once.
    pub(super) fn set(&self, cm: Cm, stack: &Arc<Stack>) {
        let _ = self.state.set(Mutex::new(ProviderState::new(cm)));
        let _ = self.stack.set(stack.clone());
    }

    /// A weak reference, for callbacks that the core itself keeps alive.
    pub(super) fn downgrade(&self) -> Weak<Self> {
        self.me.clone()
    }

    pub(super) fn stack(&self) -> &Arc<Stack> {
        // `start` publishes the core only after the stack is set.
        self.stack
            .get()
            .unwrap_or_else(|| unreachable!("a core is used after its start"))
    }

    /// The current numbers of objects.
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

    /// The engine's counters.
    pub(super) fn cm_counters(&self) -> portolan_cm::Counters {
        let counters = |state: &Mutex<ProviderState>| *state.lock().cm.counters();
        self.state.get().map(counters).unwrap_or_default()
    }

    /// Executes a command on the engine, then its outputs.
    pub(super) fn run<T>(&self, command: impl FnOnce(&mut Cm, Duration) -> Result<T>) -> Result<T> {
        self.run_state(|state, now| command(&mut state.cm, now))
    }

    /// As [`run`](Self::run), for a command that also changes state outside the engine.
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
            // If the timeout has moved later, do not wake the thread.
            let due = state.cm.poll_timeout();
            outputs.wakes = due.is_some_and(|due| state.is_due_in_sleep(due));
            (result, outputs)
        };
        self.carry_out(outputs);
        result
    }

    /// The processes of this host that had `blocks` are dead: ends the connections to them.
    pub(super) fn peer_processes_died(&self, blocks: &[Block]) {
        let Some(state) = self.state.get() else {
            return;
        };
        // Processes of another host have blocks, too.
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
            // The id may be gone meanwhile. One call for each id keeps the engine's queues short.
            let _ = self.run(|cm, now| cm.peer_died(now, id));
        }
    }

    /// The time until [`timeout`](Self::timeout) must be called. The progress thread asks before it sleeps.
    pub(super) fn next_timeout(&self) -> Option<Duration> {
        let held_due = self.held_due();
        let mut state = self.state.get()?.lock();
        let now = self.epoch.elapsed();
        // A port that is released after this sees `sleeps_until`, and wakes the thread.
        let claims_due = self.claims.next_timeout().map(|wait| now + wait);
        // Each connection that is established in time moves the timeout later. Keep the earlier time: one needless
        // wake-up costs less than waking the thread for the next connection.
        let told = state.sleeps_until.filter(|until| *until > now);
        let held_due = held_due.map(|wait| now + wait);
        let due = [state.cm.poll_timeout(), claims_due, held_due, told];
        state.sleeps_until = due.into_iter().flatten().min();
        Some(state.sleeps_until?.saturating_sub(now))
    }

    /// Handles all timeouts that are due.
    pub(super) fn timeout(&self) {
        let _ = self.run(|cm, now| {
            cm.handle_timeout(now);
            Ok(())
        });
        if let Some(stack) = self.stack.get() {
            self.tell_held();
            self.claims.give_back_old(stack);
        }
    }

    /// Releases a port.
    pub(super) fn release(&self, claim: ClaimId) {
        self.claims.release(self.stack(), claim);
        let due = self.claims.next_timeout();
        let due = due.map(|wait| self.epoch.elapsed() + wait);
        if due.is_some_and(|due| self.state().is_due_in_sleep(due)) {
            self.stack().wake();
        }
    }

    fn carry_out(&self, outputs: Outputs) {
        for held in outputs.held {
            self.tell_after_completions(held);
        }
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
            // A datagram that cannot be sent counts as lost: the protocol retransmits it.
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

/// One line, because the channels and everything that has one contain this.
impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("stack", &self.stack.get())
            .finish_non_exhaustive()
    }
}
