//! A path between two ports, as in REQ and LAP.

use core::fmt;

use crate::bytes::{Builder, Fields, fit};
use crate::{Gid, Result};

/// A primary or alternate path (IBTA 12.6.5). An absent alternate path is all zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathRepr {
    /// LID of the sender's port; 0xFFFF (permissive) on routed RoCE paths.
    pub local_lid: u16,
    /// LID of the receiver's port; 0xFFFF (permissive) on routed RoCE paths.
    pub remote_lid: u16,
    /// GID of the sender's port.
    pub local_gid: Gid,
    /// GID of the receiver's port.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Static rate, six bits, in the code of IBTA 9.11 (`enum ib_rate`).
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, four bits.
    pub service_level: u8,
    /// The path does not leave the subnet.
    pub subnet_local: bool,
    /// Time that the receiver waits for an ACK before it retransmits, exponent of 4.096 µs, five
    /// bits; see [`cm_timeout_us`](crate::timer::cm_timeout_us).
    pub local_ack_timeout: u8,
}

/// Length of a path, in bytes.
pub(super) const PATH_LEN: usize = 44;

impl PathRepr {
    /// True if there is no path: all zero.
    pub fn is_absent(&self) -> bool {
        *self == PathRepr::default()
    }

    /// Reads a path of a REQ.
    pub(super) fn from_req(path: &[u8; PATH_LEN]) -> PathRepr {
        let f = Fields(path);
        PathRepr {
            packet_rate: f.bits::<39, 0, 6>(),
            traffic_class: f.u8::<40>(),
            hop_limit: f.u8::<41>(),
            ..PathRepr::common(f)
        }
    }

    /// Reads the path of a LAP.
    pub(super) fn from_lap(path: &[u8; PATH_LEN]) -> PathRepr {
        let f = Fields(path);
        PathRepr {
            traffic_class: f.u8::<39>(),
            hop_limit: f.u8::<40>(),
            packet_rate: f.bits::<41, 0, 6>(),
            ..PathRepr::common(f)
        }
    }

    /// The path as in a REQ.
    pub(super) fn to_req(self) -> Result<[u8; PATH_LEN]> {
        let mut b = self.build_common()?;
        b.bits::<39, 0, 6>("packet rate", self.packet_rate)?
            .u8::<40>(self.traffic_class)
            .u8::<41>(self.hop_limit);
        Ok(b.finish())
    }

    /// The path as in a LAP.
    pub(super) fn to_lap(self) -> Result<[u8; PATH_LEN]> {
        let mut b = self.build_common()?;
        b.u8::<39>(self.traffic_class)
            .u8::<40>(self.hop_limit)
            .bits::<41, 0, 6>("packet rate", self.packet_rate)?;
        Ok(b.finish())
    }

    /// The fields at the same offsets in REQ and LAP.
    fn common(f: Fields<'_, PATH_LEN>) -> PathRepr {
        PathRepr {
            local_lid: f.u16::<0>(),
            remote_lid: f.u16::<2>(),
            local_gid: Gid(f.array::<4, 16>()),
            remote_gid: Gid(f.array::<20, 16>()),
            flow_label: f.u24::<36>() >> 4,
            service_level: f.bits::<42, 4, 4>(),
            subnet_local: f.bit::<42, 3>(),
            local_ack_timeout: f.bits::<43, 3, 5>(),
            ..PathRepr::default()
        }
    }

    fn build_common(&self) -> Result<Builder<PATH_LEN>> {
        let flow_label = fit("flow label", self.flow_label, 20)?;
        let mut b = Builder::new();
        b.u16::<0>(self.local_lid)
            .u16::<2>(self.remote_lid)
            .array::<4, 16>(&self.local_gid.0)
            .array::<20, 16>(&self.remote_gid.0)
            .u24::<36>("flow label", flow_label << 4)?
            .bits::<42, 4, 4>("service level", self.service_level)?
            .bit::<42, 3>(self.subnet_local)
            .bits::<43, 3, 5>("local ACK timeout", self.local_ack_timeout)?;
        Ok(b)
    }
}

impl fmt::Display for PathRepr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} -> {}",
            self.local_gid.to_ip(),
            self.remote_gid.to_ip()
        )
    }
}

/// A path MTU in IBTA's encoding (`enum ib_mtu`), four bits in messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathMtu(pub u8);

impl PathMtu {
    /// Bytes of payload in a packet; `None` for a reserved code.
    pub const fn bytes(self) -> Option<usize> {
        match self.0 {
            1..=5 => Some(128 << self.0),
            _ => None,
        }
    }
}

impl fmt::Display for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes() {
            Some(bytes) => bytes.fmt(f),
            None => write!(f, "reserved MTU code {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_codes_are_the_powers_of_two_from_256_to_4096() {
        let bytes = [0, 1, 3, 5, 6].map(|code| PathMtu(code).bytes());
        assert_eq!(bytes, [None, Some(256), Some(1024), Some(4096), None]);
    }
}
