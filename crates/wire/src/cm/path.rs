//! A path between two ports, as in REQ and LAP.

use core::fmt;

use crate::bytes::{At, Bits, Place, Value, layout, narrow};
use crate::{Gid, Result};

layout! {
    /// A primary or alternate path (IBTA 12.6.5), here in the layout of a REQ. An absent alternate path is all zero.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct PathRepr("path", 44) {
        /// LID of the sender's port; 0xFFFF (permissive) on routed RoCE paths.
        pub local_lid: u16 = At<0>,
        /// LID of the receiver's port; 0xFFFF (permissive) on routed RoCE paths.
        pub remote_lid: u16 = At<2>,
        /// GID of the sender's port.
        pub local_gid: Gid = At<4>,
        /// GID of the receiver's port.
        pub remote_gid: Gid = At<20>,
        /// Flow label, 20 bits.
        pub flow_label: u32 = Bits<36, 4, 20>,
        /// Static rate, six bits, in the code of IBTA 9.11 (`enum ib_rate`).
        pub packet_rate: u8 = Bits<39, 0, 6>,
        /// Traffic class.
        pub traffic_class: u8 = At<40>,
        /// Hop limit.
        pub hop_limit: u8 = At<41>,
        /// Service level, four bits.
        pub service_level: u8 = Bits<42, 4, 4>,
        /// The path does not leave the subnet.
        pub subnet_local: bool = Bits<42, 3, 1>,
        /// Time that the receiver waits for an ACK before it retransmits, exponent of 4.096 µs, five
        /// bits; see [`cm_timeout_us`](crate::timer::cm_timeout_us).
        pub local_ack_timeout: u8 = Bits<43, 3, 5>,
    }
}

impl PathRepr {
    /// True if there is no path: all zero.
    pub fn is_absent(&self) -> bool {
        *self == PathRepr::default()
    }
}

/// The path of a LAP, which differs from a REQ's in the order of three bytes: traffic class, hop limit, rate.
pub(super) struct InLap<const BYTE: usize>;

impl<const BYTE: usize> Place<PathRepr> for InLap<BYTE> {
    const END: usize = BYTE + PathRepr::LEN;

    fn get(header: &[u8]) -> PathRepr {
        let mut path: [u8; PathRepr::LEN] = At::<BYTE>::get(header);
        path[39..42].rotate_right(1);
        PathRepr::read(&path)
    }

    fn put(what: &'static str, value: &PathRepr, header: &mut [u8]) -> Result<()> {
        At::<BYTE>::put(what, value, header)?;
        header[BYTE + 39..BYTE + 42].rotate_left(1);
        Ok(())
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

narrow! {
    PathMtu: |bits| PathMtu(bits as u8), |mtu: PathMtu| mtu.0.into();
}

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
