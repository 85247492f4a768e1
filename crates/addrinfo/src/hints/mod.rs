//! Restrictions on the addresses that a caller wants: `hints` of rdma_getaddrinfo(3).

mod raw;

use bitflags::bitflags;
use portolan_provider::Address;
use portolan_provider::address::{AF_IB, AF_INET, AF_INET6};
pub use portolan_provider::verbs::QpType;
use portolan_wire::addr::PortSpace;

use crate::path::PathData;

pub use raw::RawHints;

bitflags! {
    /// `ai_flags`, with the bits of `rdma_cma.h`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u32 {
        /// Return addresses for listening.
        const PASSIVE = 0x01;
        /// The node is a numeric address; do not use name services.
        const NUMERICHOST = 0x02;
        /// Do not look up routes, and so no source addresses.
        const NOROUTE = 0x04;
        /// `ai_family` is valid; without this flag it is ignored.
        const FAMILY = 0x08;
        /// Look up the service at InfiniBand's subnet administrator. Excludes `DNS`.
        const SA = 0x10;
        /// Look up names as usual; same as neither `SA` nor `DNS`.
        const DNS = 0x20;
    }
}

portolan_provider::enum_table! {
    /// The address family of a result (`ai_family`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Family {
        /// `AF_INET`.
        Inet => "AF_INET",
        /// `AF_INET6`.
        Inet6 => "AF_INET6",
        /// `AF_IB`.
        Ib => "AF_IB",
    }
}

impl Family {
    /// Its number on Linux.
    pub const fn number(self) -> u16 {
        match self {
            Self::Inet => AF_INET,
            Self::Inet6 => AF_INET6,
            Self::Ib => AF_IB,
        }
    }

    /// The family with this number, if supported.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|family| family.number() == number)
    }

    /// The family of an address.
    pub const fn of(address: &Address) -> Self {
        match address {
            Address::Inet(addr) if addr.is_ipv4() => Self::Inet,
            Address::Inet(_) => Self::Inet6,
            Address::Ib(_) => Self::Ib,
        }
    }
}

/// Hints for a lookup (`struct rdma_addrinfo` as hints). Fields left out are unrestricted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Flags.
    pub flags: Flags,
    /// Address family; ignored without [`Flags::FAMILY`].
    pub family: Option<Family>,
    /// Queue pair type.
    pub qp_type: Option<QpType>,
    /// Port space.
    pub port_space: Option<PortSpace>,
    /// The local address. A wildcard address only fixes the port.
    pub src_addr: Option<Address>,
    /// The destination, if no node is given.
    pub dst_addr: Option<Address>,
    /// Paths that restrict those of the results: their nonzero fields must match. Without a node
    /// and a destination, the first path's GIDs are the addresses.
    pub route: Vec<PathData>,
    /// Data to send before the private data of a connection; copied to the results.
    pub connect: Vec<u8>,
}

impl Hints {
    /// Creates hints without restrictions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds flags.
    #[must_use]
    pub fn flags(mut self, flags: Flags) -> Self {
        self.flags |= flags;
        self
    }

    /// Requests addresses for listening ([`Flags::PASSIVE`]).
    #[must_use]
    pub fn passive(self) -> Self {
        self.flags(Flags::PASSIVE)
    }

    /// Accepts only numeric addresses ([`Flags::NUMERICHOST`]).
    #[must_use]
    pub fn numeric_host(self) -> Self {
        self.flags(Flags::NUMERICHOST)
    }

    /// Skips route lookups ([`Flags::NOROUTE`]).
    #[must_use]
    pub fn no_route(self) -> Self {
        self.flags(Flags::NOROUTE)
    }

    /// Requests addresses of this family; also sets [`Flags::FAMILY`].
    #[must_use]
    pub fn family(mut self, family: Family) -> Self {
        self.family = Some(family);
        self.flags(Flags::FAMILY)
    }

    /// Sets the queue pair type.
    #[must_use]
    pub fn qp_type(mut self, qp_type: QpType) -> Self {
        self.qp_type = Some(qp_type);
        self
    }

    /// Sets the port space.
    #[must_use]
    pub fn port_space(mut self, port_space: PortSpace) -> Self {
        self.port_space = Some(port_space);
        self
    }

    /// Sets the local address; for listening without a node, the address to listen at.
    #[must_use]
    pub fn src_addr(mut self, address: impl Into<Address>) -> Self {
        self.src_addr = Some(address.into());
        self
    }

    /// Sets the destination, used if no node is given.
    #[must_use]
    pub fn dst_addr(mut self, address: impl Into<Address>) -> Self {
        self.dst_addr = Some(address.into());
        self
    }

    /// Restricts the results to these paths.
    #[must_use]
    pub fn route(mut self, paths: impl Into<Vec<PathData>>) -> Self {
        self.route = paths.into();
        self
    }

    /// Sets the data to send before the private data of a connection.
    #[must_use]
    pub fn connect(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.connect = data.into();
        self
    }
}
