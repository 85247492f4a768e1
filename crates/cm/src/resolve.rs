//! Binding, address resolution and routes, before an id connects or listens.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use portolan_provider::address::{leaves_device_open, unspecified_like};
use portolan_provider::cm::{EventType, IdNumber, PathRecord};
use portolan_provider::error::errno::ETIMEDOUT;
use portolan_provider::error::{Cause, Error, Result, Step};
use portolan_provider::verbs::QpType;
use portolan_wire::PKey;

use crate::engine::Cm;
use crate::state::{Event, State};
use crate::types::{BoundDevice, Query, QueryNumber, ResolvedAddress};

/// Static rate of a path: the port's current rate (`IB_RATE_PORT_CURRENT`).
const RATE_PORT_CURRENT: u8 = 0;

/// Mask of a flow label (`IB_GRH_FLOWLABEL_MASK`).
const FLOW_LABEL_MASK: u32 = 0xF_FFFF;

impl Cm {
    /// Sets an id's local address (`rdma_bind_addr`). The caller has already reserved the port in its
    /// [`PortTable`](crate::ports::PortTable) and found the device, unless the address leaves it open.
    /// Requests to the address are held for a moment, in case the id listens.
    ///
    /// # Errors
    /// `InvalidState`, `NoSuchObject`; `NoDevice` if the address needs a device and `device` is `None`.
    pub fn bind(
        &mut self,
        now: Duration,
        id: IdNumber,
        local: SocketAddr,
        device: Option<BoundDevice>,
    ) -> Result<()> {
        let number = id;
        let id = self.ids.find_mut(id, Step::Bind)?;
        let next = id.command(Event::Bind, Step::Bind)?;
        let local = canonical(local);
        if device.is_none() && !leaves_device_open(local.ip()) {
            let why = alloc::format!("no device was given for {}", local.ip());
            return Err(id.fail(Step::Bind, Cause::NoDevice { why }));
        }
        id.local = Some(local);
        id.device = device;
        id.state = next;
        let until = now.saturating_add(self.config.expected_listener_memory);
        self.listeners.expect(now, id, number, until);
        Ok(())
    }

    /// Asks how to reach a destination (`rdma_resolve_addr`). A [`Query::Address`] follows, and finally `AddrResolved`
    /// or `AddrError`.
    ///
    /// # Errors
    /// `InvalidState`, `NoSuchObject`; `InvalidArgument` for a wildcard destination, a group (except for datagrams), or
    /// a destination of another family than the source; `LimitReached`.
    pub fn resolve_addr(
        &mut self,
        now: Duration,
        id: IdNumber,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        let step = Step::ResolveAddress;
        self.begin(now, step)?;
        let waiting = self.queries_waiting() as u64;
        let number = id;
        let id = self.ids.find_mut(id, step)?;
        let next = id.command(Event::ResolveAddr, step)?;
        check_destination(destination, id.service.qp_type == QpType::Ud)?;
        let destination = canonical(destination);
        let source = source.map(canonical).or(id.local);
        if let Some(source) = source.filter(|source| source.is_ipv4() != destination.is_ipv4()) {
            let expected = "an address of the source's family";
            return Err(Error::invalid(step, "destination", expected, destination)
                .between(Some(source.into()), None));
        }
        // Each id has at most one useful query, but obsolete ones may still be queued.
        let limit = u64::from(self.config.max_ids) * 2;
        if waiting >= limit {
            let what = "queries waiting to be taken";
            return Err(id.fail(step, Cause::LimitReached { what, limit }));
        }
        self.listeners.no_longer_expect(now, id, number);
        id.local = Some(source.unwrap_or_else(|| wildcard_like(destination)));
        id.remote = Some(destination);
        id.query = QueryNumber(id.query.0.wrapping_add(1));
        id.state = next;
        let query = id.query;
        let deadline = now.saturating_add(timeout);
        self.set_deadline(number, Some(deadline));
        self.ask(Query::Address {
            id: number,
            query,
            source,
            destination,
            deadline,
        });
        Ok(())
    }

    /// Answers a [`Query::Address`]; an error is a positive errno. A late answer, or one to an earlier query of the id,
    /// has no effect.
    ///
    /// # Errors
    /// `NoSuchObject`; `LimitReached`, after which the answer may be given again.
    pub fn address_resolved(
        &mut self,
        now: Duration,
        id: IdNumber,
        query: QueryNumber,
        answer: core::result::Result<ResolvedAddress, i32>,
    ) -> Result<()> {
        self.begin_report(now, Step::ResolveAddress)?;
        let number = id;
        let id = self.ids.find_mut(id, Step::ResolveAddress)?;
        if id.query != query {
            return Ok(());
        }
        let event = if answer.is_ok() {
            Event::AddressFound
        } else {
            Event::AddressFailed
        };
        let Some(next) = id.state.after(event) else {
            return Ok(());
        };
        id.state = next;
        match answer {
            Ok(found) => {
                let port = id.local.map_or(0, |local| local.port());
                let mut local = found.source;
                if port != 0 {
                    local.set_port(port);
                }
                id.local = Some(local);
                id.remote = Some(found.destination);
                id.device = Some(found.device);
                id.path = Some(path_to(&found));
                id.neighbour = found.neighbour;
                self.report_bare(number, EventType::AddrResolved, 0);
            }
            Err(errno) => self.report_bare(number, EventType::AddrError, -errno.abs()),
        }
        self.set_deadline(number, None);
        Ok(())
    }

