//! Local addresses: the device that has one, the port, and listening.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use portolan_addrinfo::neighbour::Watch;
use portolan_cm::{BoundDevice, QueryNumber, ResolvedAddress};
use portolan_provider::address::ip_to_gid;
use portolan_provider::address::{leaves_device_open, unspecified_like};
use portolan_provider::cm::IdNumber;
use portolan_provider::error::errno;
use portolan_provider::{Address, Cause, Error, Result, Step};

use super::claim::PortClaim;
use super::core::Core;
use super::ports::{COORDINATOR_TIMEOUT, Purpose};
use super::resolve_addr;

impl Core {
    pub(super) fn bind(&self, id: IdNumber, local: SocketAddr) -> Result<()> {
        let device = self.device_at(local)?;
        let local = self.claim_port(id, local, Purpose::Bind, COORDINATOR_TIMEOUT)?;
        let bound = self.run(|cm, now| match device {
            Some(device) if !self.is_present(&device) => Err(no_address(local)),
            _ => cm.bind(now, id, local, device),
        });
        if bound.is_err() {
            self.release_claim(id);
        }
        bound
    }

    /// The device of a local address; `None` for an address that leaves it open.
    fn device_at(&self, local: SocketAddr) -> Result<Option<BoundDevice>> {
        if leaves_device_open(local.ip()) {
            return Ok(None);
        }
        check_zone(local)?;
        let found = self.find_device(local.ip(), resolve_addr::scope_of(local).unwrap_or(0));
        let found = found.ok_or_else(|| match self.stack().why_left_out(local.ip()) {
            Some(why) => {
                Error::new(Step::Bind, Cause::NoDevice { why }).between(Some(local.into()), None)
            }
            None => no_address(local),
        });
        found.map(Some)
    }

    pub(super) fn resolve_addr(
        &self,
        id: IdNumber,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        let claimed = self
            .state()
            .entry(id, Step::ResolveAddress)?
            .claim
            .map(|(_, at)| at);
        let source = match (claimed, source) {
            (Some(claimed), None) => Some(claimed),
            (Some(claimed), Some(source)) => Some(SocketAddr::new(source.ip(), claimed.port())),
            // An unbound id takes a free port now, as in the kernel.
            (None, source) => {
                let source = source.map(|source| in_zone_of(source, destination));
                if let Some(source) = source {
                    let found = self.device_at(source);
                    found.map_err(|error| error.at(Step::ResolveAddress))?;
                }
                // The engine takes an IPv4-mapped destination for what it stands for.
                let destination = SocketAddr::new(destination.ip().to_canonical(), 0);
                let wanted = source.unwrap_or(unspecified_like(destination));
                let timeout = timeout.min(COORDINATOR_TIMEOUT);
                let claimed = self.claim_port(id, wanted, Purpose::Connect, timeout);
                Some(claimed.map_err(|error| error.at(Step::ResolveAddress))?)
            }
        };
        self.run(|cm, now| cm.resolve_addr(now, id, source, destination, timeout))
    }

    /// Checks that the route that `resolve_addr` found still exists. The path follows from the resolved address.
    pub(super) fn resolve_route(&self, id: IdNumber, timeout: Duration) -> Result<()> {
        let known = self.state().cm.addresses(id)?;
        let inet = |address: Option<Address>| address.and_then(|address| address.inet());
        let checked = match (inet(known.local), inet(known.remote)) {
            // The route to an own address exists while the address does.
            (Some(local), Some(remote))
                if self.active_device(local.ip()).is_some()
                    && self.active_device(remote.ip()).is_some() =>
            {
                Ok(())
            }
            (Some(local), Some(remote)) => {
                resolve_addr::find_route(Some(local), remote).map(|_| ())
            }
            // The engine reports what is missing.
            _ => Ok(()),
        };
        self.run(|cm, now| match checked {
            Ok(()) => cm.resolve_route(now, id, timeout),
            Err(cause) => cm.route_failed(now, id, timeout, cause.errno()),
        })
    }

