//! MCMemberRecord: a port's membership of a group.

use core::fmt;

use super::path_record::Selected;
use crate::bytes::{At, Bits, header, narrow};
use crate::{Gid, PKey, QKey};

header! {
    /// An MCMemberRecord (IBTA 15.2.5.17): a port's membership of a group, and the group's attributes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct McMemberRecord("MCMemberRecord", 52) {
        /// GID of the group.
        pub mgid: Gid = At<0>,
        /// GID of the member's port.
        pub port_gid: Gid = At<16>,
        /// Queue key of the group.
        pub qkey: QKey = At<32>,
        /// LID of the group.
        pub mlid: u16 = At<36>,
        /// Path MTU, in IBTA's encoding.
        pub mtu: Selected = At<38>,
        /// Traffic class.
        pub traffic_class: u8 = At<39>,
        /// Partition key.
        pub pkey: PKey = At<40>,
        /// Static rate, in IBTA's encoding (`enum ib_rate`).
        pub rate: Selected = At<42>,
        /// Packet lifetime, exponent of 4.096 µs.
        pub packet_lifetime: Selected = At<43>,
        /// Service level, four bits.
        pub sl: u8 = Bits<44, 4, 4>,
        /// Flow label, 20 bits.
        pub flow_label: u32 = Bits<44, 0, 20>,
        /// Hop limit.
        pub hop_limit: u8 = At<47>,
        /// Scope of the group, four bits.
        pub scope: u8 = Bits<48, 4, 4>,
        /// The port's type of membership, current or requested.
        pub join_state: JoinState = Bits<48, 0, 4>,
        /// Whether another port joined on behalf of this one.
        pub proxy_join: bool = Bits<49, 7, 1>,
    }
}

bitflags::bitflags! {
    /// The type of a port's membership (IBTA 15.2.5.17, JoinState), four bits.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct JoinState: u8 {
        /// Sends and receives.
        const FULL_MEMBER = 1;
        /// Sends and receives; the group may be deleted during the membership.
        const NON_MEMBER = 2;
        /// Sends only; the group may be deleted during the membership.
        const SEND_ONLY_NON_MEMBER = 4;
        /// Sends only.
        const SEND_ONLY_FULL_MEMBER = 8;
    }
}

narrow! {
    JoinState: |bits| JoinState::from_bits_retain(bits as u8), |state: JoinState| state.bits().into();
}

impl Default for McMemberRecord {
    /// All zero, including the partition: a request without components.
    fn default() -> Self {
        Self::from_bytes(&[0; Self::LEN])
    }
}

impl fmt::Display for McMemberRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mgid, port_gid, .. } = self;
        write!(f, "{port_gid} in {mgid} lid {:#06x}", self.mlid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_at_the_standards_offset() {
        let record = McMemberRecord {
            mgid: Gid([0x10; 16]),
            port_gid: Gid([0x20; 16]),
            qkey: QKey(0x0102_0304),
            mlid: 0xC001,
            mtu: Selected::exactly(4),
            traffic_class: 9,
            pkey: PKey(0x8001),
            rate: Selected::exactly(3),
            packet_lifetime: Selected::exactly(18),
            sl: 5,
            flow_label: 0xABCDE,
            hop_limit: 64,
            scope: 2,
            join_state: JoinState::FULL_MEMBER,
            proxy_join: true,
        };
        let mut bytes = [0xA5; McMemberRecord::LEN];
        record.emit(&mut bytes).unwrap();
        assert_eq!(bytes[..16], [0x10; 16]);
        assert_eq!(bytes[16..32], [0x20; 16]);
        assert_eq!(
            bytes[32..],
            [
                1, 2, 3, 4, 0xC0, 1, 0x84, 9, 0x80, 1, 0x83, 0x92, 0x5A, 0xBC, 0xDE, 64, 0x21,
                0x80, 0, 0
            ]
        );
        assert_eq!(McMemberRecord::parse(&bytes), Ok(record));
    }
}
