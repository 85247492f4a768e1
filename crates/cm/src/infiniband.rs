//! Ids with native InfiniBand addresses (AF_IB), and ports of InfiniBand's own link layer.
//!
//! Such an id addresses its peer by GID and service id. Its private data holds only the user's data, without IP
//! addresses (`cma_user_data_offset`). The caller gets its path from the subnet administrator. On an InfiniBand port,
//! messages are routed by LIDs, and a LID identifies the peer.

use core::net::SocketAddr;
use core::time::Duration;

use portolan_provider::SockaddrIb;
use portolan_provider::cm::{EventType, IdNumber, PathRecord};
use portolan_provider::error::{Cause, Error, Result, Step};
use portolan_wire::cm::{PrivateData, ReqRepr};
use portolan_wire::{Gid, ServiceId};

use crate::engine::Cm;
use crate::state::Event;
use crate::types::{BoundDevice, Lids, MadPath};

/// Bytes of private data that a request of an id with InfiniBand addresses carries.
pub const IB_REQ_PRIVATE_DATA_MAX: usize = PrivateData::<92>::LEN;

impl Cm {
    /// Sets an id's service id and local port (`rdma_bind_addr` with AF_IB). A zero GID means all ports. The partition
    /// of `local` is ignored.
    ///
    /// # Errors
    /// `InvalidState`, `NoSuchObject`; `InvalidArgument` for a service id of zero or an incomplete mask; `NoDevice` for
    /// a GID without a device.
    pub fn bind_ib(
        &mut self,
        now: Duration,
        id: IdNumber,
        local: &SockaddrIb,
        device: Option<BoundDevice>,
    ) -> Result<()> {
        let (step, number) = (Step::Bind, id);
        let id = self.ids.find_mut(id, step)?;
        let next = id.command(Event::Bind, step)?;
        let service = service_of(local, step).map_err(|error| id.locate(error))?;
        if device.is_none() && !local.gid.is_unspecified() {
            let why = alloc::format!("no device was given for {}", local.gid);
            return Err(id.fail(step, Cause::NoDevice { why }));
        }
        id.ib_service = Some(service);
        id.local = Some(socket_of(local.gid));
        id.device = device;
        id.state = next;
        let until = now.saturating_add(self.config.expected_listener_memory);
        self.listeners.expect(now, id, number, until);
        Ok(())
    }

    /// Sets an id's peer and the local port to reach it from (`rdma_resolve_addr` with AF_IB). No query is needed, so
    /// `AddrResolved` is queued at once.
    ///
    /// # Errors
    /// `InvalidState`, `NoSuchObject`, `LimitReached`; `InvalidArgument` for a destination without a GID or service
    /// id.
    pub fn resolve_ib_addr(
        &mut self,
        now: Duration,
        id: IdNumber,
        destination: &SockaddrIb,
        device: BoundDevice,
    ) -> Result<()> {
        let step = Step::ResolveAddress;
        self.begin(now, step)?;
        let number = id;
        let id = self.ids.find_mut(id, step)?;
        let asked = id.command(Event::ResolveAddr, step)?;
        let service = service_of(destination, step).map_err(|error| id.locate(error))?;
        if destination.gid.is_unspecified() {
            let expected = "the GID of one port";
            let error = Error::invalid(step, "destination", expected, destination.gid);
            return Err(id.locate(error));
        }
        let Some(next) = asked.after(Event::AddressFound) else {
            return Ok(());
        };
        self.listeners.no_longer_expect(now, id, number);
        id.ib_service = Some(service);
        id.local = Some(socket_of(device.sgid));
        id.remote = Some(socket_of(destination.gid));
        id.device = Some(device);
        id.state = next;
        self.report_bare(number, EventType::AddrResolved, 0);
        Ok(())
    }

    /// Sets the path that the subnet administrator returned (`rdma_resolve_route` with AF_IB). `RouteResolved` is
    /// queued at once. If there is no path, the caller calls [`route_failed`](Self::route_failed).
    ///
    /// # Errors
    /// As [`resolve_route`](Self::resolve_route); `InvalidArgument` for a path between ports other than the id's.
    pub fn ib_route_resolved(
        &mut self,
        now: Duration,
        id: IdNumber,
        timeout: Duration,
        path: &PathRecord,
    ) -> Result<()> {
        let step = Step::ResolveRoute;
        let next = self.begin_route(now, id, timeout)?;
        let number = id;
        let id = self.ids.find_mut(id, step)?;
        let ends = [Some(socket_of(path.sgid)), Some(socket_of(path.dgid))];
        if ends != [id.local, id.remote] || id.ib_service.is_none() {
            let expected = "a path between the two GIDs of the id";
            let found = alloc::format!("{} to {}", path.sgid, path.dgid);
            return Err(id.locate(Error::invalid(step, "path", expected, found)));
        }
        id.path = Some(*path);
        id.lids = Some(Lids {
            local: path.slid,
            remote: path.dlid,
        });
        id.state = next;
        self.report_bare(number, EventType::RouteResolved, 0);
        Ok(())
    }
}

/// The service id of an address; it must be exactly one.
fn service_of(address: &SockaddrIb, step: Step) -> Result<ServiceId> {
    if address.sid == 0 || address.sid_mask != u64::MAX {
        let expected = "a nonzero service id with a mask of all ones";
        let found = alloc::format!("0x{:x}/0x{:x}", address.sid, address.sid_mask);
        return Err(Error::invalid(step, "service id", expected, found));
    }
    Ok(ServiceId(address.sid))
}

/// A GID as the socket address under which ids are stored. Its port is that of the service id, which is stored
/// separately.
pub(crate) fn socket_of(gid: Gid) -> SocketAddr {
    SocketAddr::new(gid.to_ipv6().into(), 0)
}

/// The private data of a request of such an id: only the user's data.
pub(crate) fn plain_private_data<const N: usize>(data: &[u8]) -> Result<PrivateData<N>> {
    PrivateData::from_slice(data).map_err(|_| {
        let expected = alloc::format!("at most {N} bytes");
        let found = alloc::format!("{} bytes", data.len());
        Error::invalid(Step::Connect, "private data", expected, found)
    })
}

/// Whether a REQ arrived on the primary path that it states.
pub(crate) fn is_way_of(path: &MadPath, lids: Lids, req: &ReqRepr) -> bool {
    let primary = &req.primary;
    primary.remote_gid == path.device.sgid
        && !primary.local_gid.is_unspecified()
        && (primary.local_lid, primary.remote_lid) == (lids.remote, lids.local)
        && req.pkey.partition() != 0
}
