//! ServiceRecord: a registered service.

use core::fmt;

use crate::bytes::{At, header};
use crate::{Gid, PKey, ServiceId};

/// Length of a service name, in bytes.
pub const NAME_LEN: usize = 64;

header! {
    /// A ServiceRecord (IBTA 15.2.5.14): a service that a port registers for the length of a lease.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ServiceRecord("ServiceRecord", 176) {
        /// Id of the service.
        pub service_id: ServiceId = At<0>,
        /// GID of the port that offers it.
        pub gid: Gid = At<8>,
        /// Partition in which the service is offered.
        pub pkey: PKey = At<24>,
        /// Length of the lease in seconds, from its registration; or
        /// [`LEASE_FOR_EVER`](Self::LEASE_FOR_EVER).
        pub lease_s: u32 = At<28>,
        /// Key that is required to change the record; zero for none.
        pub key: [u8; 16] = At<32>,
        /// Name in UTF-8, zero-padded.
        pub name: [u8; NAME_LEN] = At<48>,
        /// The service's own data, as bytes.
        pub data8: [u8; 16] = At<112>,
        /// The service's own data, as 16-bit words.
        pub data16: [u16; 8] = At<128>,
        /// The service's own data, as 32-bit words.
        pub data32: [u32; 4] = At<144>,
        /// The service's own data, as 64-bit words.
        pub data64: [u64; 2] = At<160>,
    }
}

impl Default for ServiceRecord {
    /// All zero, including the partition: a request without components.
    fn default() -> Self {
        Self::from_bytes(&[0; Self::LEN])
    }
}

impl ServiceRecord {
    /// A lease that does not end.
    pub const LEASE_FOR_EVER: u32 = u32::MAX;

    /// Encodes a name; `None` if it is empty, too long or contains a zero byte.
    pub fn name_field(name: &str) -> Option<[u8; NAME_LEN]> {
        let mut field = [0; NAME_LEN];
        let place = field.get_mut(..name.len())?;
        if name.is_empty() || name.contains('\0') {
            return None;
        }
        place.copy_from_slice(name.as_bytes());
        Some(field)
    }

    /// The name as text, up to the first zero byte; `None` if it is not UTF-8.
    pub fn name(&self) -> Option<&str> {
        text(&self.name)
    }
}

/// The text in a zero-padded field.
pub(super) fn text(field: &[u8]) -> Option<&str> {
    let text = field.split(|byte| *byte == 0).next().unwrap_or_default();
    core::str::from_utf8(text).ok()
}

impl fmt::Display for ServiceRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name().unwrap_or("(name is not UTF-8)");
        write!(f, "{} {name:?} at {}", self.service_id, self.gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_at_the_standards_offset() {
        let record = ServiceRecord {
            service_id: ServiceId(0x0001_0203_0405_0607),
            gid: Gid([0x10; 16]),
            pkey: PKey(0x8001),
            lease_s: 0x1122_3344,
            key: [0x20; 16],
            name: ServiceRecord::name_field("harbour").unwrap(),
            data8: [0x30; 16],
            data16: [1, 2, 3, 4, 5, 6, 7, 8],
            data32: [9, 10, 11, 12],
            data64: [13, 14],
        };
        let mut bytes = [0xA5; ServiceRecord::LEN];
        record.emit(&mut bytes).unwrap();
        assert_eq!(bytes[..8], [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(bytes[8..24], [0x10; 16]);
        assert_eq!(bytes[24..32], [0x80, 1, 0, 0, 0x11, 0x22, 0x33, 0x44]);
        assert_eq!(bytes[32..48], [0x20; 16]);
        assert_eq!(bytes[48..56], *b"harbour\0");
        assert_eq!(bytes[112..128], [0x30; 16]);
        assert_eq!((bytes[129], bytes[143]), (1, 8));
        assert_eq!((bytes[147], bytes[159]), (9, 12));
        assert_eq!((bytes[167], bytes[175]), (13, 14));
        assert_eq!(ServiceRecord::parse(&bytes), Ok(record));
        assert_eq!(record.name(), Some("harbour"));
    }

    #[test]
    fn names_that_do_not_fit_their_field_are_refused() {
        assert!(ServiceRecord::name_field(&"x".repeat(NAME_LEN)).is_some());
        for name in ["", "a\0b", &"x".repeat(NAME_LEN + 1)] {
            assert_eq!(ServiceRecord::name_field(name), None, "{name:?}");
        }
    }
}