    pub(super) fn listen(&self, id: IdNumber, backlog: i32) -> Result<()> {
        if self.state().entry(id, Step::Listen)?.claim.is_none() {
            // An unbound id listens on every IPv4 address, as in the kernel.
            self.bind(id, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        }
        let claim = self.state().entry(id, Step::Listen)?.claim;
        if let Some((claim, _)) = claim {
            self.claims.listen(self.stack(), claim)?;
        }
        // Register it before the engine listens, because a request may arrive at once.
        let is_new = {
            let mut state = self.state();
            match state.entry(id, Step::Listen) {
                Ok(_) => state.add_listener(id),
                Err(gone) => {
                    drop(state);
                    // It was destroyed before its port was claimed for listening.
                    if let Some((claim, _)) = claim {
                        self.release(claim);
                    }
                    return Err(gone);
                }
            }
        };
        let listening = self.run(|cm, now| cm.listen(now, id, backlog));
        if listening.is_err() && is_new {
            self.state().remove_listener(id);
        }
        listening
    }

    /// Answers the engine's question for an address, with the watch of the next hop.
    pub(super) fn address_resolved(
        &self,
        id: IdNumber,
        query: QueryNumber,
        answer: std::result::Result<(ResolvedAddress, Option<Arc<Watch>>), Cause>,
    ) {
        // The id may be gone, or its deadline over. Then the answer is not needed.
        let _ = self.run_state(|state, now| {
            let answer = match answer {
                Ok((found, _)) if !self.is_present(&found.device) => Err(errno::ENODEV),
                Ok((found, watch)) => {
                    state.entry_mut(id, Step::ResolveAddress)?.watch = watch;
                    Ok(found)
                }
                Err(cause) => Err(cause.errno()),
            };
            state.cm.address_resolved(now, id, query, answer)
        });
    }

    /// As [`bound_device`](Self::bound_device), for an address that packets of this host reach without the routing
    /// tables: its interface is up, and it is not link-local.
    pub(super) fn active_device(&self, ip: IpAddr) -> Option<BoundDevice> {
        use portolan_provider::traits::Device;
        let is_link_local = match ip {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        if is_link_local {
            return None;
        }
        let (device, _) = self.stack().device_of(ip, 0)?;
        let port = device.port_attr(1).ok()?;
        port.active.then(|| self.bound_device(ip, 0)).flatten()
    }

    /// The device, port and GID of a local address, in the engine's format. `interface` distinguishes link-local
    /// addresses.
    pub(super) fn bound_device(&self, ip: IpAddr, interface: u32) -> Option<BoundDevice> {
        use portolan_provider::traits::Device;
        let (device, gid_index) = self.stack().device_of(ip, interface)?;
        let attr = device.attr().ok()?;
        Some(BoundDevice {
            device_index: device.index(),
            port_num: 1,
            sgid_index: u8::try_from(gid_index).ok()?,
            sgid: ip_to_gid(ip),
            node_guid: attr.node_guid,
            mtu: device.port_attr(1).ok()?.active_mtu,
            ack_delay_exp: attr.local_ca_ack_delay,
        })
    }

    fn claim_port(
        &self,
        id: IdNumber,
        local: SocketAddr,
        purpose: Purpose,
        timeout: Duration,
    ) -> Result<SocketAddr> {
        let claim = {
            let state = self.state();
            let entry = state.entry(id, Step::Bind)?;
            if entry.claim.is_some() {
                return Err(already_bound(local));
            }
            let options = state.cm.options(id)?;
            PortClaim {
                port_space: entry.service.port_space,
                address: local,
                reuse_addr: options.reuse_addr,
                af_only: options.serves_one_family(&local),
                listening: false,
            }
        };
        check_privilege(local.port())?;
        let (claim, port) = self.claims.take(self.stack(), claim, purpose, timeout)?;
        let mut local = local;
        local.set_port(port);
        let bound = match self.state().entry_mut(id, Step::Bind) {
            // Another thread has bound the id meanwhile: its port stays.
            Ok(entry) if entry.claim.is_some() => Err(already_bound(local)),
            Ok(entry) => {
                entry.claim = Some((claim, local));
                return Ok(local);
            }
            Err(gone) => Err(gone),
        };
        self.release(claim);
        bound
    }

    fn release_claim(&self, id: IdNumber) {
        let claim = match self.state().entry_mut(id, Step::Bind) {
            Ok(entry) => entry.claim.take(),
            Err(_) => None,
        };
        if let Some((claim, _)) = claim {
            self.release(claim);
        }
    }
}

fn no_address(wanted: SocketAddr) -> Error {
    Error::new(Step::Bind, Cause::AddressNotAvailable).between(Some(wanted.into()), None)
}

/// Without its zone, a link-local address could be of any interface, and no client could reach a listener there
/// (`cma_check_linklocal`).
fn check_zone(local: SocketAddr) -> Result<()> {
    match local {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => {
            let expected = "a link-local address with its zone";
            Err(Error::invalid(Step::Bind, "address", expected, local))
        }
        _ => Ok(()),
    }
}

/// A link-local source without a zone is in that of the destination.
fn in_zone_of(source: SocketAddr, destination: SocketAddr) -> SocketAddr {
    match (source, destination) {
        (SocketAddr::V6(mut source), SocketAddr::V6(destination))
            if source.ip().is_unicast_link_local() && source.scope_id() == 0 =>
        {
            source.set_scope_id(destination.scope_id());
            source.into()
        }
        _ => source,
    }
}

fn already_bound(wanted: SocketAddr) -> Error {
    let cause = Cause::InvalidState {
        expected: "an unbound id",
        found: "bound",
    };
    Error::new(Step::Bind, cause).between(Some(wanted.into()), None)
}

/// Ports below 1024 need CAP_NET_BIND_SERVICE, as in the kernel's rdma_cm.
fn check_privilege(port: u16) -> Result<()> {
    use rustix::thread::{CapabilitySet, capabilities};
    if port == 0 || port >= 1024 {
        return Ok(());
    }
    let effective = capabilities(None).map(|sets| sets.effective);
    match effective {
        Ok(effective) if effective.contains(CapabilitySet::NET_BIND_SERVICE) => Ok(()),
        _ => Err(Error::new(Step::Bind, Cause::PrivilegedPort { port })),
    }
}
