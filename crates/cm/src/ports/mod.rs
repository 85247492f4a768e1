//! Local ports: their owners and listeners (`cma_ps`, `rdma_bind_list`).
//!
//! One table serves a whole host, even if several processes share it. The caller chooses the type of a binding's owner:
//! a process, or an id of one. The table has no connections; children of a listener hold no port.
//!
//! The rules are Linux's (`cma_check_port`, `rdma_listen`). They are those of sockets with one difference: a specific
//! address and a wildcard of the same port always conflict, unless both are marked for reuse.

mod free_ports;

use alloc::collections::{BTreeSet, VecDeque};
use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt::Display;
use core::hash::Hash;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use core::time::Duration;

use portolan_provider::error::Cause;
use portolan_wire::{PortSpace, ServiceId};

use crate::hash::{Keyed, Map};
use crate::mutant::{Mutant, is_planted};
use free_ports::FreePorts;

/// The first port that needs no privilege (`PROT_SOCK`).
const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

/// Settings of a port table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Ports assigned for port 0 (`net.ipv4.ip_local_port_range`).
    pub ephemeral: RangeInclusive<u16>,
    /// Maximum number of bindings.
    pub max_bindings: usize,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            ephemeral: 32_768..=60_999,
            max_bindings: 1 << 20,
        }
    }
}

/// How an address is bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindOptions {
    /// Share the port with others that set this option, as long as none of them listens
    /// (`RDMA_OPTION_ID_REUSEADDR`).
    pub reuse_addr: bool,
    /// A wildcard serves only its own family (`RDMA_OPTION_ID_AFONLY`; Linux's default for IPv4).
    pub af_only: bool,
    /// The owner may bind ports below 1024 (`CAP_NET_BIND_SERVICE`).
    pub privileged: bool,
}

/// Number of a binding; never reused by the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BindingId(u64);

/// The result of [`PortTable::bind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The binding, to release it.
    pub binding: BindingId,
    /// The port; chosen by the table if the request was for port 0.
    pub port: u16,
}

/// The ports of a host.
#[derive(Debug)]
pub struct PortTable<O> {
    config: PortConfig,
    next_binding: u64,
    bindings: Map<BindingId, Binding<O>>,
    /// The bindings of each port; one, unless it is shared.
    ports: Map<(PortSpace, u16), Vec<BindingId>>,
    /// For each port space in use, the ephemeral ports that are not in `ports`.
    free: Map<PortSpace, FreePorts>,
    by_owner: Map<O, BTreeSet<BindingId>>,
}

#[derive(Debug)]
struct Binding<O> {
    owner: O,
    space: PortSpace,
    address: SocketAddr,
    reuse_addr: bool,
    af_only: bool,
    listening: bool,
}

impl<O: Copy + Eq + Hash + Display> PortTable<O> {
    /// An empty table. `seed` keys its hash tables.
    pub fn new(config: PortConfig, seed: u64) -> Self {
        let hash = Keyed::new(seed, seed.rotate_left(32));
        Self {
            config,
            next_binding: 0,
            bindings: Map::with_hasher(hash),
            ports: Map::with_hasher(hash),
            free: Map::with_hasher(hash),
            by_owner: Map::with_hasher(hash),
        }
    }

    /// Binds an address (`cma_get_port`). Port 0 takes an ephemeral port; the search starts at a place that `seed`
    /// chooses. `seed` should be random.
    ///
    /// # Errors
    /// `AddressInUse` with its holder; `PrivilegedPort`; `PortsExhausted` if no ephemeral port is
    /// free; `LimitReached` if the table is full.
    pub fn bind(
        &mut self,
        owner: O,
        space: PortSpace,
        address: SocketAddr,
        options: BindOptions,
        seed: u32,
    ) -> Result<Bound, Cause> {
        if self.bindings.len() >= self.config.max_bindings {
            let limit = self.config.max_bindings as u64;
            return Err(Cause::LimitReached {
                what: "bound ports of this host",
                limit,
            });
        }
        let mut wanted = Binding {
            owner,
            space,
            address,
            reuse_addr: options.reuse_addr,
            af_only: options.af_only,
            listening: false,
        };
        match address.port() {
            0 => wanted.address.set_port(self.free_port(space, seed)?),
            port if port < FIRST_UNPRIVILEGED_PORT && !options.privileged => {
                return Err(Cause::PrivilegedPort { port });
            }
            _ => self.check(&wanted, None, wanted.reuse_addr)?,
        }
        Ok(self.insert(wanted))
    }

