//! SIDR REQ and SIDR REP: resolve a service id to the queue pair and queue key of a datagram
//! service.

use core::fmt;

use super::body::{Body, BodyBuilder, Format};
use super::{AdditionalInfo, Ece, PrivateData, SidrStatus};
use crate::bytes::fit;
use crate::{PKey, QKey, Qpn, Result, ServiceId};

/// Service id resolution request (IBTA 12.11.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SidrReqRepr {
    /// The sender's id of this request.
    pub request_id: u32,
    /// Partition.
    pub pkey: PKey,
    /// The requested service.
    pub service_id: ServiceId,
    /// Private data.
    pub private_data: PrivateData<216>,
}

impl Format for SidrReqRepr {
    fn read(f: Body<'_>, _: u32) -> Self {
        SidrReqRepr {
            request_id: f.u32::<0>(),
            pkey: PKey(f.u16::<4>()),
            service_id: ServiceId(f.u64::<8>()),
            private_data: PrivateData::new(f.array::<16, 216>()),
        }
    }

    fn write(&self, b: &mut BodyBuilder) -> Result<()> {
        b.u32::<0>(self.request_id)
            .u16::<4>(self.pkey.0)
            .u64::<8>(self.service_id.0)
            .array::<16, 216>(self.private_data.as_array());
        Ok(())
    }
}

impl fmt::Display for SidrReqRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SIDR REQ id 0x{:08x} sid {}",
            self.request_id, self.service_id
        )
    }
}

/// Service id resolution response (IBTA 12.11.2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SidrRepRepr {
    /// The id of the answered request.
    pub request_id: u32,
    /// Result of the resolution.
    pub status: SidrStatus,
    /// Vendor's options.
    pub ece: Ece,
    /// The queue pair of the service.
    pub qpn: Qpn,
    /// The service.
    pub service_id: ServiceId,
    /// The queue pair's key.
    pub qkey: QKey,
    /// Additional information, such as the target of a redirect.
    pub additional_info: AdditionalInfo,
    /// Private data.
    pub private_data: PrivateData<136>,
}

impl Format for SidrRepRepr {
    fn read(f: Body<'_>, ece_options: u32) -> Self {
        SidrRepRepr {
            request_id: f.u32::<0>(),
            status: SidrStatus(f.u8::<4>()),
            ece: Ece {
                // The low 16 bits are before the queue pair number, the high 8 bits after it.
                vendor_id: u32::from(f.u8::<11>()) << 16 | u32::from(f.u16::<6>()),
                options: ece_options,
            },
            qpn: Qpn::new(f.u24::<8>()),
            service_id: ServiceId(f.u64::<12>()),
            qkey: QKey(f.u32::<20>()),
            additional_info: AdditionalInfo {
                len: f.u8::<5>(),
                bytes: f.array::<24, 72>(),
            },
            private_data: PrivateData::new(f.array::<96, 136>()),
        }
    }

    fn write(&self, b: &mut BodyBuilder) -> Result<()> {
        let vendor_id = fit("ECE vendor id", self.ece.vendor_id, 24)?;
        b.u32::<0>(self.request_id)
            .u8::<4>(self.status.0)
            .u8::<5>(self.additional_info.len)
            .u16::<6>(vendor_id as u16)
            .u24::<8>("QPN", self.qpn.value())?
            .u8::<11>((vendor_id >> 16) as u8)
            .u64::<12>(self.service_id.0)
            .u32::<20>(self.qkey.0)
            .array::<24, 72>(&self.additional_info.bytes)
            .array::<96, 136>(self.private_data.as_array());
        Ok(())
    }
}

impl fmt::Display for SidrRepRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SIDR REP id 0x{:08x} sid {}",
            self.request_id, self.service_id
        )?;
        if self.status == SidrStatus::SUCCESS {
            write!(f, " qp {} qkey {}", self.qpn, self.qkey)
        } else {
            write!(f, " status {}", self.status)
        }
    }
}
