//! Inputs and outputs of the engine, besides the types of the crate `portolan-provider`.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

pub use portolan_provider::cm::MembershipNumber;
use portolan_provider::cm::{IdNumber, JoinKind};
use portolan_provider::verbs::Mtu;
use portolan_wire::Gid;
use portolan_wire::mad::MAD_LEN;

/// The device and GID that serve a local address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundDevice {
    /// Index of the device among the provider's devices.
    pub device_index: u32,
    /// Port of the device, from 1.
    pub port_num: u8,
    /// Index of the GID in the port's table.
    pub sgid_index: u8,
    /// The GID of the local address.
    pub sgid: Gid,
    /// GUID of the device, host order; unique among devices. Peers identify connections by it and a communication id or
    /// a queue pair number.
    pub node_guid: u64,
    /// Largest path MTU of the port.
    pub mtu: Mtu,
    /// Maximum time that the device takes to acknowledge (`local_ca_ack_delay`), exponent of 4.096 µs.
    pub ack_delay_exp: u8,
}

/// The answer to [`Query::Address`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedAddress {
    /// The local address to reach it from, with its port.
    pub source: SocketAddr,
    /// The destination, with the scope of a link-local address.
    pub destination: SocketAddr,
    /// The device that serves `source`.
    pub device: BoundDevice,
    /// The GID of the destination.
    pub dgid: Gid,
    /// Hop limit (TTL) for packets to it.
    pub hop_limit: u8,
    /// The next hop to it, if its link has hardware addresses. From route resolution on, report its changes by
    /// [`Cm::neighbour_changed`](crate::Cm::neighbour_changed).
    pub neighbour: Option<Neighbour>,
}

/// A neighbour on a link and its hardware address, as in the neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Linux interface index of the link.
    pub interface_index: u32,
    /// Its IP address.
    pub address: IpAddr,
    /// Its Ethernet address.
    pub link_address: [u8; 6],
}

/// The path of a management datagram between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadPath {
    /// The address on this host.
    pub local: IpAddr,
    /// The address of the peer.
    pub remote: IpAddr,
    /// Interface index if the addresses are IPv6 link-local, otherwise 0.
    pub scope_id: u32,
    /// The device that serves `local`.
    pub device: BoundDevice,
    /// On an InfiniBand port: the LIDs, which route messages and identify the peer. `remote` may then be unspecified,
    /// and `local` is the port's GID. `None` on RoCE.
    pub lids: Option<Lids>,
}

/// The LIDs of a path on an InfiniBand subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lids {
    /// LID of the local port.
    pub local: u16,
    /// LID of the peer's port.
    pub remote: u16,
}

/// Identifies one port of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Host {
    Ip(IpAddr),
    Lid(u16),
}

impl MadPath {
    /// The peer.
    pub(crate) fn host(&self) -> Host {
        match self.lids {
            Some(lids) => Host::Lid(lids.remote),
            None => Host::Ip(self.remote),
        }
    }

    /// Whether both ends are those of `other`.
    pub(crate) fn has_ends_of(&self, other: &MadPath) -> bool {
        let ends = |path: &MadPath| (path.host(), path.local, path.lids);
        ends(self) == ends(other)
    }
}

/// A management datagram to send from queue pair 1 to queue pair 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The path of the datagram.
    pub path: MadPath,
    /// Traffic class (IPv4: TOS).
    pub traffic_class: u8,
    /// Flow label (20 bits).
    pub flow_label: u32,
    /// Hop limit (TTL).
    pub hop_limit: u8,
    /// Service level, on an InfiniBand port.
    pub sl: u8,
    /// The whole datagram.
    pub mad: [u8; MAD_LEN],
}

/// A query that the machine's address and neighbour tables must answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// How is `destination` reached? Answer with
    /// [`Cm::address_resolved`](crate::Cm::address_resolved).
    Address {
        /// The id that needs the answer.
        id: IdNumber,
        /// Number of the query, to return with the answer, because an id may resolve again.
        query: QueryNumber,
        /// The source address, if the user or an earlier bind set one; may be a wildcard.
        source: Option<SocketAddr>,
        /// The destination.
        destination: SocketAddr,
        /// Deadline for the answer.
        deadline: Duration,
    },
}

/// A query about multicast groups, for the owner of the host's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupQuery {
    /// Join the group on the interface of `local`, unless the member only sends. Answer with
    /// [`Cm::group_joined`](crate::Cm::group_joined).
    Join(Membership),
    /// Leave it. No answer is expected.
    Leave(Membership),
}

/// An id's membership of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Its number.
    pub number: MembershipNumber,
    /// The id.
    pub id: IdNumber,
    /// The device that sends and receives.
    pub device: BoundDevice,
    /// The device's address.
    pub local: IpAddr,
    /// The group.
    pub group: IpAddr,
    /// The group as a GID.
    pub mgid: Gid,
    /// Whether it sends and receives, or only sends.
    pub kind: JoinKind,
}

/// Distinguishes the queries of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueryNumber(pub(crate) u32);

/// The current options of an id ([`IdOption`](portolan_provider::cm::IdOption)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdOptions {
    /// Type of service, if set.
    pub tos: Option<u8>,
    /// Whether the address may be bound again.
    pub reuse_addr: bool,
    /// Whether a wildcard listener serves only its own address family. The default is true for IPv4 and false for IPv6.
    pub af_only: Option<bool>,
    /// Local ACK timeout exponent, if set.
    pub ack_timeout_exp: Option<u8>,
}

impl IdOptions {
    /// Whether a wildcard address of `local`'s family serves only that family. Linux takes IPv6's default from
    /// `net.ipv6.bindv6only`, which is off unless an administrator sets it.
    pub fn serves_one_family(&self, local: &SocketAddr) -> bool {
        self.af_only.unwrap_or(local.is_ipv4())
    }
}