    /// Makes the path to the resolved destination (`rdma_resolve_route`). On RoCE it follows from the address, so
    /// `RouteResolved` is queued at once. If the destination is unreachable by now, the caller calls
    /// [`route_failed`](Self::route_failed) instead.
    ///
    /// # Errors
    /// `InvalidState`, `NoSuchObject`, `LimitReached`; `InvalidArgument` for a timeout of zero.
    pub fn resolve_route(&mut self, now: Duration, id: IdNumber, timeout: Duration) -> Result<()> {
        let step = Step::ResolveRoute;
        let next = self.begin_route(now, id, timeout)?;
        let lifetime_exp = self.config.packet_lifetime_exp;
        let number = id;
        let id = self.ids.find_mut(id, step)?;
        let (Some(local), Some(remote), Some(path)) = (id.local, id.remote, id.path.as_mut())
        else {
            let expected = "address resolved";
            return Err(id.fail(
                step,
                Cause::InvalidState {
                    expected,
                    found: id.state.name(),
                },
            ));
        };
        path.traffic_class = id.options.tos.unwrap_or(0);
        path.flow_label = flow_label(local, remote);
        // An ACK timeout set by the user determines the path's lifetime, unless it is 0, which means none
        // (`cma_resolve_iboe_route`).
        path.packet_lifetime = match id.options.ack_timeout_exp {
            None | Some(0) => lifetime_exp,
            Some(exponent) => exponent - 1,
        };
        id.state = next;
        self.follow_neighbour(number);
        self.report_bare(number, EventType::RouteResolved, 0);
        Ok(())
    }

    /// Ends `rdma_resolve_route` with `RouteError`: the destination is unreachable. The reason is a positive errno. The
    /// id's address stays resolved, so that the owner can try again (`cma_query_handler`).
    ///
    /// # Errors
    /// As [`resolve_route`](Self::resolve_route).
    pub fn route_failed(
        &mut self,
        now: Duration,
        id: IdNumber,
        timeout: Duration,
        errno: i32,
    ) -> Result<()> {
        self.begin_route(now, id, timeout)?;
        self.report_bare(id, EventType::RouteError, -errno.abs());
        Ok(())
    }

    /// The state that a resolved route leads to, if the id's state allows a route.
    pub(crate) fn begin_route(
        &mut self,
        now: Duration,
        id: IdNumber,
        timeout: Duration,
    ) -> Result<State> {
        let step = Step::ResolveRoute;
        self.begin(now, step)?;
        let id = self.ids.find_mut(id, step)?;
        let next = id.command(Event::ResolveRoute, step)?;
        if timeout.is_zero() {
            return Err(id.locate(Error::invalid(step, "timeout", "more than zero", "0 ms")));
        }
        Ok(next)
    }

    /// Reports that the address query was not answered in time.
    pub(crate) fn address_timed_out(&mut self, number: IdNumber) {
        let Some(id) = self.ids.get_mut(number) else {
            return;
        };
        let Some(next) = id.state.after(Event::AddressTimeout) else {
            return;
        };
        id.state = next;
        self.report_bare(number, EventType::AddrError, -ETIMEDOUT);
    }

    /// Whether a query still waits for an answer.
    pub(crate) fn is_open(&self, query: &Query) -> bool {
        let Query::Address { id, query, .. } = query;
        self.ids
            .get(*id)
            .is_some_and(|id| id.state == State::AddrQuery && id.query == *query)
    }
}

/// A datagram id may resolve a group, which finds the device to join it on.
fn check_destination(destination: SocketAddr, datagrams: bool) -> Result<()> {
    let ip = destination.ip().to_canonical();
    if ip.is_unspecified() || ip.is_multicast() && !datagrams {
        let expected = "the address of one host, or of a group for datagrams";
        return Err(Error::invalid(
            Step::ResolveAddress,
            "destination",
            expected,
            ip,
        ));
    }
    Ok(())
}

fn wildcard_like(address: SocketAddr) -> SocketAddr {
    let mut wildcard = unspecified_like(address);
    wildcard.set_port(0);
    wildcard
}

/// Converts an IPv4-mapped address to IPv4, as it is on the wire.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// The parts of the path that follow from the address.
fn path_to(found: &ResolvedAddress) -> PathRecord {
    PathRecord {
        dgid: found.dgid,
        sgid: found.device.sgid,
        dlid: 0,
        slid: 0,
        flow_label: 0,
        hop_limit: found.hop_limit,
        traffic_class: 0,
        pkey: PKey::DEFAULT,
        sl: 0,
        mtu: found.device.mtu,
        rate: RATE_PORT_CURRENT,
        packet_lifetime: 0,
    }
}

/// The flow label of a connection (`cma_get_roce_udp_flow_label`): derived from the ports, unless the user set one in
/// an IPv6 address, where it is big-endian.
fn flow_label(local: SocketAddr, remote: SocketAddr) -> u32 {
    let of_address = match remote {
        SocketAddr::V6(v6) => u32::from_be(v6.flowinfo()) & FLOW_LABEL_MASK,
        SocketAddr::V4(_) => 0,
    };
    if of_address != 0 {
        return of_address;
    }
    let (source, destination) = (u32::from(local.port()), u32::from(remote.port()));
    (source * 31 + destination) & FLOW_LABEL_MASK
}

/// The address of a RoCE GID, with the scope that a link-local address needs.
pub(crate) fn socket_addr(ip: IpAddr, port: u16, scope_id: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            core::net::SocketAddrV6::new(v6, port, 0, scope_id).into()
        }
        ip => SocketAddr::new(ip, port),
    }
}
