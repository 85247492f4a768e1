//! Link-layer headers: finds the IP packet in a captured frame.

use std::fmt;

/// A link type, numbered as in the tcpdump project's registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkType(pub(crate) u32);

impl LinkType {
    /// BSD loopback: the address family in the capturing machine's byte order.
    pub(crate) const NULL: LinkType = LinkType(0);
    /// Ethernet.
    pub(crate) const ETHERNET: LinkType = LinkType(1);
    /// Raw IP, version by the first nibble.
    pub(crate) const RAW: LinkType = LinkType(101);
    /// Raw IP with the number that some BSDs use.
    const RAW_BSD: LinkType = LinkType(12);
    const RAW_OPENBSD: LinkType = LinkType(14);
    /// OpenBSD loopback: the address family in network byte order.
    pub(crate) const LOOP: LinkType = LinkType(108);
    /// Linux "any" device.
    pub(crate) const LINUX_SLL: LinkType = LinkType(113);
    /// Raw IPv4.
    const IPV4: LinkType = LinkType(228);
    /// Raw IPv6.
    const IPV6: LinkType = LinkType(229);
    /// Linux "any" device, second version.
    pub(crate) const LINUX_SLL2: LinkType = LinkType(276);
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            LinkType::NULL => "BSD loopback",
            LinkType::ETHERNET => "Ethernet",
            LinkType::RAW | LinkType::RAW_BSD | LinkType::RAW_OPENBSD => "raw IP",
            LinkType::LOOP => "OpenBSD loopback",
            LinkType::LINUX_SLL => "Linux cooked",
            LinkType::IPV4 => "raw IPv4",
            LinkType::IPV6 => "raw IPv6",
            LinkType::LINUX_SLL2 => "Linux cooked v2",
            LinkType(number) => return write!(f, "link type {number}"),
        };
        f.write_str(name)
    }
}

/// Why a frame contains no readable IP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum NotIp {
    /// Another protocol, by its EtherType.
    EtherType(u16),
    /// A family number that is neither IPv4's nor IPv6's.
    Family(u32),
    /// The frame is shorter than its link-layer header.
    Short,
    /// An unknown link type.
    Link(u32),
}

impl fmt::Display for NotIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotIp::EtherType(0x0806) => f.write_str("ARP"),
            NotIp::EtherType(0x8915) => f.write_str("RoCEv1 (no UDP, not decoded)"),
            NotIp::EtherType(value) => write!(f, "EtherType 0x{value:04x}"),
            NotIp::Family(value) => write!(f, "address family {value}"),
            NotIp::Short => f.write_str("shorter than its link-layer header"),
            NotIp::Link(value) => write!(f, "unknown {}", LinkType(*value)),
        }
    }
}

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86DD;
/// 802.1Q, 802.1ad, and the EtherType used before 802.1ad was standardized.
const ETHERTYPES_VLAN: [u16; 3] = [0x8100, 0x88A8, 0x9100];
/// Maximum number of VLAN tags to skip.
const MAX_VLAN_TAGS: usize = 4;

const AF_INET: u32 = 2;
/// The number of IPv6's family on Linux, FreeBSD, NetBSD and OpenBSD, and macOS.
const AF_INET6: [u32; 4] = [10, 28, 24, 30];

/// The IP packet in a frame, including any trailing bytes.
///
/// # Errors
///
/// [`NotIp`] with the frame's contents.
pub(crate) fn ip_packet(link: LinkType, frame: &[u8]) -> Result<&[u8], NotIp> {
    match link {
        LinkType::ETHERNET => {
            let (_addresses, rest) = frame.split_first_chunk::<12>().ok_or(NotIp::Short)?;
            by_ethertype(rest)
        }
        LinkType::RAW
        | LinkType::RAW_BSD
        | LinkType::RAW_OPENBSD
        | LinkType::IPV4
        | LinkType::IPV6 => Ok(frame),
        LinkType::NULL => {
            let (family, ip) = frame.split_first_chunk().ok_or(NotIp::Short)?;
            // The writer's byte order is unknown. Families are small numbers, so only one order makes sense.
            by_family(
                u32::from_le_bytes(*family).min(u32::from_be_bytes(*family)),
                ip,
            )
        }
        LinkType::LOOP => {
            let (family, ip) = frame.split_first_chunk().ok_or(NotIp::Short)?;
            by_family(u32::from_be_bytes(*family), ip)
        }
        LinkType::LINUX_SLL => {
            // Packet type 2, hardware type 2, address length 2, address 8; then the protocol.
            let (_head, rest) = frame.split_first_chunk::<14>().ok_or(NotIp::Short)?;
            by_ethertype(rest)
        }
        LinkType::LINUX_SLL2 => {
            let (head, ip) = frame.split_first_chunk::<20>().ok_or(NotIp::Short)?;
            let [protocol_0, protocol_1, ..] = *head;
            match u16::from_be_bytes([protocol_0, protocol_1]) {
                ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => Ok(ip),
                other if ETHERTYPES_VLAN.contains(&other) => {
                    let (_tag, rest) = ip.split_first_chunk::<2>().ok_or(NotIp::Short)?;
                    by_ethertype(rest)
                }
                other => Err(NotIp::EtherType(other)),
            }
        }
        LinkType(other) => Err(NotIp::Link(other)),
    }
}

/// Reads the EtherType at the front of `bytes`, skipping VLAN tags.
fn by_ethertype(mut bytes: &[u8]) -> Result<&[u8], NotIp> {
    for _ in 0..=MAX_VLAN_TAGS {
        let (ethertype, rest) = bytes.split_first_chunk().ok_or(NotIp::Short)?;
        match u16::from_be_bytes(*ethertype) {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => return Ok(rest),
            other if ETHERTYPES_VLAN.contains(&other) => {
                let (_tag, rest) = rest.split_first_chunk::<2>().ok_or(NotIp::Short)?;
                bytes = rest;
            }
            other => return Err(NotIp::EtherType(other)),
        }
    }
    Err(NotIp::EtherType(ETHERTYPES_VLAN[0]))
}

fn by_family(family: u32, ip: &[u8]) -> Result<&[u8], NotIp> {
    if family == AF_INET || AF_INET6.contains(&family) {
        Ok(ip)
    } else {
        Err(NotIp::Family(family))
    }
}
