//! What a caller may say about the addresses it wants: `hints` of rdma_getaddrinfo(3).

mod raw;

use std::fmt;

use bitflags::bitflags;
use portolan_provider::address::{AF_IB, AF_INET, AF_INET6};
use portolan_provider::{Address, verbs};
use portolan_wire::addr::PortSpace;

use crate::path::PathData;

pub use raw::RawHints;

bitflags! {
    /// `ai_flags`, with the bits of `rdma_cma.h`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u32 {
        /// The results are for listening.
        const PASSIVE = 0x01;
        /// The node is a numeric address; no name service is asked for it.
        const NUMERICHOST = 0x02;
        /// No routes, and so no sources, are looked up.
        const NOROUTE = 0x04;
        /// `ai_family` says how to read the node. Without this flag it says nothing.
        const FAMILY = 0x08;
        /// The service is looked up at InfiniBand's subnet administrator. Excludes `DNS`.
        const SA = 0x10;
        /// Names are looked up as usual; the same as neither `SA` nor `DNS`.
        const DNS = 0x20;
    }
}

/// The address family of a result (`ai_family`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// `AF_INET`.
    Inet,
    /// `AF_INET6`.
    Inet6,
    /// `AF_IB`.
    Ib,
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

    /// The family of this number, if it is one of the three.
    pub fn from_number(number: u16) -> Option<Self> {
        [Self::Inet, Self::Inet6, Self::Ib]
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

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inet => "AF_INET",
            Self::Inet6 => "AF_INET6",
            Self::Ib => "AF_IB",
        })
    }
}

/// The queue pair type of a result (`ai_qp_type`), with the numbers of `enum ibv_qp_type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpType {
    /// Reliable connected.
    #[default]
    Rc = 2,
    /// Unreliable connected.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Extended reliable connected, the sending side.
    XrcSend = 9,
    /// Extended reliable connected, the receiving side.
    XrcRecv = 10,
}

impl QpType {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Rc, Self::Uc, Self::Ud, Self::XrcSend, Self::XrcRecv];

    /// Its number in `enum ibv_qp_type`.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The type of this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|each| each.number() == number)
    }

    /// The type as the verbs have it; they have no XRC.
    pub const fn verbs(self) -> Option<verbs::QpType> {
        match self {
            Self::Rc => Some(verbs::QpType::Rc),
            Self::Uc => Some(verbs::QpType::Uc),
            Self::Ud => Some(verbs::QpType::Ud),
            Self::XrcSend | Self::XrcRecv => None,
        }
    }
}

impl From<verbs::QpType> for QpType {
    fn from(qp_type: verbs::QpType) -> Self {
        match qp_type {
            verbs::QpType::Rc => Self::Rc,
            verbs::QpType::Uc => Self::Uc,
            verbs::QpType::Ud => Self::Ud,
        }
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::XrcSend => "XRC_SEND",
            Self::XrcRecv => "XRC_RECV",
        })
    }
}

/// What a caller says about the addresses it wants (`struct rdma_addrinfo` as hints). What is left
/// out is free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// What to do and what not to do.
    pub flags: Flags,
    /// How to read the node; counts with [`Flags::FAMILY`] only.
    pub family: Option<Family>,
    /// Queue pair type.
    pub qp_type: Option<QpType>,
    /// Port space.
    pub port_space: Option<PortSpace>,
    /// The local address. A wildcard pins its port alone.
    pub src_addr: Option<Address>,
    /// The destination, where no node is given.
    pub dst_addr: Option<Address>,
    /// Paths that restrict those of the results: their fields that are not zero must be met. Without
    /// a node and a destination the first one's GIDs are the addresses.
    pub route: Vec<PathData>,
    /// Data to go before the private data when connecting; copied to the results.
    pub connect: Vec<u8>,
}

impl Hints {
    /// Says nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// With these flags too.
    #[must_use]
    pub fn flags(mut self, flags: Flags) -> Self {
        self.flags |= flags;
        self
    }

    /// For listening ([`Flags::PASSIVE`]).
    #[must_use]
    pub fn passive(self) -> Self {
        self.flags(Flags::PASSIVE)
    }

    /// Numeric addresses only ([`Flags::NUMERICHOST`]).
    #[must_use]
    pub fn numeric_host(self) -> Self {
        self.flags(Flags::NUMERICHOST)
    }

    /// Without routes ([`Flags::NOROUTE`]).
    #[must_use]
    pub fn no_route(self) -> Self {
        self.flags(Flags::NOROUTE)
    }

    /// Addresses of this family: sets [`Flags::FAMILY`] as well.
    #[must_use]
    pub fn family(mut self, family: Family) -> Self {
        self.family = Some(family);
        self.flags(Flags::FAMILY)
    }

    /// For queue pairs of this type.
    #[must_use]
    pub fn qp_type(mut self, qp_type: QpType) -> Self {
        self.qp_type = Some(qp_type);
        self
    }

    /// In this port space.
    #[must_use]
    pub fn port_space(mut self, port_space: PortSpace) -> Self {
        self.port_space = Some(port_space);
        self
    }

    /// From this local address; for listening without a node, at it.
    #[must_use]
    pub fn src_addr(mut self, address: impl Into<Address>) -> Self {
        self.src_addr = Some(address.into());
        self
    }

    /// To this address, where no node is given.
    #[must_use]
    pub fn dst_addr(mut self, address: impl Into<Address>) -> Self {
        self.dst_addr = Some(address.into());
        self
    }

    /// On one of these paths.
    #[must_use]
    pub fn route(mut self, paths: impl Into<Vec<PathData>>) -> Self {
        self.route = paths.into();
        self
    }

    /// With this data before the private data of a connection.
    #[must_use]
    pub fn connect(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.connect = data.into();
        self
    }
}