    /// Marks a binding as listening (`rdma_listen`), which stops it from sharing its port.
    ///
    /// # Errors
    /// `AddressInUse` if the port is shared already; `NoSuchObject`.
    pub fn listen(&mut self, binding: BindingId) -> Result<(), Cause> {
        let wanted = self
            .bindings
            .get(&binding)
            .ok_or(Cause::NoSuchObject("port binding"))?;
        self.check(wanted, Some(binding), false)?;
        if let Some(bound) = self.bindings.get_mut(&binding) {
            bound.listening = true;
            bound.reuse_addr = false;
        }
        Ok(())
    }

    /// Releases a port; returns its listener, if any. Releasing an unknown binding has no effect.
    pub fn release(&mut self, binding: BindingId) -> Option<ClosedListener<O>> {
        let bound = self.bindings.remove(&binding)?;
        let key = (bound.space, bound.address.port());
        if let Some(holders) = self.ports.get_mut(&key) {
            holders.retain(|holder| *holder != binding);
            if holders.is_empty() {
                self.ports.remove(&key);
                self.free_ports(bound.space).set(key.1, true);
            }
        }
        if let Some(owned) = self.by_owner.get_mut(&bound.owner) {
            owned.remove(&binding);
            if owned.is_empty() {
                self.by_owner.remove(&bound.owner);
            }
        }
        bound.listening.then_some(ClosedListener(bound))
    }

    /// Releases all ports of an owner, for example a process that died.
    pub fn release_owner(&mut self, owner: &O) {
        if is_planted(Mutant::DeadOwnersPortsKept) {
            return;
        }
        for binding in self.by_owner.remove(owner).unwrap_or_default() {
            self.release(binding);
        }
    }

    /// The owner that listens to `service` at `destination`. An exact address takes precedence over a wildcard. `zone`
    /// is the index of the interface, which tells equal link-local addresses apart; 0 if unknown.
    pub fn lookup(&self, service: ServiceId, destination: IpAddr, zone: u32) -> Option<O> {
        let key = (service.port_space()?, service.port());
        let holders = self
            .ports
            .get(&key)?
            .iter()
            .filter_map(|holder| self.bindings.get(holder));
        let serving = holders.filter(|bound| bound.listening && bound.serves(destination, zone));
        serving
            .min_by_key(|bound| bound.address.ip().is_unspecified())
            .map(|bound| bound.owner)
    }

    /// The owner that was bound last to the address of `service` at `destination`, whether it listens or not. `zone` as
    /// for [`lookup`](Self::lookup).
    pub fn lookup_bound(&self, service: ServiceId, destination: IpAddr, zone: u32) -> Option<O> {
        let key = (service.port_space()?, service.port());
        let mut holders = self.ports.get(&key)?.iter().rev();
        holders
            .find_map(|holder| {
                self.bindings
                    .get(holder)
                    .filter(|bound| bound.serves(destination, zone))
            })
            .map(|bound| bound.owner)
    }

    /// The owner and the full address of a binding.
    pub fn binding(&self, binding: BindingId) -> Option<(O, SocketAddr)> {
        self.bindings
            .get(&binding)
            .map(|bound| (bound.owner, bound.address))
    }

    /// Number of bindings.
    pub fn len(&self) -> usize {
        self.bindings.len()
    }

    /// Whether nothing is bound.
    pub fn is_empty(&self) -> bool {
        self.bindings.is_empty()
    }

    fn insert(&mut self, bound: Binding<O>) -> Bound {
        let port = bound.address.port();
        let binding = BindingId(self.next_binding);
        self.next_binding += 1;
        self.ports
            .entry((bound.space, port))
            .or_default()
            .push(binding);
        self.free_ports(bound.space).set(port, false);
        self.by_owner
            .entry(bound.owner)
            .or_default()
            .insert(binding);
        self.bindings.insert(binding, bound);
        Bound { binding, port }
    }

    /// Checks that `wanted` does not conflict with other holders of its port (`cma_check_port`).
    fn check(
        &self,
        wanted: &Binding<O>,
        itself: Option<BindingId>,
        reuse_addr: bool,
    ) -> Result<(), Cause> {
        let key = (wanted.space, wanted.address.port());
        let holders = self.ports.get(&key).into_iter().flatten();
        let others = holders.filter(|holder| Some(**holder) != itself);
        for other in others.filter_map(|holder| self.bindings.get(holder)) {
            if !(reuse_addr && other.reuse_addr) && wanted.collides_with(other) {
                return Err(Cause::AddressInUse {
                    holder: Some(other.owner.to_string()),
                });
            }
        }
        Ok(())
    }

