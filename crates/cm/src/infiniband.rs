//! Ids with native InfiniBand addresses (AF_IB), and ports of InfiniBand's own link layer.
//!
//! Such an id names its peer by GID and service id, and its private data is the user's alone: there are no IP
//! addresses to be told (`cma_user_data_offset`). Its path comes from the subnet administrator, whom
//! the caller asks. On an InfiniBand port a message's way is a pair of LIDs, and a peer is known by its LID.

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
    /// Gives an id its service id, and the port to listen at (`rdma_bind_addr` with AF_IB); a GID of zero is
    /// every port. The partition of `local` is not looked at.
    ///
    /// # Errors
    /// `InvalidState`, `NoSuchObject`; `InvalidArgument` for a service id of zero, or whose mask leaves a part of it
    /// open; `NoDevice` for a GID without a device.
    pub fn bind_ib(
        &mut self,
        _now: Duration,
        id: IdNumber,
        local: &SockaddrIb,
        device: Option<BoundDevice>,
    ) -> Result<()> {
        let step = Step::Bind;
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
        Ok(())
    }

    /// Names an id's peer, and the port to reach it from (`rdma_resolve_addr` with AF_IB). Nothing has to be
    /// asked, so `AddrResolved` is there at once.
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
        id.ib_service = Some(service);
        id.local = Some(socket_of(device.sgid));
        id.remote = Some(socket_of(destination.gid));
        id.device = Some(device);
        id.state = next;
        self.report_bare(number, EventType::AddrResolved, 0);
        Ok(())
    }

    /// Gives an id the path that the subnet administrator has (`rdma_resolve_route` with AF_IB):
    /// `RouteResolved` is there at once. Where there is none the caller tells by
    /// [`route_failed`](Self::route_failed).
    ///
    /// # Errors
    /// As [`resolve_route`](Self::resolve_route); `InvalidArgument` for a path between other ports than the id's.
    pub fn ib_route_resolved(
        &mut self,
        now: Duration,
        id: IdNumber,
        timeout: Duration,
        path: &PathRecord,
        lids: Lids,
    ) -> Result<()> {
        let step = Step::ResolveRoute;
        let next = self.begin_route(now, id, timeout)?;
        let number = id;
        let id = self.ids.find_mut(id, step)?;
        let ends = [Some(socket_of(path.sgid)), Some(socket_of(path.dgid))];
        if ends != [id.local, id.remote] || id.ib_service.is_none() {
            let expected = "one between the two GIDs of the id";
            let found = alloc::format!("{} to {}", path.sgid, path.dgid);
            return Err(id.locate(Error::invalid(step, "path", expected, found)));
        }
        id.path = Some(*path);
        id.lids = Some(lids);
        id.state = next;
        self.report_bare(number, EventType::RouteResolved, 0);
        Ok(())
    }
}

/// The one service id that an address names.
fn service_of(address: &SockaddrIb, step: Step) -> Result<ServiceId> {
    if address.sid == 0 || address.sid_mask != u64::MAX {
        let expected = "one service id, not zero, with a mask of all ones";
        let found = alloc::format!("0x{:x}/0x{:x}", address.sid, address.sid_mask);
        return Err(Error::invalid(step, "service id", expected, found));
    }
    Ok(ServiceId(address.sid))
}

/// A GID as the socket address by which ids are kept: its port is the service id's, which is kept beside.
pub(crate) fn socket_of(gid: Gid) -> SocketAddr {
    SocketAddr::new(gid.to_ipv6().into(), 0)
}

/// The private data of a request of such an id: the user's.
pub(crate) fn plain_private_data<const N: usize>(data: &[u8]) -> Result<PrivateData<N>> {
    PrivateData::from_slice(data).map_err(|_| {
        let expected = alloc::format!("at most {N} bytes");
        let found = alloc::format!("{} bytes", data.len());
        Error::invalid(Step::Connect, "private data", expected, found)
    })
}

/// Whether the primary path that a REQ gives is the one it came on.
pub(crate) fn is_way_of(path: &MadPath, lids: Lids, req: &ReqRepr) -> bool {
    let primary = &req.primary;
    primary.remote_gid == path.device.sgid
        && !primary.local_gid.is_unspecified()
        && (primary.local_lid, primary.remote_lid) == (lids.remote, lids.local)
        && req.pkey.partition() != 0
}
