//! Connections between ports of an InfiniBand subnet, by native addresses (AF_IB).
//!
//! The connection engine that runs over UDP for RoCE runs here over management datagrams, which are
//! addressed by LID. The port's connection management class must be free. On RDMA hardware the
//! kernel owns it: use the kernel's [`provider`](crate::provider) there. A simulated fabric leaves
//! it free. This module transfers no data: the caller creates the queue pairs.
//!
//! ```no_run
//! use portolan::infiniband::PortManager;
//! use std::time::Duration;
//!
//! let devices = portolan::sa::umad::devices()?;
//! let mut port = PortManager::open(&devices[0])?;
//! while let Some(event) = port.next_event(Duration::from_secs(1))? {
//!     println!("{}", event.event);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod offer;

use std::time::{Duration, Instant};

use portolan_cm::{BoundDevice, Cm, Config, Lids, MadPath, Transmit};
use portolan_provider::SockaddrIb;
use portolan_provider::cm::{
    CmEvent, ConnParam, Ece, IdAddresses, IdNumber, PathRecord, Service, UserId,
};
use portolan_provider::error::{Cause, Error, Result, Step};
use portolan_provider::verbs::Mtu;
use portolan_sa::umad::{Class, Device};
use portolan_sa::{Grh, MadAddress, Port, Received, Transport, TransportError};
use portolan_wire::cm::RejectReason;
use portolan_wire::{Gid, PKey, ServiceId, sa};

pub use offer::ServiceOffer;

/// Longest single wait in the transport; the engine's timers run at least this often.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// A port's acknowledgement delay (`local_ca_ack_delay`), exponent of 4.096 µs: 134 ms, as in
/// Linux's soft devices.
const ACK_DELAY_EXP: u8 = 15;
/// Time limit of a route's resolution; its path is available when it starts.
const ROUTE_TIME_MAX: Duration = Duration::from_secs(2);
/// Maximum number of datagrams to receive before events are checked.
const MADS_PER_TURN: usize = 64;

/// The connection manager of one port, for one thread. Waiting for events drives it. The [module](self) has an example.
#[derive(Debug)]
pub struct PortManager {
    cm: Cm,
    transport: Box<dyn Transport>,
    port: Port,
    device: BoundDevice,
    epoch: Instant,
    /// Number of datagrams that the subnet did not deliver; the engine retransmits them on its own
    /// schedule.
    undelivered: u64,
}

impl PortManager {
    /// Opens the manager of a user MAD device's port.
    ///
    /// # Errors
    /// `Os` with EACCES without permission for the device, or with EINVAL or EBUSY if the kernel or
    /// another program manages connections on this port; `NoDevice` for a port without a LID, which
    /// no subnet manager has configured.
    pub fn open(device: &Device) -> Result<Self> {
        let transport = device.open(&Class::CONNECTIONS).map_err(failed_to_open)?;
        let seed = portolan_roce::io::random(Step::OpenDevice)?;
        Self::over(Box::new(transport), Config::default(), seed)
    }

