//! What is asked of a record: values, and the mask that says which of them are meant.

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

/// Which components of a record a request gives: bit n is the record's component n, as IBTA's tables
/// number them.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComponentMask(pub u64);

impl fmt::Debug for ComponentMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ComponentMask({:#x})", self.0)
    }
}

/// A record of subnet administration.
pub trait Record: Sized + Copy + Default {
    /// Its attribute.
    const ATTRIBUTE: AttributeId;
    /// Bytes of it.
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

/// What is asked of a record: each method gives one component its value, and sets its bit.
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
    /// Asks for any record.
    pub fn new() -> Self {
        Self::default()
    }

    /// The values; those without a bit in the mask say nothing.
    pub const fn record(&self) -> &R {
        &self.record
    }

    /// Which values are meant.
    pub const fn mask(&self) -> ComponentMask {
        self.mask
    }
}

/// Methods that set one component each: its name, type, field and bits.
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
    /// For a service (both halves of the id).
    service_id: u64 = 0 | 1;
    /// To this GID.
    dgid: Gid = 2;
    /// From this GID.
    sgid: Gid = 3;
    /// To this LID.
    dlid: u16 = 4;
    /// From this LID.
    slid: u16 = 5;
    /// For raw packets or not.
    raw_traffic: bool = 6;
    /// With this flow label, 20 bits.
    flow_label: u32 = 8;
    /// With this hop limit.
    hop_limit: u8 = 9;
    /// Of this traffic class.
    traffic_class: u8 = 10;
    /// The same way back or not.
    reversible: bool = 11;
    /// At most so many paths for each pair of ports, seven bits.
    numb_path: u8 = 12;
    /// In this partition.
    pkey: PKey = 13;
    /// Of this QoS class, 12 bits.
    qos_class: u16 = 14;
    /// On this service level, four bits.
    sl: u8 = 15;
    /// With such an MTU.
    mtu: Selected = 16 | 17;
    /// With such a rate.
    rate: Selected = 18 | 19;
    /// With such a packet lifetime.
    packet_lifetime: Selected = 20 | 21;
});

components!(ServiceRecord {
    /// With this id.
    service_id: ServiceId = 0;
    /// At this GID.
    gid: Gid = 1;
    /// In this partition.
    pkey: PKey = 2;
    /// For so long, seconds.
    lease_s: u32 = 4;
    /// With this key.
    key: [u8; 16] = 5;
    /// With this name ([`ServiceRecord::name_field`]).
    name: [u8; super::NAME_LEN] = 6;
    /// With this data.
    data8: [u8; 16] = 7 | 8 | 9 | 10 | 11 | 12 | 13 | 14 | 15 | 16 | 17 | 18 | 19 | 20 | 21 | 22;
    /// With this data.
    data16: [u16; 8] = 23 | 24 | 25 | 26 | 27 | 28 | 29 | 30;
    /// With this data.
    data32: [u32; 4] = 31 | 32 | 33 | 34;
    /// With this data.
    data64: [u64; 2] = 35 | 36;
});

components!(McMemberRecord {
    /// Of this group.
    mgid: Gid = 0;
    /// Of this port.
    port_gid: Gid = 1;
    /// With this queue key.
    qkey: QKey = 2;
    /// With this LID.
    mlid: u16 = 3;
    /// With such an MTU.
    mtu: Selected = 4 | 5;
    /// Of this traffic class.
    traffic_class: u8 = 6;
    /// In this partition.
    pkey: PKey = 7;
    /// With such a rate.
    rate: Selected = 8 | 9;
    /// With such a packet lifetime.
    packet_lifetime: Selected = 10 | 11;
    /// On this service level, four bits.
    sl: u8 = 12;
    /// With this flow label, 20 bits.
    flow_label: u32 = 13;
    /// With this hop limit.
    hop_limit: u8 = 14;
    /// Of this scope, four bits.
    scope: u8 = 15;
    /// Joined so.
    join_state: JoinState = 16;
    /// Joined for another or not.
    proxy_join: bool = 17;
});

components!(NodeRecord {
    /// At this LID.
    lid: u16 = 0;
    /// Of this type.
    node_type: NodeType = 4;
    /// Of this system.
    system_image_guid: u64 = 6;
    /// With this node GUID.
    node_guid: u64 = 7;
    /// With this port GUID.
    port_guid: u64 = 8;
    /// With this port number.
    local_port_num: u8 = 12;
    /// With this description.
    description: [u8; 64] = 14;
});
