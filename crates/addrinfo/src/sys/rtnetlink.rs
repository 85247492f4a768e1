//! Messages about routes and neighbours (rtnetlink(7)), as pure code. Only what this crate reads is decoded.

use std::net::IpAddr;

use netlink_packet_core::{
    DecodeError, Emitable, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable, Nla,
    NlasIterator, parse_u16, parse_u32,
};

/// Length of `struct rtmsg` and of `struct ndmsg`.
const HEADER_LENGTH: usize = 12;
/// Metrics of a route (`linux/rtnetlink.h`).
const RTAX_MTU: u16 = 2;
const RTAX_HOPLIMIT: u16 = 10;

/// A message to or from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RouteNetlinkMessage {
    GetRoute(RouteMessage),
    NewRoute(RouteMessage),
    GetNeighbour(NeighbourMessage),
    NewNeighbour(NeighbourMessage),
    /// Another message, with its type.
    Other(u16),
}

/// The fields of `struct rtmsg` that are used, and the attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteMessage {
    /// `AF_INET` or `AF_INET6`.
    pub(crate) family: u8,
    pub(crate) destination_prefix_length: u8,
    pub(crate) source_prefix_length: u8,
    pub(crate) table: u8,
    /// One of `RTN_*`.
    pub(crate) kind: u8,
    /// A mask of `RTM_F_*`.
    pub(crate) flags: u32,
    pub(crate) attributes: Vec<RouteAttribute>,
}

/// An attribute of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RouteAttribute {
    Destination(IpAddr),
    Source(IpAddr),
    PrefSource(IpAddr),
    Gateway(IpAddr),
    /// A gateway of any family.
    Via(IpAddr),
    Oif(u32),
    Table(u32),
    Uid(u32),
    /// The metric `RTAX_MTU`.
    Mtu(u32),
    /// The metric `RTAX_HOPLIMIT`.
    HopLimit(u32),
    /// `rta_error` of the cache information: a negative errno, in a field that the kernel declares unsigned.
    CacheError(u32),
}

/// The fields of `struct ndmsg` that are used, and the attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NeighbourMessage {
    /// The table's family.
    pub(crate) family: u8,
    pub(crate) interface_index: u32,
    /// One of `NUD_*`.
    pub(crate) state: u16,
    pub(crate) attributes: Vec<NeighbourAttribute>,
}

/// An attribute of a neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NeighbourAttribute {
    Destination(IpAddr),
    LinkLayerAddress(Vec<u8>),
}

/// `AF_INET` or `AF_INET6`, as messages have it.
pub(crate) fn family_of(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

impl NetlinkSerializable for RouteNetlinkMessage {
    fn message_type(&self) -> u16 {
        match self {
            Self::GetRoute(_) => libc::RTM_GETROUTE,
            Self::NewRoute(_) => libc::RTM_NEWROUTE,
            Self::GetNeighbour(_) => libc::RTM_GETNEIGH,
            Self::NewNeighbour(_) => libc::RTM_NEWNEIGH,
            Self::Other(kind) => *kind,
        }
    }

    fn buffer_len(&self) -> usize {
        match self {
            Self::GetRoute(message) | Self::NewRoute(message) => {
                HEADER_LENGTH + message.attributes.as_slice().buffer_len()
            }
            Self::GetNeighbour(message) | Self::NewNeighbour(message) => {
                HEADER_LENGTH + message.attributes.as_slice().buffer_len()
            }
            Self::Other(_) => 0,
        }
    }

    fn serialize(&self, buffer: &mut [u8]) {
        let Some((header, rest)) = buffer.split_first_chunk_mut() else {
            return;
        };
        match self {
            Self::GetRoute(message) | Self::NewRoute(message) => {
                *header = message.header();
                message.attributes.as_slice().emit(rest);
            }
            Self::GetNeighbour(message) | Self::NewNeighbour(message) => {
                *header = message.header();
                message.attributes.as_slice().emit(rest);
            }
            Self::Other(_) => {}
        }
    }
}

impl NetlinkDeserializable for RouteNetlinkMessage {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(match header.message_type {
            libc::RTM_GETROUTE => Self::GetRoute(RouteMessage::parse(payload)?),
            libc::RTM_NEWROUTE => Self::NewRoute(RouteMessage::parse(payload)?),
            libc::RTM_GETNEIGH => Self::GetNeighbour(NeighbourMessage::parse(payload)?),
            libc::RTM_NEWNEIGH => Self::NewNeighbour(NeighbourMessage::parse(payload)?),
            other => Self::Other(other),
        })
    }
}

