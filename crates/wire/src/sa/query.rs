//! Queries for records: component values, and the mask of the specified ones.

use core::fmt;

use super::{JoinState, McMemberRecord, NodeRecord, NodeType, PathRecord, Selected, ServiceRecord};
use crate::{Gid, PKey, QKey, ServiceId};

/// An attribute of subnet administration (IBTA 15.2.5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttributeId(pub u16);

impl AttributeId {
    /// [`NodeRecord`].
    pub const NODE_RECORD: AttributeId = AttributeId(0x0011);
    /// [`ServiceRecord`].
    pub const SERVICE_RECORD: AttributeId = AttributeId(0x0031);
    /// [`PathRecord`].
    pub const PATH_RECORD: AttributeId = AttributeId(0x0035);
    /// [`McMemberRecord`].
    pub const MC_MEMBER_RECORD: AttributeId = AttributeId(0x0038);
}

impl fmt::Display for AttributeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::NODE_RECORD => "NodeRecord",
            Self::SERVICE_RECORD => "ServiceRecord",
            Self::PATH_RECORD => "PathRecord",
            Self::MC_MEMBER_RECORD => "MCMemberRecord",
            AttributeId(other) => return write!(f, "attribute {other:#06x}"),
        })
    }
}

impl fmt::Debug for AttributeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttributeId({self})")
    }
}

/// The components that a request specifies: bit n is the record's component n, numbered as in
/// IBTA's tables.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComponentMask(pub u64);

impl fmt::Debug for ComponentMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ComponentMask({:#x})", self.0)
    }
}

/// A record of subnet administration.
pub trait Record: Sized + Copy + Default {
    /// Its attribute id.
    const ATTRIBUTE: AttributeId;
    /// Length of the record, in bytes.
    const LEN: usize;

    /// Reads the record at the front of `input`.
    ///
    /// # Errors
    /// [`Error::Truncated`](crate::Error::Truncated).
    fn parse(input: &[u8]) -> crate::Result<Self>;

    /// Writes the record at the front of `out`; returns [`LEN`](Self::LEN).
    ///
    /// # Errors
    /// [`Error::NoRoom`](crate::Error::NoRoom), [`Error::OutOfRange`](crate::Error::OutOfRange).
    fn emit(&self, out: &mut [u8]) -> crate::Result<usize>;
}

macro_rules! record {
    ($type:ident, $attribute:ident) => {
        impl Record for $type {
            const ATTRIBUTE: AttributeId = AttributeId::$attribute;
            const LEN: usize = $type::LEN;

            fn parse(input: &[u8]) -> crate::Result<Self> {
                $type::parse(input)
            }

            fn emit(&self, out: &mut [u8]) -> crate::Result<usize> {
                $type::emit(self, out)
            }
        }
    };
}

record!(PathRecord, PATH_RECORD);
record!(ServiceRecord, SERVICE_RECORD);
record!(McMemberRecord, MC_MEMBER_RECORD);
record!(NodeRecord, NODE_RECORD);

/// A query for a record: each method sets one component's value and its mask bit.
///
/// ```
/// use portolan_wire::Gid;
/// use portolan_wire::sa::{PathRecord, Query};
///
/// let query = Query::<PathRecord>::new().dgid(Gid([1; 16])).reversible(true).numb_path(1);
/// assert_eq!(query.mask().0, 1 << 2 | 1 << 11 | 1 << 12);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Query<R> {
    record: R,
    mask: ComponentMask,
}

impl<R: Record> Query<R> {
    /// Creates a query that matches any record.
    pub fn new() -> Self {
        Self::default()
    }

    /// The component values; only those in the mask are significant.
    pub const fn record(&self) -> &R {
        &self.record
    }

    /// The mask of specified components.
    pub const fn mask(&self) -> ComponentMask {
        self.mask
    }
}

