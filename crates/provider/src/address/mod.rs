//! Addresses of RDMA endpoints: internet socket addresses, and InfiniBand's `AF_IB`.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use portolan_wire::addr::Gid;

mod ib;
mod sockaddr;

pub use ib::{IbText, IbTextError, SockaddrIb};
pub use sockaddr::{AF_IB, AF_INET, AF_INET6, SOCKADDR_LEN_MAX, SockaddrError};

/// The address of an endpoint, in any family that the rdma_cm accepts.
///
/// An IPv6 address keeps its scope id: `fe80::1%eth0` stays on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `AF_INET` or `AF_INET6`.
    Inet(SocketAddr),
    /// `AF_IB`.
    Ib(SockaddrIb),
}

impl Address {
    /// The port in host order; for `AF_IB` the low 16 bits of the service id.
    pub fn port(&self) -> u16 {
        match self {
            Self::Inet(addr) => addr.port(),
            Self::Ib(ib) => (ib.sid & 0xffff) as u16,
        }
    }

    /// The same address with another port.
    pub fn with_port(mut self, port: u16) -> Self {
        match &mut self {
            Self::Inet(addr) => addr.set_port(port),
            Self::Ib(ib) => ib.sid = (ib.sid & !0xffff) | u64::from(port),
        }
        self
    }

    /// Whether this is the family's wildcard address (`0.0.0.0`, `::`, the zero GID).
    pub fn is_unspecified(&self) -> bool {
        match self {
            Self::Inet(addr) => addr.ip().is_unspecified(),
            Self::Ib(ib) => ib.gid == Gid::default(),
        }
    }

    /// Whether the address is on the loopback interface.
    pub fn is_loopback(&self) -> bool {
        matches!(self, Self::Inet(addr) if addr.ip().is_loopback())
    }

    /// The internet address, if the family is IPv4 or IPv6.
    pub fn inet(&self) -> Option<SocketAddr> {
        match self {
            Self::Inet(addr) => Some(*addr),
            Self::Ib(_) => None,
        }
    }

    /// The GID under which a RoCEv2 port has this address: IPv4 as `::ffff:a.b.c.d`.
    pub fn gid(&self) -> Gid {
        match self {
            Self::Inet(addr) => ip_to_gid(addr.ip()),
            Self::Ib(ib) => ib.gid,
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        Self::Inet(addr)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(addr) => addr.fmt(f),
            Self::Ib(ib) => ib.fmt(f),
        }
    }
}

/// The RoCEv2 GID of an IP address (IBTA annex A17): IPv4 is IPv4-mapped, IPv6 is itself.
pub fn ip_to_gid(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(v4) => Gid::from(v4),
        IpAddr::V6(v6) => Gid::from(v6),
    }
}

/// The IP address of a RoCEv2 GID: the inverse of [`ip_to_gid`].
pub fn gid_to_ip(gid: Gid) -> IpAddr {
    let v6 = Ipv6Addr::from(gid.0);
    match v6.to_ipv4_mapped() {
        Some(v4) => IpAddr::V4(v4),
        None => IpAddr::V6(v6),
    }
}

/// Whether an id bound to this address has no device yet. True for the wildcard and loopback addresses (Linux's
/// `cma_any_addr`).
pub fn leaves_device_open(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_unspecified() || ip.is_loopback()
}

/// The wildcard address of the same family as `addr`, with `addr`'s port.
pub fn unspecified_like(addr: SocketAddr) -> SocketAddr {
    let ip = match addr {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(ip, addr.port())
}