impl RouteMessage {
    fn header(&self) -> [u8; HEADER_LENGTH] {
        let mut header = [0; HEADER_LENGTH];
        header[0] = self.family;
        header[1] = self.destination_prefix_length;
        header[2] = self.source_prefix_length;
        header[4] = self.table;
        header[7] = self.kind;
        header[8..].copy_from_slice(&self.flags.to_ne_bytes());
        header
    }

    fn parse(payload: &[u8]) -> Result<Self, DecodeError> {
        let (header, rest) = split(payload)?;
        let mut message = Self {
            family: header[0],
            destination_prefix_length: header[1],
            source_prefix_length: header[2],
            table: header[4],
            kind: header[7],
            flags: parse_u32(&header[8..])?,
            attributes: Vec::new(),
        };
        for attribute in NlasIterator::new(rest) {
            let attribute = attribute?;
            let value = attribute.value();
            if attribute.kind() == libc::RTA_METRICS {
                for metric in NlasIterator::new(value) {
                    let metric = metric?;
                    let of_kind = match metric.kind() {
                        RTAX_MTU => RouteAttribute::Mtu,
                        RTAX_HOPLIMIT => RouteAttribute::HopLimit,
                        _ => continue,
                    };
                    message.attributes.push(of_kind(parse_u32(metric.value())?));
                }
                continue;
            }
            let read = RouteAttribute::parse(message.family, attribute.kind(), value)?;
            message.attributes.extend(read);
        }
        Ok(message)
    }
}

impl RouteAttribute {
    /// `None` for an attribute that is not used.
    fn parse(family: u8, kind: u16, value: &[u8]) -> Result<Option<Self>, DecodeError> {
        Ok(match kind {
            libc::RTA_DST => address(family, value)?.map(Self::Destination),
            libc::RTA_SRC => address(family, value)?.map(Self::Source),
            libc::RTA_PREFSRC => address(family, value)?.map(Self::PrefSource),
            libc::RTA_GATEWAY => address(family, value)?.map(Self::Gateway),
            // `struct rtvia`: the family in two bytes, and the address.
            libc::RTA_VIA => {
                let (family, value) = value.split_at_checked(2).ok_or("RTA_VIA too short")?;
                let family = u8::try_from(parse_u16(family)?).unwrap_or_default();
                address(family, value)?.map(Self::Via)
            }
            libc::RTA_OIF => Some(Self::Oif(parse_u32(value)?)),
            libc::RTA_TABLE => Some(Self::Table(parse_u32(value)?)),
            libc::RTA_UID => Some(Self::Uid(parse_u32(value)?)),
            // `struct rta_cacheinfo` has eight words. The fourth is rta_error.
            libc::RTA_CACHEINFO => {
                let error = value.get(12..16).ok_or("RTA_CACHEINFO too short")?;
                Some(Self::CacheError(parse_u32(error)?))
            }
            _ => None,
        })
    }
}

impl Nla for RouteAttribute {
    fn value_len(&self) -> usize {
        match self {
            Self::Destination(address) | Self::Source(address) => length(*address),
            Self::Oif(_) | Self::Uid(_) => 4,
            _ => unreachable!("{NOT_SENT}"),
        }
    }

    fn kind(&self) -> u16 {
        match self {
            Self::Destination(_) => libc::RTA_DST,
            Self::Source(_) => libc::RTA_SRC,
            Self::Oif(_) => libc::RTA_OIF,
            Self::Uid(_) => libc::RTA_UID,
            _ => unreachable!("{NOT_SENT}"),
        }
    }

