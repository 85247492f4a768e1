//! What rdma_getaddrinfo(3) gives.

use portolan_provider::Address;
use portolan_wire::addr::PortSpace;

use crate::explain::Explain;
use crate::hints::{Family, Flags, QpType};
use crate::path::PathData;

/// An address to connect to or to listen at, with its route and connection data (`struct rdma_addrinfo`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddrInfo {
    /// [`Flags::PASSIVE`] if it is to listen at, [`Flags::SA`] if the subnet administrator gave it.
    pub flags: Flags,
    /// Family of the addresses.
    pub family: Family,
    /// Queue pair type.
    pub qp_type: QpType,
    /// Port space.
    pub port_space: PortSpace,
    /// The local address; `None` (`ai_src_len` 0) where none that is appropriate could be found.
    pub src_addr: Option<Address>,
    /// The destination with its port; `None` (`ai_dst_len` 0) for listening.
    pub dst_addr: Option<Address>,
    /// Canonical name of the source: the host's for listening, else the address as text.
    pub src_canonname: Option<String>,
    /// Canonical name of the destination.
    pub dst_canonname: Option<String>,
    /// Paths, where the transport needs them (InfiniBand) and there are some.
    pub route: Vec<PathData>,
    /// Data to go before the user's private data when connecting.
    pub connect: Vec<u8>,
    /// Why all this is so.
    pub explain: Explain,
}
