//! The headers of datagram sockets.
//!
//! A datagram socket has a UDP socket and, for each address it sends from, a UD queue pair. Until it knows a peer's
//! queue pair, it sends its datagrams over UDP, each after an [`Announcement`] of its own queue pair. The peer answers
//! with an announcement without data. From then on, datagrams go between the queue pairs, each after a [`source
//! header`](source_header).
//!
//! Source: rdma-core's `librdmacm/docs/rsocket`.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Marks announcements (`DS_UDP_TAG`).
const TAG: [u8; 4] = [0x55; 4];
/// Numbers of the IP versions.
const IPV4: u8 = 4;
const IPV6: u8 = 6;
const DATA: u8 = 0;
const CONTROL: u8 = 7;

/// The Q_Key of all queue pairs (`RDMA_UDP_QKEY`).
pub const QKEY: u32 = 0x0123_4567;

/// The header of a UDP datagram (`struct ds_udp_header`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Whether data follows. The receiver then answers.
    pub has_data: bool,
    /// The sender's queue pair, 24 bits.
    pub qpn: u32,
    /// An address. librdmacm writes the sender's own, and receivers ignore it.
    pub addr: IpAddr,
}

/// A header's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    bytes: [u8; Header::LEN_MAX],
    length: usize,
}

impl Header {
    /// Bytes of the longest header.
    pub const LEN_MAX: usize = 28;

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Announcement {
    const LEN_V4: usize = 16;
    const LEN_V6: usize = 28;

    /// The header's bytes.
    pub fn encode(&self) -> Header {
        let mut bytes = [0; Header::LEN_MAX];
        bytes[..4].copy_from_slice(&TAG);
        bytes[5] = if self.has_data { DATA } else { CONTROL };
        bytes[8..12].copy_from_slice(&(self.qpn & 0xFF_FFFF).to_be_bytes());
        let length = match self.addr {
            IpAddr::V4(addr) => {
                bytes[4] = IPV4;
                bytes[12..16].copy_from_slice(&addr.octets());
                Self::LEN_V4
            }
            IpAddr::V6(addr) => {
                bytes[4] = IPV6;
                bytes[12..28].copy_from_slice(&addr.octets());
                Self::LEN_V6
            }
        };
        bytes[6] = length as u8;
        Header { bytes, length }
    }

    /// Parses the announcement at the start of a UDP datagram. Returns it and the data after it. `None` if it is
    /// invalid, or of another address family than the UDP datagram.
    pub fn decode(datagram: &[u8], is_ipv6: bool) -> Option<(Self, &[u8])> {
        let (version, length) = match is_ipv6 {
            true => (IPV6, Self::LEN_V6),
            false => (IPV4, Self::LEN_V4),
        };
        let (header, data) = datagram.split_at_checked(length)?;
        let is_one = header[..4] == TAG && header[4] == version && usize::from(header[6]) == length;
        let has_data = match header[5] {
            DATA => true,
            CONTROL => false,
            _ => return None,
        };
        let number = header[8..]
            .first_chunk()
            .map(|bytes| u32::from_be_bytes(*bytes));
        let announcement = Self {
            has_data,
            qpn: number? & 0xFF_FFFF,
            addr: match is_ipv6 {
                true => IpAddr::V6(Ipv6Addr::from(*header[12..].first_chunk::<16>()?)),
                false => IpAddr::V4(Ipv4Addr::from(*header[12..].first_chunk::<4>()?)),
            },
        };
        is_one.then_some((announcement, data))
    }
}

const SOURCE_V4: usize = 8;
const SOURCE_V6: usize = 24;

/// The header of data between queue pairs (`struct ds_header`). Contains the sender's address.
pub fn source_header(source: SocketAddr) -> Header {
    let mut bytes = [0; Header::LEN_MAX];
    bytes[2..4].copy_from_slice(&source.port().to_be_bytes());
    let length = match source {
        SocketAddr::V4(source) => {
            bytes[0] = IPV4;
            bytes[4..8].copy_from_slice(&source.ip().octets());
            SOURCE_V4
        }
        SocketAddr::V6(source) => {
            bytes[0] = IPV6;
            bytes[4..8].copy_from_slice(&source.flowinfo().to_ne_bytes());
            bytes[8..24].copy_from_slice(&source.ip().octets());
            SOURCE_V6
        }
    };
    bytes[1] = length as u8;
    Header { bytes, length }
}

/// Splits a datagram into its sender's address and the data. `None` if the header is invalid.
pub fn split_source(datagram: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (version, length) = (*datagram.first()?, usize::from(*datagram.get(1)?));
    let (header, data) = datagram.split_at_checked(length)?;
    let port = |header: &[u8]| u16::from_be_bytes([header[2], header[3]]);
    match (version, length) {
        (IPV4, SOURCE_V4) => {
            let addr = Ipv4Addr::from(*header[4..].first_chunk::<4>()?);
            Some((SocketAddr::new(addr.into(), port(header)), data))
        }
        (IPV6, SOURCE_V6) => {
            let flow = u32::from_ne_bytes(*header[4..].first_chunk::<4>()?);
            let addr = Ipv6Addr::from(*header[8..].first_chunk::<16>()?);
            let source = SocketAddrV6::new(addr, port(header), flow, 0);
            Some((source.into(), data))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_laid_out_as_struct_ds_udp_header() {
        let announcement = Announcement {
            has_data: true,
            qpn: 0x0A_0B0C,
            addr: "10.1.2.3".parse().unwrap(),
        };
        let header = announcement.encode();
        let expected = [
            0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0x0A, 0x0B, 0x0C, 10, 1, 2, 3,
        ];
        assert_eq!(header.bytes(), expected);
        let mut datagram = [0; 20];
        datagram[..16].copy_from_slice(header.bytes());
        let found = Announcement::decode(&datagram, false);
        assert_eq!(found, Some((announcement, &[0; 4][..])));
    }

    #[test]
    fn an_answer_of_ipv6_is_read_back() {
        let announcement = Announcement {
            has_data: false,
            qpn: 7,
            addr: "fe80::1".parse().unwrap(),
        };
        let header = announcement.encode();
        assert_eq!((header.bytes().len(), header.bytes()[5]), (28, 7));
        let found = Announcement::decode(header.bytes(), true);
        assert_eq!(found, Some((announcement, &[][..])));
    }

    #[test]
    fn malformed_announcements_and_those_of_another_family_are_refused() {
        let addr = "10.1.2.3".parse().unwrap();
        let header = Announcement {
            has_data: true,
            qpn: 1,
            addr,
        }
        .encode();
        let whole = header.bytes();
        for (at, byte) in [(0, 0x54), (4, 6), (5, 4), (6, 28)] {
            let mut changed = [0; 16];
            changed.copy_from_slice(whole);
            changed[at] = byte;
            assert_eq!(Announcement::decode(&changed, false), None, "byte {at}");
        }
        assert_eq!(Announcement::decode(&whole[..15], false), None);
        assert_eq!(Announcement::decode(whole, true), None);
    }

    #[test]
    fn a_source_is_laid_out_as_struct_ds_header() {
        let source: SocketAddr = "10.1.2.3:258".parse().unwrap();
        assert_eq!(source_header(source).bytes(), [4, 8, 1, 2, 10, 1, 2, 3]);
        let mut datagram = [9; 10];
        datagram[..8].copy_from_slice(source_header(source).bytes());
        assert_eq!(split_source(&datagram), Some((source, &[9, 9][..])));
        let six: SocketAddr = "[fd00::7]:80".parse().unwrap();
        let header = source_header(six);
        assert_eq!(header.bytes().len(), 24);
        assert_eq!(split_source(header.bytes()), Some((six, &[][..])));
        for short in 0..8 {
            assert_eq!(split_source(&datagram[..short]), None);
        }
        datagram[1] = 24;
        assert_eq!(split_source(&datagram), None);
    }
}
