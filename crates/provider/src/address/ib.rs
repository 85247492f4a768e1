//! InfiniBand's socket address and its text form.

use alloc::string::String;
use core::fmt;
use core::net::Ipv6Addr;
use core::str::FromStr;

use portolan_wire::addr::{Gid, PKey, PortSpace, ServiceId};

/// An InfiniBand socket address: Linux `struct sockaddr_ib` (`rdma/ib.h`), fields in host order.
///
/// `Display` prints the form that [`IbText`] describes; parsing the output returns the same
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SockaddrIb {
    /// Partition key; 0xFFFF is the default partition with full membership.
    pub pkey: PKey,
    /// Flow label and traffic class, as an IPv6 `flowinfo`.
    pub flowinfo: u32,
    /// Port GID.
    pub gid: Gid,
    /// Service id: port space in bits 16 and up, port in the low 16 bits for IP port spaces.
    pub sid: u64,
    /// Significant bits of `sid`; zero bits are a wildcard.
    pub sid_mask: u64,
    /// Scope of a link-local GID: a device index, or 0.
    pub scope_id: u64,
}

impl SockaddrIb {
    /// The mask of a service id whose port is a wildcard: only the port space is significant.
    pub const PORT_SPACE_MASK: u64 = !0xFFFF;

    /// The service id of a port in a port space, with its mask of significant bits. For port 0 only
    /// the bits of the port space are significant, as in the rdma_cm and librdmacm.
    pub const fn service(port_space: PortSpace, port: u16) -> (u64, u64) {
        let sid = ServiceId::from_port(port_space, port).0;
        let mask = match port {
            0 => Self::PORT_SPACE_MASK,
            _ => u64::MAX,
        };
        (sid, mask)
    }
}

impl fmt::Display for SockaddrIb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.gid)?;
        if self.scope_id != 0 {
            write!(f, "%{}", self.scope_id)?;
        }
        write!(f, ",pkey={}", self.pkey)?;
        if self.flowinfo != 0 {
            write!(f, ",flow={:#x}", self.flowinfo)?;
        }
        write!(f, ",sid={:#018x}", self.sid)?;
        if self.sid_mask != u64::MAX {
            write!(f, ",mask={:#018x}", self.sid_mask)?;
        }
        Ok(())
    }
}

impl FromStr for SockaddrIb {
    type Err = IbTextError;

    /// Parses the text form. A zone must be a number here: a device name needs a lookup.
    fn from_str(text: &str) -> Result<Self, IbTextError> {
        let text = IbText::parse(text)?;
        let scope_id = match text.zone {
            None => 0,
            Some(zone) => zone
                .parse()
                .ok()
                .filter(|_| is_number(zone))
                .ok_or_else(|| IbTextError::NamedZone(zone.into()))?,
        };
        Ok(Self {
            pkey: text.pkey.unwrap_or_default(),
            flowinfo: text.flowinfo.unwrap_or_default(),
            gid: text.gid,
            sid: text.sid.unwrap_or_default(),
            sid_mask: text.sid_mask.unwrap_or(u64::MAX),
            scope_id,
        })
    }
}

/// An InfiniBand address in text form, with optional parts:
/// `GID[%DEVICE][,pkey=0x8001][,flow=0x1][,sid=0x1061d2f][,mask=0xffffffffffff0000]`.
///
/// The GID is written as an IPv6 address. `DEVICE` is the name or the index of an RDMA device.
/// Numbers are decimal, or hexadecimal with the prefix `0x`. `sid` also takes `tcp:7471` (`udp:`,
/// `ib:`, `ipoib:`). Each key occurs at most once, in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IbText<'a> {
    /// Port GID.
    pub gid: Gid,
    /// The device: a name, or an index as digits.
    pub zone: Option<&'a str>,
    /// Partition key.
    pub pkey: Option<PKey>,
    /// Flow label and traffic class.
    pub flowinfo: Option<u32>,
    /// Service id.
    pub sid: Option<u64>,
    /// Significant bits of the service id.
    pub sid_mask: Option<u64>,
}

