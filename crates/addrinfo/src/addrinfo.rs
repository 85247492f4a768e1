//! The result of rdma_getaddrinfo(3).

use portolan_provider::Address;
use portolan_wire::addr::PortSpace;

use crate::explain::Explain;
use crate::hints::{Family, Flags, QpType};
use crate::path::PathData;

/// An address to connect to or to listen on, with its route and connection data (`struct rdma_addrinfo`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddrInfo {
    /// [`Flags::PASSIVE`] if it is for listening, [`Flags::SA`] if it comes from the subnet administrator.
    pub flags: Flags,
    /// Family of the addresses.
    pub family: Family,
    /// Queue pair type.
    pub qp_type: QpType,
    /// Port space.
    pub port_space: PortSpace,
    /// The local address; `None` (`ai_src_len` 0) if there is no suitable one.
    pub src_addr: Option<Address>,
    /// The destination with its port; `None` (`ai_dst_len` 0) for listening.
    pub dst_addr: Option<Address>,
    /// Canonical name of the source: the host's for listening, otherwise the address as text.
    pub src_canonname: Option<String>,
    /// Canonical name of the destination.
    pub dst_canonname: Option<String>,
    /// Paths, on transports that need them (InfiniBand); may be empty.
    pub route: Vec<PathData>,
    /// Data to send before the user's private data when connecting.
    pub connect: Vec<u8>,
    /// The decisions that led to this result.
    pub explain: Explain,
}
