//! Link-layer addresses of any length.

use std::fmt;

/// Maximum length of a link-layer address, in bytes: `MAX_ADDR_LEN` of Linux. Ethernet has 6, IPoIB
/// 20.
pub const LINK_ADDRESS_MAX: usize = 32;

/// A link-layer address, in transmission order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LinkAddress {
    bytes: [u8; LINK_ADDRESS_MAX],
    length: u8,
}

impl LinkAddress {
    /// The address on a link without addresses: loopback, tunnels.
    pub const NONE: Self = Self {
        bytes: [0; LINK_ADDRESS_MAX],
        length: 0,
    };

    /// Creates an address; `None` if it exceeds [`LINK_ADDRESS_MAX`].
    pub fn new(address: &[u8]) -> Option<Self> {
        let mut bytes = [0; LINK_ADDRESS_MAX];
        bytes.get_mut(..address.len())?.copy_from_slice(address);
        Some(Self {
            bytes,
            length: u8::try_from(address.len()).ok()?,
        })
    }

    /// The bytes; empty if the link has no addresses.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length.into()).unwrap_or_default()
    }

    /// The Ethernet address, if it is one.
    pub fn ethernet(&self) -> Option<[u8; 6]> {
        self.as_bytes().try_into().ok()
    }
}

impl fmt::Display for LinkAddress {
    /// `02:00:00:00:00:01`; `none` if there is no address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.as_bytes().iter();
        let Some(first) = bytes.next() else {
            return f.write_str("none");
        };
        write!(f, "{first:02x}")?;
        bytes.try_for_each(|byte| write!(f, ":{byte:02x}"))
    }
}

impl fmt::Debug for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkAddress({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_every_length_are_kept_and_longer_ones_refused() {
        for length in 0..=LINK_ADDRESS_MAX {
            let bytes: Vec<u8> = (0..length as u8).collect();
            let address = LinkAddress::new(&bytes).expect("within the limit");
            assert_eq!(address.as_bytes(), bytes);
            assert_eq!(address.ethernet().is_some(), length == 6);
        }
        assert_eq!(LinkAddress::new(&[0; LINK_ADDRESS_MAX + 1]), None);
    }

    #[test]
    fn addresses_print_as_people_write_them() {
        let address = LinkAddress::new(&[2, 0, 0, 0xab, 0, 1]).expect("address");
        assert_eq!(address.to_string(), "02:00:00:ab:00:01");
        assert_eq!(LinkAddress::NONE.to_string(), "none");
    }
}
