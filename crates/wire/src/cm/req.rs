//! REQ: a connection request.

use core::fmt;

use super::body::{Body, BodyBuilder, Format};
use super::{Ece, PathMtu, PathRepr, PrivateData};
use crate::{PKey, Psn, QKey, Qpn, Result, ServiceId};

/// The transport service of a connection, two bits of a REQ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TransportService {
    /// Reliable connection.
    #[default]
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Reliable datagram.
    Rd = 2,
    /// The service in [`ReqRepr::extended_transport`].
    Extended = 3,
}

/// Number of the extended transport service XRC ([`ReqRepr::extended_transport`]).
pub const EXTENDED_XRC: u8 = 1;

impl TransportService {
    const fn from_bits(bits: u8) -> TransportService {
        match bits & 3 {
            0 => TransportService::Rc,
            1 => TransportService::Uc,
            2 => TransportService::Rd,
            _ => TransportService::Extended,
        }
    }
}

/// Request for communication (IBTA 12.6.5).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReqRepr {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// Vendor's options.
    pub ece: Ece,
    /// The requested service.
    pub service_id: ServiceId,
    /// GUID of the sender's channel adapter.
    pub local_ca_guid: u64,
    /// Queue key, only for reliable datagrams.
    pub local_qkey: QKey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// Maximum number of concurrent RDMA reads and atomics that the sender serves.
    pub responder_resources: u8,
    /// End-to-end context of reliable datagrams, 24 bits.
    pub local_eecn: u32,
    /// Maximum number of outstanding RDMA reads and atomics of the sender.
    pub initiator_depth: u8,
    /// End-to-end context of reliable datagrams, 24 bits.
    pub remote_eecn: u32,
    /// Time within which the receiver must answer, exponent of 4.096 µs, five bits.
    pub remote_cm_response_timeout: u8,
    /// Transport service.
    pub transport: TransportService,
    /// Whether the sender's device does end-to-end flow control.
    pub end_to_end_flow_control: bool,
    /// First PSN that the receiver shall send.
    pub starting_psn: Psn,
    /// Time within which the sender will answer, exponent of 4.096 µs, five bits.
    pub local_cm_response_timeout: u8,
    /// Transport retries, three bits.
    pub retry_count: u8,
    /// Partition.
    pub pkey: PKey,
    /// Path MTU, four bits.
    pub path_mtu: PathMtu,
    /// Whether a reliable datagram channel already exists.
    pub rdc_exists: bool,
    /// Retries after RNR NAK, three bits; 7 means unlimited.
    pub rnr_retry_count: u8,
    /// Maximum number of retransmissions of each message of this exchange, four bits.
    pub max_cm_retries: u8,
    /// Whether the sender's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Transport service if `transport` is [`TransportService::Extended`], three bits: 1 is XRC
    /// ([`EXTENDED_XRC`]).
    pub extended_transport: u8,
    /// Primary path.
    pub primary: PathRepr,
    /// Alternate path, all zero if there is none.
    pub alternate: PathRepr,
    /// Private data.
    pub private_data: PrivateData<92>,
}

impl Format for ReqRepr {
    fn read(f: Body<'_>, ece_options: u32) -> Self {
        ReqRepr {
            local_comm_id: f.u32::<0>(),
            ece: Ece {
                vendor_id: f.u24::<5>(),
                options: ece_options,
            },
            service_id: ServiceId(f.u64::<8>()),
            local_ca_guid: f.u64::<16>(),
            local_qkey: QKey(f.u32::<28>()),
            local_qpn: Qpn::new(f.u24::<32>()),
            responder_resources: f.u8::<35>(),
            local_eecn: f.u24::<36>(),
            initiator_depth: f.u8::<39>(),
            remote_eecn: f.u24::<40>(),
            remote_cm_response_timeout: f.bits::<43, 3, 5>(),
            transport: TransportService::from_bits(f.bits::<43, 1, 2>()),
            end_to_end_flow_control: f.bit::<43, 0>(),
            starting_psn: Psn::new(f.u24::<44>()),
            local_cm_response_timeout: f.bits::<47, 3, 5>(),
            retry_count: f.bits::<47, 0, 3>(),
            pkey: PKey(f.u16::<48>()),
            path_mtu: PathMtu(f.bits::<50, 4, 4>()),
            rdc_exists: f.bit::<50, 3>(),
            rnr_retry_count: f.bits::<50, 0, 3>(),
            max_cm_retries: f.bits::<51, 4, 4>(),
            srq: f.bit::<51, 3>(),
            extended_transport: f.bits::<51, 0, 3>(),
            primary: PathRepr::from_req(&f.array::<52, 44>()),
            alternate: PathRepr::from_req(&f.array::<96, 44>()),
            private_data: PrivateData::new(f.array::<140, 92>()),
        }
    }

    fn write(&self, b: &mut BodyBuilder) -> Result<()> {
        b.u32::<0>(self.local_comm_id)
            .u24::<5>("ECE vendor id", self.ece.vendor_id)?
            .u64::<8>(self.service_id.0)
            .u64::<16>(self.local_ca_guid)
            .u32::<28>(self.local_qkey.0)
            .u24::<32>("local QPN", self.local_qpn.value())?
            .u8::<35>(self.responder_resources)
            .u24::<36>("local EECN", self.local_eecn)?
            .u8::<39>(self.initiator_depth)
            .u24::<40>("remote EECN", self.remote_eecn)?
            .bits::<43, 3, 5>(
                "remote CM response timeout",
                self.remote_cm_response_timeout,
            )?
            .bits::<43, 1, 2>("transport service", self.transport as u8)?
            .bit::<43, 0>(self.end_to_end_flow_control)
            .u24::<44>("starting PSN", self.starting_psn.value())?
            .bits::<47, 3, 5>("local CM response timeout", self.local_cm_response_timeout)?
            .bits::<47, 0, 3>("retry count", self.retry_count)?
            .u16::<48>(self.pkey.0)
            .bits::<50, 4, 4>("path MTU", self.path_mtu.0)?
            .bit::<50, 3>(self.rdc_exists)
            .bits::<50, 0, 3>("RNR retry count", self.rnr_retry_count)?
            .bits::<51, 4, 4>("maximum CM retries", self.max_cm_retries)?
            .bit::<51, 3>(self.srq)
            .bits::<51, 0, 3>("extended transport", self.extended_transport)?
            .array::<52, 44>(&self.primary.to_req()?)
            .array::<96, 44>(&self.alternate.to_req()?)
            .array::<140, 92>(self.private_data.as_array());
        Ok(())
    }
}

impl fmt::Display for ReqRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "REQ id 0x{:08x} sid {} from qp {} psn {} mtu {} {}",
            self.local_comm_id,
            self.service_id,
            self.local_qpn,
            self.starting_psn,
            self.path_mtu,
            self.primary
        )
    }
}
