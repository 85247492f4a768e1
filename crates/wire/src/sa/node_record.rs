//! NodeRecord: a node's attributes and description.

use core::fmt;

use super::service_record::text;
use crate::bytes::{At, Bits, header, wrappers};

header! {
    /// A NodeRecord (IBTA 15.2.5.2): the attributes of a port's node (NodeInfo, IBTA 14.2.5.3), and its
    /// description.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct NodeRecord("NodeRecord", 108) {
        /// LID of the port.
        pub lid: u16 = At<0>,
        /// Base version of its management datagrams.
        pub base_version: u8 = At<4>,
        /// Class version of its management datagrams.
        pub class_version: u8 = At<5>,
        /// Type of the node.
        pub node_type: NodeType = At<6>,
        /// Number of ports.
        pub num_ports: u8 = At<7>,
        /// GUID of the system that contains the node.
        pub system_image_guid: u64 = At<8>,
        /// GUID of the node.
        pub node_guid: u64 = At<16>,
        /// GUID of the port.
        pub port_guid: u64 = At<24>,
        /// Size of its partition tables.
        pub partition_cap: u16 = At<32>,
        /// Device id assigned by the vendor.
        pub device_id: u16 = At<34>,
        /// Revision of the device.
        pub revision: u32 = At<36>,
        /// Number of the port.
        pub local_port_num: u8 = At<40>,
        /// Vendor, 24 bits.
        pub vendor_id: u32 = Bits<41, 0, 24>,
        /// Description, zero-padded.
        pub description: [u8; 64] = At<44>,
    }
}

/// The type of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeType(pub u8);

wrappers!(NodeType(u8));

impl NodeType {
    /// A channel adapter: a host or a target.
    pub const CHANNEL_ADAPTER: NodeType = NodeType(1);
    /// A switch.
    pub const SWITCH: NodeType = NodeType(2);
    /// A router.
    pub const ROUTER: NodeType = NodeType(3);
}

impl fmt::Debug for NodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeType({self})")
    }
}

impl fmt::Display for NodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::CHANNEL_ADAPTER => f.write_str("channel adapter"),
            Self::SWITCH => f.write_str("switch"),
            Self::ROUTER => f.write_str("router"),
            NodeType(other) => write!(f, "reserved type {other}"),
        }
    }
}

impl Default for NodeRecord {
    /// All zero: a request without components.
    fn default() -> Self {
        Self::from_bytes(&[0; Self::LEN])
    }
}

impl NodeRecord {
    /// The description as text, up to the first zero byte; `None` if it is not UTF-8.
    pub fn description(&self) -> Option<&str> {
        text(&self.description)
    }
}

impl fmt::Display for NodeRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.description().unwrap_or("(name is not UTF-8)");
        let Self { node_type, lid, .. } = self;
        write!(f, "{node_type} {name:?} lid {lid:#06x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_at_the_standards_offset() {
        let mut description = [0; 64];
        description[..4].copy_from_slice(b"node");
        let record = NodeRecord {
            lid: 0x0102,
            base_version: 1,
            class_version: 2,
            node_type: NodeType::SWITCH,
            num_ports: 36,
            system_image_guid: 0x10,
            node_guid: 0x11,
            port_guid: 0x12,
            partition_cap: 0x0304,
            device_id: 0x0506,
            revision: 0x0708_090A,
            local_port_num: 7,
            vendor_id: 0x0A_0B0C,
            description,
        };
        let mut bytes = [0xA5; NodeRecord::LEN];
        record.emit(&mut bytes).unwrap();
        assert_eq!(bytes[..8], [1, 2, 0, 0, 1, 2, 2, 36]);
        assert_eq!((bytes[15], bytes[23], bytes[31]), (0x10, 0x11, 0x12));
        assert_eq!(
            bytes[32..48],
            [
                3, 4, 5, 6, 7, 8, 9, 0xA, 7, 0xA, 0xB, 0xC, b'n', b'o', b'd', b'e'
            ]
        );
        assert_eq!(NodeRecord::parse(&bytes), Ok(record));
        assert_eq!(record.description(), Some("node"));
    }
}