/// Why a text is not an InfiniBand address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IbTextError {
    /// The part before `%` and `,` is not a GID.
    #[error("`{0}` is not a GID: write it as an IPv6 address, as in fe80::2:c903:0:1234")]
    Gid(String),
    /// Nothing follows `%`.
    #[error("the device after `%` is missing")]
    EmptyZone,
    /// The device is given by name where only an index is accepted.
    #[error("`{0}` is not a device index")]
    NamedZone(String),
    /// A comma is followed by something other than a known `key=value`.
    #[error("`{0}` is not one of pkey=, flow=, sid= and mask=")]
    Key(String),
    /// A key occurs twice.
    #[error("`{0}=` occurs twice")]
    Twice(&'static str),
    /// A value is not a number, or exceeds its field.
    #[error(
        "`{value}` is not a {bits}-bit {key}: write it in decimal, or in hexadecimal as 0x8001"
    )]
    Value {
        /// The key.
        key: &'static str,
        /// Width of its field, in bits.
        bits: u32,
        /// The value as written.
        value: String,
    },
}

impl<'a> IbText<'a> {
    /// Parses the text form without looking up the device.
    ///
    /// # Errors
    /// [`IbTextError`] names the rule that the text breaks.
    pub fn parse(text: &'a str) -> Result<Self, IbTextError> {
        let mut parts = text.split(',');
        let address = parts.next().unwrap_or_default();
        let (gid, zone) = match address.split_once('%') {
            Some((_, "")) => return Err(IbTextError::EmptyZone),
            Some((gid, zone)) => (gid, Some(zone)),
            None => (address, None),
        };
        let gid: Ipv6Addr = gid.parse().map_err(|_| IbTextError::Gid(shown(gid)))?;
        let mut read = Self {
            gid: gid.into(),
            zone,
            pkey: None,
            flowinfo: None,
            sid: None,
            sid_mask: None,
        };
        for part in parts {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| IbTextError::Key(shown(part)))?;
            match key {
                "pkey" => set(&mut read.pkey, "pkey", value, |text| narrow(text).map(PKey))?,
                "flow" => set(&mut read.flowinfo, "flow", value, narrow)?,
                "sid" => set(&mut read.sid, "sid", value, service_id)?,
                "mask" => set(&mut read.sid_mask, "mask", value, number)?,
                _ => return Err(IbTextError::Key(shown(part))),
            }
        }
        Ok(read)
    }
}

