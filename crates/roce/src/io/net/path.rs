//! The path from a queue pair to its peer.

use std::net::{IpAddr, SocketAddr};

use portolan_wire::icrc::Flow;

pub(crate) use crate::engine::Path;
use crate::io::net::sockopt::IpVersion;

impl Path {
    /// The IP version, if both addresses have the same.
    pub(crate) fn version(&self) -> Option<IpVersion> {
        let version = IpVersion::of(self.remote.ip());
        (IpVersion::of(self.local) == version).then_some(version)
    }

    /// The addresses and ports that the ICRC of a packet from UDP port `source_port` covers.
    pub(crate) fn flow(&self, source_port: u16) -> Option<Flow> {
        Flow::between(SocketAddr::new(self.local, source_port), self.remote)
    }

    /// Whether a packet from `source` to `destination` belongs to this path.
    pub(crate) fn is_from_peer(&self, source: SocketAddr, destination: IpAddr) -> bool {
        source.ip() == self.remote.ip() && destination == self.local
    }
}
