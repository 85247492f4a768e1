//! Socket addresses in the ABI's `struct __kernel_sockaddr_storage`.

use std::net::SocketAddr;

use portolan_provider::address::Address;

use super::abi::Storage;

/// The address and its size. The kernel requires exactly the size of the family.
pub(super) fn encode(address: SocketAddr) -> (Storage, u16) {
    let bytes = Address::Inet(address).to_sockaddr();
    let mut storage = [0; 128];
    storage[..bytes.len()].copy_from_slice(&bytes);
    (storage, bytes.len() as u16)
}

/// The address of this size; `None` for an id without an address and for an unknown family.
pub(super) fn decode(storage: &Storage, size: u16) -> Option<Address> {
    Address::from_sockaddr(storage.get(..usize::from(size))?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internet_addresses_have_their_familys_size_and_survive_a_round_trip() {
        for (text, size) in [("10.1.2.3:7471", 16), ("[fe80::1%3]:7471", 28)] {
            let address: SocketAddr = text.parse().unwrap();
            let (storage, encoded) = encode(address);
            assert_eq!(encoded, size);
            assert_eq!(decode(&storage, size), Some(address.into()));
        }
    }

    #[test]
    fn missing_addresses_unknown_families_and_excessive_sizes_give_none() {
        assert_eq!(decode(&[0; 128], 0), None);
        assert_eq!(decode(&[0xff; 128], 16), None);
        assert_eq!(decode(&[0; 128], u16::MAX), None);
    }
}
