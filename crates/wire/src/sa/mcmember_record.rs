//! MCMemberRecord: a port's membership of a group.

use core::fmt;

use super::path_record::Selected;
use crate::bytes::{Builder, Fields, fit};
use crate::{Gid, PKey, QKey};

/// An MCMemberRecord (IBTA 15.2.5.17): a port's membership of a group, and the group's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct McMemberRecord {
    /// GID of the group.
    pub mgid: Gid,
    /// GID of the member's port.
    pub port_gid: Gid,
    /// Queue key of the group.
    pub qkey: QKey,
    /// LID of the group.
    pub mlid: u16,
    /// Path MTU, in IBTA's encoding.
    pub mtu: Selected,
    /// Traffic class.
    pub traffic_class: u8,
    /// Partition key.
    pub pkey: PKey,
    /// Static rate, in IBTA's encoding (`enum ib_rate`).
    pub rate: Selected,
    /// Packet lifetime, exponent of 4.096 µs.
    pub packet_lifetime: Selected,
    /// Service level, four bits.
    pub sl: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Scope of the group, four bits.
    pub scope: u8,
    /// The port's type of membership, current or requested.
    pub join_state: JoinState,
    /// Whether another port joined on behalf of this one.
    pub proxy_join: bool,
}

crate::bytes::header!(McMemberRecord, "MCMemberRecord", 52);

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

impl Default for McMemberRecord {
    /// All zero, including the partition: a request without components.
    fn default() -> Self {
        Self::from_fields(Fields(&[0; Self::LEN]))
    }
}

impl McMemberRecord {
    fn from_fields(f: Fields<'_, { Self::LEN }>) -> Self {
        let flow = f.u32::<44>();
        McMemberRecord {
            mgid: Gid(f.array::<0, 16>()),
            port_gid: Gid(f.array::<16, 16>()),
            qkey: QKey(f.u32::<32>()),
            mlid: f.u16::<36>(),
            mtu: Selected::from_byte(f.u8::<38>()),
            traffic_class: f.u8::<39>(),
            pkey: PKey(f.u16::<40>()),
            rate: Selected::from_byte(f.u8::<42>()),
            packet_lifetime: Selected::from_byte(f.u8::<43>()),
            sl: (flow >> 28) as u8,
            flow_label: flow >> 8 & 0x000F_FFFF,
            hop_limit: f.u8::<47>(),
            scope: f.bits::<48, 4, 4>(),
            join_state: JoinState::from_bits_retain(f.bits::<48, 0, 4>()),
            proxy_join: f.bit::<49, 7>(),
        }
    }

    fn build(&self, b: &mut Builder<{ Self::LEN }>) -> crate::Result<()> {
        let flow_label = fit("flow label", self.flow_label, 20)?;
        let sl = fit("service level", self.sl.into(), 4)?;
        b.array::<0, 16>(&self.mgid.0)
            .array::<16, 16>(&self.port_gid.0)
            .u32::<32>(self.qkey.0)
            .u16::<36>(self.mlid)
            .u8::<38>(self.mtu.to_byte("path MTU")?)
            .u8::<39>(self.traffic_class)
            .u16::<40>(self.pkey.0)
            .u8::<42>(self.rate.to_byte("rate")?)
            .u8::<43>(self.packet_lifetime.to_byte("packet lifetime")?)
            .u32::<44>(sl << 28 | flow_label << 8 | u32::from(self.hop_limit))
            .bits::<48, 4, 4>("scope", self.scope)?
            .bits::<48, 0, 4>("join state", self.join_state.bits())?
            .bit::<49, 7>(self.proxy_join);
        Ok(())
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