    /// Creates a manager over any transport of the connection management class. All unpredictable
    /// values derive from `seed`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn over(mut transport: Box<dyn Transport>, config: Config, seed: [u8; 32]) -> Result<Self> {
        let port = transport.port().map_err(failed_to_open)?;
        let gid = port.gid().filter(|_| port.lid != 0);
        let sgid = gid.ok_or_else(|| {
            let name = (&port.device, port.port_num);
            let why = format!("{} port {} has no LID: no subnet manager?", name.0, name.1);
            Error::new(Step::OpenDevice, Cause::NoDevice { why })
        })?;
        let device = BoundDevice {
            device_index: 0,
            port_num: port.port_num,
            sgid_index: 0,
            sgid,
            node_guid: port_guid(sgid),
            // Each path has its own MTU; a port accepts all sizes.
            mtu: Mtu::Mtu4096,
            ack_delay_exp: ACK_DELAY_EXP,
        };
        Ok(Self {
            cm: Cm::new(config, seed),
            transport,
            port,
            device,
            epoch: Instant::now(),
            undelivered: 0,
        })
    }

    /// A snapshot of the port from the time of opening.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Number of datagrams that the subnet reported as undelivered.
    pub fn undelivered(&self) -> u64 {
        self.undelivered
    }

    /// The engine's counters of messages sent and received, by type.
    pub fn counters(&self) -> &portolan_cm::Counters {
        self.cm.counters()
    }

    /// Creates an id (`rdma_create_id`).
    ///
    /// # Errors
    /// As for [`CmId::new`](crate::cm::CmId::new).
    pub fn create_id(&mut self, uid: UserId, service: Service) -> Result<IdNumber> {
        self.cm.create_id(uid, service)
    }

    /// Listens for a service id at this port.
    ///
    /// # Errors
    /// As for [`CmId::bind`](crate::cm::CmId::bind) and [`CmId::listen`](crate::cm::CmId::listen).
    pub fn listen(&mut self, id: IdNumber, service: ServiceId, backlog: i32) -> Result<()> {
        let (now, local) = (self.now(), address(self.device.sgid, service));
        self.cm.bind_ib(now, id, &local, Some(self.device))?;
        self.cm.listen(now, id, backlog)
    }

    /// Sets an id's peer, and the path to it from the subnet administrator. `AddrResolved` and
    /// `RouteResolved` follow.
    ///
    /// # Errors
    /// As for [`CmId::resolve_addr`](crate::cm::CmId::resolve_addr) and
    /// [`CmId::resolve_route`](crate::cm::CmId::resolve_route); `InvalidArgument` for a path with an invalid MTU.
    pub fn resolve(
        &mut self,
        id: IdNumber,
        service: ServiceId,
        path: &sa::PathRecord,
    ) -> Result<()> {
        let (now, destination) = (self.now(), address(path.dgid, service));
        let route = PathRecord::of_record(Step::ResolveRoute, path)?;
        self.cm
            .resolve_ib_addr(now, id, &destination, self.device)?;
        self.cm.ib_route_resolved(now, id, ROUTE_TIME_MAX, &route)
    }

    /// Sends a connection request, or requests a datagram service's queue pair (`rdma_connect`).
    ///
    /// # Errors
    /// As for [`CmId::connect`](crate::cm::CmId::connect).
    pub fn connect(&mut self, id: IdNumber, param: &ConnParam) -> Result<()> {
        let now = self.now();
        self.cm.connect(now, id, param, Ece::default())?;
        self.transmit()
    }

    /// Completes the active side: sends the RTU.
    ///
    /// # Errors
    /// As for [`CmId::establish`](crate::cm::CmId::establish).
    pub fn establish(&mut self, id: IdNumber) -> Result<()> {
        let now = self.now();
        self.cm.establish(now, id)?;
        self.transmit()
    }

    /// Accepts a request (`rdma_accept`). The child's events carry `uid` from then on.
    ///
    /// # Errors
    /// As for [`CmId::accept`](crate::cm::CmId::accept).
    pub fn accept(&mut self, id: IdNumber, uid: UserId, param: &ConnParam) -> Result<()> {
        let now = self.now();
        self.cm.accept(now, id, uid, param, Ece::default())?;
        self.transmit()
    }

    /// Rejects a request or a reply (`rdma_reject`).
    ///
    /// # Errors
    /// As for [`CmId::reject`](crate::cm::CmId::reject).
    pub fn reject(&mut self, id: IdNumber, private_data: &[u8]) -> Result<()> {
        let (now, reason) = (self.now(), RejectReason::CONSUMER_DEFINED);
        self.cm.reject(now, id, reason, private_data)?;
        self.transmit()
    }

    /// Disconnects, or answers the peer's disconnect request (`rdma_disconnect`).
    ///
    /// # Errors
    /// As for [`CmId::disconnect`](crate::cm::CmId::disconnect).
    pub fn disconnect(&mut self, id: IdNumber) -> Result<()> {
        let now = self.now();
        self.cm.disconnect(now, id)?;
        self.transmit()
    }

    /// Destroys an id and informs its peer.
    ///
    /// # Errors
    /// As for [`CmId::destroy`](crate::cm::CmId::destroy).
    pub fn destroy(&mut self, id: IdNumber) -> Result<()> {
        let now = self.now();
        self.cm.destroy_id(now, id)?;
        self.transmit()
    }

    /// The addresses of an id.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn addresses(&self, id: IdNumber) -> Result<IdAddresses> {
        self.cm.addresses(id)
    }

    /// Returns the next event; waits for it at most for `wait`, then returns `None`.
    ///
    /// # Errors
    /// `DeviceRemoved` if the port is gone; `Os` for other system errors.
    pub fn next_event(&mut self, wait: Duration) -> Result<Option<CmEvent>> {
        let until = self.now().saturating_add(wait);
        loop {
            let now = self.now();
            self.cm.handle_timeout(now);
            self.transmit()?;
            // Their events are queued only in the engine, which has dropped them.
            while self.cm.poll_displaced().is_some() {}
            if let Some(event) = self.take_event() {
                return Ok(Some(event));
            }
            let due = self.cm.poll_timeout().unwrap_or(Duration::MAX);
            let left = until.min(due).saturating_sub(now).min(WAIT_MAX);
            self.receive(left)?;
            if now >= until && self.cm.poll_timeout().is_none_or(|due| due > now) {
                self.transmit()?;
                return Ok(self.take_event());
            }
        }
    }

    fn take_event(&mut self) -> Option<CmEvent> {
        let event = self.cm.poll_event()?;
        // A taken request does not count in its listener's backlog any more.
        self.cm.request_taken(event.id);
        Some(event)
    }

    /// Receives the available datagrams; waits for the first one at most for `wait`.
    fn receive(&mut self, wait: Duration) -> Result<()> {
        let mut wait = wait;
        for _ in 0..MADS_PER_TURN {
            let received = self.transport.receive(wait).map_err(failed)?;
            wait = Duration::ZERO;
            match received {
                None => return Ok(()),
                Some(Received::SendFailed { .. }) => self.undelivered += 1,
                Some(Received::Mad { from, mad }) => {
                    let (now, path) = (self.now(), self.way_from(&from));
                    self.cm.handle_mad(now, &path, mad.as_slice());
                }
            }
        }
        Ok(())
    }

    fn transmit(&mut self) -> Result<()> {
        while let Some(transmit) = self.cm.poll_transmit() {
            let to = self.destination(&transmit);
            match self.transport.send(&to, &transmit.mad, Duration::ZERO) {
                Ok(()) => {}
                Err(error) if error.is_final() => return Err(failed(error)),
                // Equivalent to a loss in transit: the engine retransmits.
                Err(_) => self.undelivered += 1,
            }
        }
        Ok(())
    }

    /// The path by which a datagram arrived.
    fn way_from(&self, from: &MadAddress) -> MadPath {
        let gid = from.grh.map_or(Gid::UNSPECIFIED, |grh| grh.gid);
        MadPath {
            local: self.device.sgid.to_ipv6().into(),
            remote: gid.to_ipv6().into(),
            scope_id: 0,
            device: self.device,
            lids: Some(Lids {
                local: self.port.lid | u16::from(from.path_bits) & self.path_mask(),
                remote: from.lid,
            }),
        }
    }

    /// The address of an outgoing datagram. Within the subnet the LID suffices.
    fn destination(&self, transmit: &Transmit) -> MadAddress {
        let lid = transmit.path.lids.map_or(0, |lids| lids.remote);
        let own_lid = transmit.path.lids.map_or(0, |lids| lids.local);
        let pkey_index = self.port.pkey_index(PKey::DEFAULT.partition());
        let is_routed = transmit.hop_limit > 1 && !transmit.path.remote.is_unspecified();
        MadAddress {
            grh: (is_routed && self.leaves_subnet(transmit)).then(|| Grh {
                gid: Gid::from(transmit.path.remote),
                sgid_index: 0,
                flow_label: transmit.flow_label,
                hop_limit: transmit.hop_limit,
                traffic_class: transmit.traffic_class,
            }),
            path_bits: (own_lid & self.path_mask()) as u8,
            ..MadAddress::gsi(lid, transmit.sl, pkey_index.unwrap_or(0))
        }
    }

    /// The mask of the LID bits that the port's LMC controls.
    fn path_mask(&self) -> u16 {
        // The LID mask control has three bits.
        (1 << self.port.lmc.min(7)) - 1
    }

    /// Returns whether the peer's GID has a subnet prefix other than the port's.
    fn leaves_subnet(&self, transmit: &Transmit) -> bool {
        let peer = Gid::from(transmit.path.remote);
        peer.0.first_chunk::<8>() != self.device.sgid.0.first_chunk::<8>()
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }
}

/// The port GUID, which is the lower half of its GID.
fn port_guid(gid: Gid) -> u64 {
    gid.0.last_chunk().copied().map_or(0, u64::from_be_bytes)
}

fn address(gid: Gid, service: ServiceId) -> SockaddrIb {
    SockaddrIb {
        pkey: PKey::DEFAULT,
        flowinfo: 0,
        gid,
        sid: service.0,
        sid_mask: u64::MAX,
        scope_id: 0,
    }
}

fn failed_to_open(error: TransportError) -> Error {
    Error::new(Step::OpenDevice, cause(&error))
}

fn failed(error: TransportError) -> Error {
    Error::new(Step::Event, cause(&error))
}

fn cause(error: &TransportError) -> Cause {
    match error {
        TransportError::Gone { .. } => Cause::DeviceRemoved,
        TransportError::Os { call, errno } => Cause::Os {
            call,
            errno: *errno,
        },
        _ => Cause::NoDevice {
            why: error.to_string(),
        },
    }
}

#[cfg(test)]
mod tests;
