//! Global identifiers (GIDs), and their derivation from IP addresses in RoCEv2.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A 128-bit port or multicast group address (IBTA 4.1.1), in network byte order.
///
/// With RoCEv2 it *is* an IP address: an IPv6 address itself, or an IPv4 address in its mapped form
/// `::ffff:a.b.c.d` (IBTA annex A17).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// All zero: no address.
    pub const UNSPECIFIED: Gid = Gid([0; 16]);

    /// The GID of an IPv4 address: `::ffff:a.b.c.d`.
    ///
    /// For a group address this is also its RoCEv2 MGID.
    pub const fn from_ipv4(addr: Ipv4Addr) -> Gid {
        Gid(addr.to_ipv6_mapped().octets())
    }

    /// The GID of an IPv6 address: the address itself.
    ///
    /// For a group address this is also its RoCEv2 MGID.
    pub const fn from_ipv6(addr: Ipv6Addr) -> Gid {
        Gid(addr.octets())
    }

    /// The GID of an IP address. An IPv4-mapped IPv6 address gives the GID of the IPv4 address.
    pub const fn from_ip(addr: IpAddr) -> Gid {
        match addr {
            IpAddr::V4(v4) => Gid::from_ipv4(v4),
            IpAddr::V6(v6) => Gid::from_ipv6(v6),
        }
    }

    /// The IPv4 address inside `::ffff:a.b.c.d`.
    pub const fn to_ipv4(self) -> Option<Ipv4Addr> {
        self.to_ipv6().to_ipv4_mapped()
    }

    /// The GID as an IPv6 address, mapped or not.
    pub const fn to_ipv6(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(u128::from_be_bytes(self.0))
    }

    /// The IP address that the GID represents: IPv4 if it is mapped, otherwise IPv6.
    pub const fn to_ip(self) -> IpAddr {
        self.to_ipv6().to_canonical()
    }

    /// True for a multicast group: `ff00::/8`, or a mapped IPv4 address in `224.0.0.0/4`.
    pub const fn is_multicast(self) -> bool {
        self.to_ip().is_multicast()
    }

    /// The subnet prefix: the first eight bytes (IBTA 4.1.1).
    pub const fn subnet_prefix(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// True for an IPv6 link-local address, `fe80::/10`.
    pub const fn is_link_local(self) -> bool {
        self.to_ipv6().is_unicast_link_local()
    }

    /// True if an answer about `found` is one about this GID: both are the same, or this one is
    /// link-local and `found` differs only in the subnet prefix.
    ///
    /// A port has the link-local prefix beside that of its subnet, and administrators answer with the subnet's
    /// (IBTA 4.1.1).
    pub const fn is_answered_by(self, found: Gid) -> bool {
        let (own, found) = (u128::from_be_bytes(self.0), u128::from_be_bytes(found.0));
        own == found || self.is_link_local() && own as u64 == found as u64
    }

    /// True if all bytes are zero.
    pub const fn is_unspecified(self) -> bool {
        self.to_ipv6().is_unspecified()
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(addr: Ipv4Addr) -> Gid {
        Gid::from_ipv4(addr)
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(addr: Ipv6Addr) -> Gid {
        Gid::from_ipv6(addr)
    }
}

impl From<IpAddr> for Gid {
    fn from(addr: IpAddr) -> Gid {
        Gid::from_ip(addr)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ipv6().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_becomes_its_mapped_form_and_back() {
        let gid = Gid::from(Ipv4Addr::new(192, 168, 7, 1));
        assert_eq!(gid.0[10..], [0xff, 0xff, 192, 168, 7, 1]);
        assert_eq!(gid.to_string(), "::ffff:192.168.7.1");
        assert_eq!(gid.to_ip(), IpAddr::from([192, 168, 7, 1]));
    }

    #[test]
    fn groups_of_both_families_are_multicast_and_hosts_are_not() {
        let group = Gid::from(IpAddr::from([239, 1, 2, 3]));
        assert_eq!(group.to_string(), "::ffff:239.1.2.3");
        assert!(group.is_multicast());
        assert!(Gid::from_ipv6("ff0e::1".parse().unwrap()).is_multicast());
        assert!(!Gid::from_ipv6("fe80::1".parse().unwrap()).is_multicast());
        assert!(!Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 1)).is_multicast());
    }

    #[test]
    fn a_link_local_gid_is_answered_by_that_with_the_subnets_prefix_and_no_other_gid_is() {
        let gid = |text: &str| Gid::from_ipv6(text.parse().unwrap());
        assert!(gid("fe80::1").is_answered_by(gid("fe80::1")));
        assert!(gid("fe80::1").is_answered_by(gid("fec0:0:0:1::1")));
        assert!(!gid("fe80::1").is_answered_by(gid("fec0:0:0:1::2")));
        assert!(!gid("fec0:0:0:1::1").is_answered_by(gid("fe80::1")));
    }

    #[test]
    fn link_local_is_fe80_slash_10_only() {
        assert!(Gid::from_ipv6("febf::1".parse().unwrap()).is_link_local());
        assert!(!Gid::from_ipv6("fec0::1".parse().unwrap()).is_link_local());
        assert!(!Gid::from_ipv4(Ipv4Addr::new(169, 254, 0, 1)).is_link_local());
    }
}
