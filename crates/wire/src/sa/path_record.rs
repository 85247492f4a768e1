//! PathRecord: a path between two ports.

use core::fmt;

use crate::Gid;
use crate::addr::PKey;
use crate::bytes::{At, Bits, Value, fit, header};

header! {
    /// A PathRecord (IBTA 15.2.5.16), `struct ibv_path_record` in Linux's user space.
    ///
    /// In a request, zero fields are unspecified and the answer may hold any value there.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct PathRecord("PathRecord", 64) {
        /// Service that the path is for; 0 for any.
        pub service_id: u64 = At<0>,
        /// GID of the destination.
        pub dgid: Gid = At<8>,
        /// GID of the source.
        pub sgid: Gid = At<24>,
        /// LID of the destination.
        pub dlid: u16 = At<40>,
        /// LID of the source.
        pub slid: u16 = At<42>,
        /// Whether the path is for raw packets.
        pub raw_traffic: bool = Bits<44, 7, 1>,
        /// Flow label, 20 bits.
        pub flow_label: u32 = Bits<44, 0, 20>,
        /// Hop limit.
        pub hop_limit: u8 = At<47>,
        /// Traffic class.
        pub traffic_class: u8 = At<48>,
        /// Whether the path is reversible.
        pub reversible: bool = Bits<49, 7, 1>,
        /// In requests the maximum number of paths, seven bits.
        pub numb_path: u8 = Bits<49, 0, 7>,
        /// Partition key.
        pub pkey: PKey = At<50>,
        /// QoS class, 12 bits.
        pub qos_class: u16 = Bits<52, 4, 12>,
        /// Service level, four bits.
        pub sl: u8 = Bits<53, 0, 4>,
        /// Path MTU, in IBTA's encoding ([`PathMtu`](crate::cm::PathMtu)).
        pub mtu: Selected = At<54>,
        /// Static rate, in IBTA's encoding ([`RATES`](crate::sa::RATES)).
        pub rate: Selected = At<55>,
        /// Packet lifetime, exponent of 4.096 µs.
        pub packet_lifetime: Selected = At<56>,
        /// Rank among the paths of an answer; the lowest value is the best.
        pub preference: u8 = At<57>,
    }
}

impl Default for PathRecord {
    /// All zero, including the partition: a request without components.
    fn default() -> Self {
        Self::from_bytes(&[0; Self::LEN])
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
}

impl Value for Selected {
    const LEN: usize = 1;

    fn read(bytes: &[u8]) -> Self {
        let byte = u8::read(bytes);
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

    fn write(&self, what: &'static str, bytes: &mut [u8]) -> crate::Result<()> {
        let value = fit(what, self.value.into(), 6)? as u8;
        ((self.selector as u8) << 6 | value).write(what, bytes)
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