    fn emit_value(&self, buffer: &mut [u8]) {
        match self {
            Self::Destination(address) | Self::Source(address) => emit(*address, buffer),
            Self::Oif(value) | Self::Uid(value) => buffer.copy_from_slice(&value.to_ne_bytes()),
            _ => unreachable!("{NOT_SENT}"),
        }
    }
}

const NOT_SENT: &str = "only the kernel sends this attribute";

impl NeighbourMessage {
    fn header(&self) -> [u8; HEADER_LENGTH] {
        let mut header = [0; HEADER_LENGTH];
        header[0] = self.family;
        header[4..8].copy_from_slice(&self.interface_index.to_ne_bytes());
        header[8..10].copy_from_slice(&self.state.to_ne_bytes());
        header
    }

    fn parse(payload: &[u8]) -> Result<Self, DecodeError> {
        let (header, rest) = split(payload)?;
        let mut message = Self {
            family: header[0],
            interface_index: parse_u32(&header[4..8])?,
            state: parse_u16(&header[8..10])?,
            attributes: Vec::new(),
        };
        for attribute in NlasIterator::new(rest) {
            let attribute = attribute?;
            let value = attribute.value();
            message.attributes.extend(match attribute.kind() {
                libc::NDA_DST => {
                    address(message.family, value)?.map(NeighbourAttribute::Destination)
                }
                libc::NDA_LLADDR => Some(NeighbourAttribute::LinkLayerAddress(value.to_vec())),
                _ => None,
            });
        }
        Ok(message)
    }
}

impl Nla for NeighbourAttribute {
    fn value_len(&self) -> usize {
        match self {
            Self::Destination(address) => length(*address),
            Self::LinkLayerAddress(bytes) => bytes.len(),
        }
    }

    fn kind(&self) -> u16 {
        match self {
            Self::Destination(_) => libc::NDA_DST,
            Self::LinkLayerAddress(_) => libc::NDA_LLADDR,
        }
    }

    fn emit_value(&self, buffer: &mut [u8]) {
        match self {
            Self::Destination(address) => emit(*address, buffer),
            Self::LinkLayerAddress(bytes) => buffer.copy_from_slice(bytes),
        }
    }
}

fn split(payload: &[u8]) -> Result<(&[u8; HEADER_LENGTH], &[u8]), DecodeError> {
    payload
        .split_first_chunk()
        .ok_or_else(|| DecodeError::buffer_too_small(payload.len(), HEADER_LENGTH))
}

/// An address of this family; `None` for a family other than IP's.
fn address(family: u8, value: &[u8]) -> Result<Option<IpAddr>, DecodeError> {
    let wrong = |_| DecodeError::from("an address of another family's length");
    match i32::from(family) {
        libc::AF_INET => <[u8; 4]>::try_from(value).map(IpAddr::from),
        libc::AF_INET6 => <[u8; 16]>::try_from(value).map(IpAddr::from),
        _ => return Ok(None),
    }
    .map(Some)
    .map_err(wrong)
}

fn length(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => 4,
        IpAddr::V6(_) => 16,
    }
}

