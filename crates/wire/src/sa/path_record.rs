//! PathRecord: a path between two ports.

use core::fmt;

use crate::Gid;
use crate::addr::PKey;
use crate::bytes::{Builder, Fields, fit};

/// A PathRecord (IBTA 15.2.5.16), `struct ibv_path_record` in Linux's user space.
///
/// In a request, zero fields are unspecified and the answer may hold any value there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathRecord {
    /// Service that the path is for; 0 for any.
    pub service_id: u64,
    /// GID of the destination.
    pub dgid: Gid,
    /// GID of the source.
    pub sgid: Gid,
    /// LID of the destination.
    pub dlid: u16,
    /// LID of the source.
    pub slid: u16,
    /// Whether the path is for raw packets.
    pub raw_traffic: bool,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Whether the path is reversible.
    pub reversible: bool,
    /// In requests the maximum number of paths, seven bits.
    pub numb_path: u8,
    /// Partition key.
    pub pkey: PKey,
    /// QoS class, 12 bits.
    pub qos_class: u16,
    /// Service level, four bits.
    pub sl: u8,
    /// Path MTU, in IBTA's encoding ([`PathMtu`](crate::cm::PathMtu)).
    pub mtu: Selected,
    /// Static rate, in IBTA's encoding (`enum ib_rate`).
    pub rate: Selected,
    /// Packet lifetime, exponent of 4.096 µs.
    pub packet_lifetime: Selected,
    /// Rank among the paths of an answer; the lowest value is the best.
    pub preference: u8,
}

crate::bytes::header!(PathRecord, "PathRecord", 64);

impl Default for PathRecord {
    /// All zero, including the partition: a request without components.
    fn default() -> Self {
        Self::from_fields(Fields(&[0; Self::LEN]))
    }
}

/// A six-bit value with a selector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selected {
    /// How a request compares with the value.
    pub selector: Selector,
    /// The value, six bits.
    pub value: u8,
}

/// How a record's value must compare with the requested one (IBTA 15.2.5.16, the Selector fields).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Selector {
    /// Greater than the value.
    #[default]
    GreaterThan = 0,
    /// Less than the value.
    LessThan = 1,
    /// Equal to the value; answers use this.
    Exactly = 2,
    /// The largest available value (for a lifetime, the smallest).
    Largest = 3,
}

impl Selected {
    /// The exact value.
    pub const fn exactly(value: u8) -> Self {
        Self {
            selector: Selector::Exactly,
            value,
        }
    }

    pub(super) const fn from_byte(byte: u8) -> Self {
        let selector = match byte >> 6 {
            0 => Selector::GreaterThan,
            1 => Selector::LessThan,
            2 => Selector::Exactly,
            _ => Selector::Largest,
        };
        Self {
            selector,
            value: byte & 0x3F,
        }
    }

    pub(super) fn to_byte(self, what: &'static str) -> crate::Result<u8> {
        Ok((self.selector as u8) << 6 | fit(what, self.value.into(), 6)? as u8)
    }
}

impl PathRecord {
    fn from_fields(f: Fields<'_, { Self::LEN }>) -> Self {
        let qos = f.u16::<52>();
        PathRecord {
            service_id: f.u64::<0>(),
            dgid: Gid(f.array::<8, 16>()),
            sgid: Gid(f.array::<24, 16>()),
            dlid: f.u16::<40>(),
            slid: f.u16::<42>(),
            raw_traffic: f.bit::<44, 7>(),
            flow_label: f.u32::<44>() >> 8 & 0x000F_FFFF,
            hop_limit: f.u8::<47>(),
            traffic_class: f.u8::<48>(),
            reversible: f.bit::<49, 7>(),
            numb_path: f.bits::<49, 0, 7>(),
            pkey: PKey(f.u16::<50>()),
            qos_class: qos >> 4,
            sl: (qos & 0xF) as u8,
            mtu: Selected::from_byte(f.u8::<54>()),
            rate: Selected::from_byte(f.u8::<55>()),
            packet_lifetime: Selected::from_byte(f.u8::<56>()),
            preference: f.u8::<57>(),
        }
    }

    fn build(&self, b: &mut Builder<{ Self::LEN }>) -> crate::Result<()> {
        let flow_label = fit("flow label", self.flow_label, 20)?;
        let qos_class = fit("QoS class", self.qos_class.into(), 12)? as u16;
        let sl = fit("service level", self.sl.into(), 4)? as u16;
        b.u64::<0>(self.service_id)
            .array::<8, 16>(&self.dgid.0)
            .array::<24, 16>(&self.sgid.0)
            .u16::<40>(self.dlid)
            .u16::<42>(self.slid)
            .u32::<44>(
                u32::from(self.raw_traffic) << 31 | flow_label << 8 | u32::from(self.hop_limit),
            )
            .u8::<48>(self.traffic_class)
            .bit::<49, 7>(self.reversible)
            .bits::<49, 0, 7>("number of paths", self.numb_path)?
            .u16::<50>(self.pkey.0)
            .u16::<52>(qos_class << 4 | sl)
            .u8::<54>(self.mtu.to_byte("path MTU")?)
            .u8::<55>(self.rate.to_byte("rate")?)
            .u8::<56>(self.packet_lifetime.to_byte("packet lifetime")?)
            .u8::<57>(self.preference);
        Ok(())
    }
}

impl fmt::Display for PathRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {} pkey {}", self.sgid, self.dgid, self.pkey)?;
        if self.dlid != 0 || self.slid != 0 {
            write!(f, " lid {:#06x} -> {:#06x}", self.slid, self.dlid)?;
        }
        write!(f, " sl {}", self.sl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_at_the_standards_offset() {
        let record = PathRecord {
            service_id: 0x0001_0203_0405_0607,
            dgid: Gid([0x10; 16]),
            sgid: Gid([0x20; 16]),
            dlid: 0x1122,
            slid: 0x3344,
            raw_traffic: true,
            flow_label: 0xABCDE,
            hop_limit: 64,
            traffic_class: 9,
            reversible: true,
            numb_path: 5,
            pkey: PKey(0x8001),
            qos_class: 0x123,
            sl: 4,
            mtu: Selected::exactly(4),
            rate: Selected {
                selector: Selector::LessThan,
                value: 3,
            },
            packet_lifetime: Selected::exactly(18),
            preference: 7,
        };
        let mut bytes = [0xA5; PathRecord::LEN];
        record.emit(&mut bytes).unwrap();
        assert_eq!(bytes[..8], [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(bytes[8..24], [0x10; 16]);
        assert_eq!(bytes[24..40], [0x20; 16]);
        assert_eq!(
            bytes[40..58],
            [
                0x11, 0x22, 0x33, 0x44, 0x8A, 0xBC, 0xDE, 64, 9, 0x85, 0x80, 0x01, 0x12, 0x34,
                0x84, 0x43, 0x92, 7
            ]
        );
        assert_eq!(bytes[58..], [0; 6]);
        assert_eq!(PathRecord::parse(&bytes), Ok(record));
    }

    #[test]
    fn a_value_wider_than_its_field_is_refused() {
        let mut out = [0; PathRecord::LEN];
        for wide in [
            PathRecord {
                flow_label: 1 << 20,
                ..Default::default()
            },
            PathRecord {
                sl: 16,
                ..Default::default()
            },
            PathRecord {
                qos_class: 1 << 12,
                ..Default::default()
            },
            PathRecord {
                mtu: Selected::exactly(64),
                ..Default::default()
            },
        ] {
            assert!(wide.emit(&mut out).is_err(), "{wide:?}");
        }
    }
}