fn set<T>(
    slot: &mut Option<T>,
    key: &'static str,
    value: &str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<(), IbTextError> {
    if slot.is_some() {
        return Err(IbTextError::Twice(key));
    }
    *slot = Some(read(value).ok_or_else(|| IbTextError::Value {
        key,
        bits: size_of::<T>() as u32 * 8,
        value: shown(value),
    })?);
    Ok(())
}

fn service_id(text: &str) -> Option<u64> {
    const SPACES: [PortSpace; 4] = [
        PortSpace::Tcp,
        PortSpace::Udp,
        PortSpace::Ib,
        PortSpace::Ipoib,
    ];
    let Some((space, port)) = text.split_once(':') else {
        return number(text);
    };
    let name = |known: &&PortSpace| match known {
        PortSpace::Tcp => space == "tcp",
        PortSpace::Udp => space == "udp",
        PortSpace::Ib => space == "ib",
        PortSpace::Ipoib => space == "ipoib",
    };
    let space = SPACES.iter().find(name)?;
    Some(ServiceId::from_port(*space, narrow(port)?).0)
}

fn narrow<T: TryFrom<u64>>(text: &str) -> Option<T> {
    T::try_from(number(text)?).ok()
}

/// Parses decimal digits, or hexadecimal ones after `0x`; no signs.
fn number(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_prefix("0x") {
        let all = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        return u64::from_str_radix(digits, 16).ok().filter(|_| all);
    }
    text.parse().ok().filter(|_| is_number(text))
}

/// Returns whether the text has only digits. Rust's own parser also accepts a plus sign.
fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The first characters of a text of arbitrary length.
fn shown(text: &str) -> String {
    const SHOWN_MAX: usize = 80;
    text.chars().take(SHOWN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn gid(text: &str) -> Gid {
        text.parse::<Ipv6Addr>().unwrap().into()
    }

    #[test]
    fn a_bare_gid_gets_the_default_partition_and_no_service() {
        let address: SockaddrIb = "fe80::2:c903:0:1234".parse().unwrap();
        let expected = SockaddrIb {
            pkey: PKey::DEFAULT,
            flowinfo: 0,
            gid: gid("fe80::2:c903:0:1234"),
            sid: 0,
            sid_mask: u64::MAX,
            scope_id: 0,
        };
        assert_eq!(address, expected);
        assert_eq!(
            address.to_string(),
            "fe80::2:c903:0:1234,pkey=0xffff,sid=0x0000000000000000"
        );
    }

    #[test]
    fn device_partition_flow_and_service_can_be_written() {
        let text = "fe80::1%mlx5_0,pkey=0x8001,flow=18,sid=tcp:7471,mask=0xffffffffffff0000";
        let read = IbText::parse(text).unwrap();
        let expected = IbText {
            gid: gid("fe80::1"),
            zone: Some("mlx5_0"),
            pkey: Some(PKey(0x8001)),
            flowinfo: Some(18),
            sid: Some(0x0106_1D2F),
            sid_mask: Some(SockaddrIb::PORT_SPACE_MASK),
        };
        assert_eq!(read, expected);
        assert_eq!(
            text.parse::<SockaddrIb>(),
            Err(IbTextError::NamedZone("mlx5_0".into()))
        );
        let numbered: SockaddrIb = "fe80::1%3,sid=0x1000000000000001".parse().unwrap();
        assert_eq!(
            (numbered.scope_id, numbered.sid),
            (3, 0x1000_0000_0000_0001)
        );
    }

    #[test]
    fn each_broken_text_has_its_own_error() {
        use IbTextError as E;
        let value = |key, bits, value: &str| E::Value {
            key,
            bits,
            value: value.into(),
        };
        for (text, error) in [
            ("", E::Gid("".into())),
            ("host", E::Gid("host".into())),
            ("192.0.2.1", E::Gid("192.0.2.1".into())),
            ("::1%", E::EmptyZone),
            ("::1,", E::Key("".into())),
            ("::1,pkey", E::Key("pkey".into())),
            ("::1,lid=3", E::Key("lid=3".into())),
            ("::1,pkey=1,pkey=1", E::Twice("pkey")),
            ("::1,pkey=0x10000", value("pkey", 16, "0x10000")),
            ("::1,pkey=+1", value("pkey", 16, "+1")),
            ("::1,pkey=0x+1", value("pkey", 16, "0x+1")),
            ("::1,flow=0x100000000", value("flow", 32, "0x100000000")),
            ("::1,sid=tcp:65536", value("sid", 64, "tcp:65536")),
            ("::1,sid=sdp:1", value("sid", 64, "sdp:1")),
            (
                "::1,mask=0x10000000000000000",
                value("mask", 64, "0x10000000000000000"),
            ),
        ] {
            assert_eq!(text.parse::<SockaddrIb>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn a_service_without_a_port_leaves_the_port_open() {
        assert_eq!(
            SockaddrIb::service(PortSpace::Tcp, 7471),
            (0x0106_1D2F, u64::MAX)
        );
        assert_eq!(
            SockaddrIb::service(PortSpace::Ib, 0),
            (0x013F_0000, 0xFFFF_FFFF_FFFF_0000)
        );
    }
}