fn emit(address: IpAddr, buffer: &mut [u8]) {
    match address {
        IpAddr::V4(address) => buffer.copy_from_slice(&address.octets()),
        IpAddr::V6(address) => buffer.copy_from_slice(&address.octets()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn round_trip(message: &RouteNetlinkMessage) -> RouteNetlinkMessage {
        let mut bytes = vec![0xff; message.buffer_len()];
        message.serialize(&mut bytes);
        let mut header = NetlinkHeader::default();
        header.message_type = message.message_type();
        RouteNetlinkMessage::deserialize(&header, &bytes).unwrap()
    }

    /// An attribute of C's `struct rtattr`.
    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = (value.len() + 4) as u16;
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn new_route(header: [u8; 12], attributes: &[Vec<u8>]) -> Result<RouteMessage, DecodeError> {
        RouteMessage::parse(&[&header[..], &attributes.concat()].concat())
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        let mut route = RouteMessage {
            family: family_of(ip("2001:db8::1")),
            destination_prefix_length: 128,
            flags: libc::RTM_F_LOOKUP_TABLE,
            ..RouteMessage::default()
        };
        route.attributes = vec![
            RouteAttribute::Destination(ip("2001:db8::1")),
            RouteAttribute::Source(ip("2001:db8::2")),
            RouteAttribute::Oif(3),
            RouteAttribute::Uid(1000),
        ];
        let neighbour = NeighbourMessage {
            family: family_of(ip("192.0.2.1")),
            interface_index: 7,
            state: libc::NUD_STALE,
            attributes: vec![
                NeighbourAttribute::Destination(ip("192.0.2.1")),
                // Padded.
                NeighbourAttribute::LinkLayerAddress(vec![1, 2, 3, 4, 5, 6]),
            ],
        };
        for message in [
            RouteNetlinkMessage::GetRoute(route),
            RouteNetlinkMessage::GetNeighbour(neighbour),
        ] {
            assert_eq!(round_trip(&message), message);
        }
    }

    #[test]
    fn a_route_has_the_attributes_that_the_kernel_sends() {
        // rtm_family, _dst_len, _src_len, _tos, _table, _protocol, _scope, _type, and the flags.
        let header = [2, 32, 0, 0, 254, 2, 0, 1, 0, 0, 0, 0];
        let mut cache = [0; 32];
        cache[12..16].copy_from_slice(&(-113_i32).to_ne_bytes());
        let via = [&10_u16.to_ne_bytes()[..], &[0xfe; 16]].concat();
        let metrics = [
            attribute(2, &9000_u32.to_ne_bytes()),
            attribute(8, &1_u32.to_ne_bytes()),
            attribute(10, &64_u32.to_ne_bytes()),
        ];
        let route = new_route(
            header,
            &[
                attribute(15, &254_u32.to_ne_bytes()),
                attribute(5, &[192, 0, 2, 1]),
                attribute(7, &[192, 0, 2, 9]),
                attribute(18, &via),
                attribute(8, &metrics.concat()),
                attribute(12, &cache),
                attribute(20, &[0]),
            ],
        )
        .unwrap();
        assert_eq!((route.table, route.kind), (254, libc::RTN_UNICAST));
        let expected = [
            RouteAttribute::Table(254),
            RouteAttribute::Gateway(ip("192.0.2.1")),
            RouteAttribute::PrefSource(ip("192.0.2.9")),
            RouteAttribute::Via([0xfe; 16].into()),
            RouteAttribute::Mtu(9000),
            RouteAttribute::HopLimit(64),
            RouteAttribute::CacheError((-113_i32).cast_unsigned()),
        ];
        assert_eq!(route.attributes, expected);
    }

    #[test]
    fn what_is_malformed_is_an_error_and_an_address_of_another_family_is_skipped() {
        assert!(RouteMessage::parse(&[0; 11]).is_err());
        assert!(NeighbourMessage::parse(&[0; 11]).is_err());
        let ipv4 = [2, 32, 0, 0, 254, 2, 0, 1, 0, 0, 0, 0];
        for malformed in [
            attribute(5, &[0; 16]),
            attribute(4, &[0; 3]),
            attribute(12, &[0; 15]),
            attribute(18, &[0]),
            vec![3, 0, 4, 0],
        ] {
            assert!(
                new_route(ipv4, std::slice::from_ref(&malformed)).is_err(),
                "{malformed:?}"
            );
        }
        // A bridge's table has addresses of tunnels.
        let mut bridge = vec![libc::AF_BRIDGE as u8];
        bridge.resize(HEADER_LENGTH, 0);
        bridge.extend(attribute(1, &[192, 0, 2, 1]));
        assert_eq!(NeighbourMessage::parse(&bridge).unwrap().attributes, []);
    }
}