    /// A free port of the ephemeral range (`cma_alloc_any_port`).
    fn free_port(&mut self, space: PortSpace, seed: u32) -> Result<u16, Cause> {
        let (first, last) = (*self.config.ephemeral.start(), *self.config.ephemeral.end());
        let free = self.free_ports(space).find(seed);
        free.ok_or(Cause::PortsExhausted { first, last })
    }

    fn free_ports(&mut self, space: PortSpace) -> &mut FreePorts {
        let ephemeral = &self.config.ephemeral;
        let free = self.free.entry(space);
        free.or_insert_with(|| FreePorts::all(ephemeral))
    }
}

/// A listener whose port was released.
#[derive(Debug)]
pub struct ClosedListener<O>(Binding<O>);

/// Listeners that closed a moment ago. Requests for them still go to their owners, which hold them in case the listener
/// reopens ([`Config::listener_wait`](crate::Config::listener_wait)).
#[derive(Debug)]
pub struct ClosedListeners<O> {
    /// Each with its expiry time; the oldest first.
    recent: VecDeque<(Duration, ClosedListener<O>)>,
    memory: Duration,
}

/// Maximum number of closed listeners to remember per host; beyond it the oldest is forgotten.
const CLOSED_LISTENERS_MAX: usize = 64;

impl<O: Copy> ClosedListeners<O> {
    /// Creates an empty set. Each entry is remembered for `memory`.
    pub fn new(memory: Duration) -> Self {
        Self {
            recent: VecDeque::new(),
            memory,
        }
    }

    /// Adds a listener that closed now.
    pub fn note(&mut self, now: Duration, closed: ClosedListener<O>) {
        let over = |(until, _): &(Duration, _)| *until <= now;
        while self.recent.len() >= CLOSED_LISTENERS_MAX || self.recent.front().is_some_and(over) {
            self.recent.pop_front();
        }
        self.recent
            .push_back((now.saturating_add(self.memory), closed));
    }

    /// The last owner that listened to `service` at `destination` until a moment ago. `zone` as for
    /// [`PortTable::lookup`].
    pub fn lookup(
        &self,
        now: Duration,
        service: ServiceId,
        destination: IpAddr,
        zone: u32,
    ) -> Option<O> {
        let key = (service.port_space()?, service.port());
        let mut recent = self.recent.iter().rev();
        let found = recent.find(|(until, ClosedListener(bound))| {
            let is_same = (bound.space, bound.address.port()) == key;
            *until > now && is_same && bound.serves(destination, zone)
        });
        found.map(|(_, ClosedListener(bound))| bound.owner)
    }

    /// Forgets the entries of an owner, for example a process that died.
    pub fn forget(&mut self, is_its: impl Fn(&O) -> bool) {
        self.recent
            .retain(|(_, ClosedListener(bound))| !is_its(&bound.owner));
    }
}

impl<O> Binding<O> {
    /// Whether two bindings of the same port have an address in common.
    fn collides_with(&self, other: &Self) -> bool {
        let (own, others) = (self.address, other.address);
        if self.af_only && other.af_only && own.is_ipv4() != others.is_ipv4() {
            return false;
        }
        own.ip().is_unspecified() || others.ip().is_unspecified() || same_address(own, others)
    }

    /// Whether packets to `destination` on the interface `zone` are for this binding.
    fn serves(&self, destination: IpAddr, zone: u32) -> bool {
        let bound = self.address.ip();
        if bound.is_unspecified() {
            return !self.af_only || bound.is_ipv4() == destination.is_ipv4();
        }
        let own = zone_of(self.address);
        let is_same_zone = own == 0 || zone == 0 || own == zone;
        is_same_zone && bound.to_canonical() == destination.to_canonical()
    }
}

/// Link-local addresses of different links are different.
fn same_address(a: SocketAddr, b: SocketAddr) -> bool {
    a.ip().to_canonical() == b.ip().to_canonical() && zone_of(a) == zone_of(b)
}

/// The interface of a link-local address; 0 for others.
fn zone_of(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => v6.scope_id(),
        _ => 0,
    }
}