/// Generates one setter per component from its name, type, field and bits.
macro_rules! components {
    ($record:ident { $($(#[$doc:meta])* $name:ident: $type:ty = $($bit:literal)|+;)+ }) => {
        impl Query<$record> {
            $($(#[$doc])*
            #[must_use]
            pub fn $name(mut self, $name: $type) -> Self {
                self.record.$name = $name;
                self.mask.0 |= $(1 << $bit)|+;
                self
            })+
        }
    };
}

components!(PathRecord {
    /// Service id (both halves).
    service_id: u64 = 0 | 1;
    /// Destination GID.
    dgid: Gid = 2;
    /// Source GID.
    sgid: Gid = 3;
    /// Destination LID.
    dlid: u16 = 4;
    /// Source LID.
    slid: u16 = 5;
    /// Whether the path is for raw packets.
    raw_traffic: bool = 6;
    /// Flow label, 20 bits.
    flow_label: u32 = 8;
    /// Hop limit.
    hop_limit: u8 = 9;
    /// Traffic class.
    traffic_class: u8 = 10;
    /// Whether the path is reversible.
    reversible: bool = 11;
    /// Maximum number of paths for each pair of ports, seven bits.
    numb_path: u8 = 12;
    /// Partition.
    pkey: PKey = 13;
    /// QoS class, 12 bits.
    qos_class: u16 = 14;
    /// Service level, four bits.
    sl: u8 = 15;
    /// Path MTU.
    mtu: Selected = 16 | 17;
    /// Static rate.
    rate: Selected = 18 | 19;
    /// Packet lifetime.
    packet_lifetime: Selected = 20 | 21;
});

components!(ServiceRecord {
    /// Service id.
    service_id: ServiceId = 0;
    /// GID of the port that offers the service.
    gid: Gid = 1;
    /// Partition.
    pkey: PKey = 2;
    /// Length of the lease, in seconds.
    lease_s: u32 = 4;
    /// Service key.
    key: [u8; 16] = 5;
    /// Service name ([`ServiceRecord::name_field`]).
    name: [u8; super::NAME_LEN] = 6;
    /// The service's data bytes.
    data8: [u8; 16] = 7 | 8 | 9 | 10 | 11 | 12 | 13 | 14 | 15 | 16 | 17 | 18 | 19 | 20 | 21 | 22;
    /// The service's 16-bit data words.
    data16: [u16; 8] = 23 | 24 | 25 | 26 | 27 | 28 | 29 | 30;
    /// The service's 32-bit data words.
    data32: [u32; 4] = 31 | 32 | 33 | 34;
    /// The service's 64-bit data words.
    data64: [u64; 2] = 35 | 36;
});

components!(McMemberRecord {
    /// GID of the group.
    mgid: Gid = 0;
    /// GID of the member's port.
    port_gid: Gid = 1;
    /// Queue key.
    qkey: QKey = 2;
    /// LID of the group.
    mlid: u16 = 3;
    /// Path MTU.
    mtu: Selected = 4 | 5;
    /// Traffic class.
    traffic_class: u8 = 6;
    /// Partition.
    pkey: PKey = 7;
    /// Static rate.
    rate: Selected = 8 | 9;
    /// Packet lifetime.
    packet_lifetime: Selected = 10 | 11;
    /// Service level, four bits.
    sl: u8 = 12;
    /// Flow label, 20 bits.
    flow_label: u32 = 13;
    /// Hop limit.
    hop_limit: u8 = 14;
    /// Scope, four bits.
    scope: u8 = 15;
    /// Type of membership.
    join_state: JoinState = 16;
    /// Whether another port joins on behalf of this one.
    proxy_join: bool = 17;
});

components!(NodeRecord {
    /// LID.
    lid: u16 = 0;
    /// Node type.
    node_type: NodeType = 4;
    /// GUID of the system.
    system_image_guid: u64 = 6;
    /// Node GUID.
    node_guid: u64 = 7;
    /// Port GUID.
    port_guid: u64 = 8;
    /// Port number.
    local_port_num: u8 = 12;
    /// Description.
    description: [u8; 64] = 14;
});
