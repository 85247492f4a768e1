//! Addresses as the ABI has them: a family's own length within a storage of 128 bytes.

use std::net::SocketAddr;

use portolan_kernel::raw::Storage;
use portolan_provider::Address;
use rustix::io::Errno;

/// The address of `size` bytes; its port is as the family has it.
///
/// # Errors
/// `EINVAL` for a length that is not the family's own; `EAFNOSUPPORT` for an address of InfiniBand, which no device
/// here has.
pub(crate) fn decode(storage: &Storage, size: u16) -> Result<SocketAddr, Errno> {
    let bytes = storage.get(..usize::from(size)).ok_or(Errno::INVAL)?;
    match Address::from_sockaddr(bytes) {
        Ok(Address::Inet(address)) => Ok(address),
        Ok(Address::Ib(_)) => Err(Errno::AFNOSUPPORT),
        Err(_) => Err(Errno::INVAL),
    }
}

/// The address and its length; none has the length 0.
pub(crate) fn encode(address: Option<Address>) -> (Storage, u16) {
    let mut storage = [0; 128];
    let Some(address) = address else {
        return (storage, 0);
    };
    let bytes = address.to_sockaddr();
    storage[..bytes.len()].copy_from_slice(&bytes);
    (storage, bytes.len() as u16)
}

#[cfg(test)]
mod tests {
    use portolan_provider::SockaddrIb;
    use portolan_wire::{Gid, PKey};

    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_nothing_is_no_address() {
        for text in ["10.1.2.3:7471", "[fe80::1%3]:7471"] {
            let address: SocketAddr = text.parse().unwrap();
            let (storage, size) = encode(Some(address.into()));
            assert_eq!(decode(&storage, size), Ok(address));
        }
        assert_eq!(encode(None).1, 0);
        assert_eq!(decode(&[0; 128], 0), Err(Errno::INVAL));
    }

    #[test]
    fn lengths_and_families_that_are_none_are_refused() {
        let (storage, size) = encode(Some("10.1.2.3:1".parse::<SocketAddr>().unwrap().into()));
        for wrong in [size - 1, size + 1, 128, 129, u16::MAX] {
            assert_eq!(decode(&storage, wrong), Err(Errno::INVAL), "{wrong}");
        }
        let ib = SockaddrIb {
            pkey: PKey::DEFAULT,
            flowinfo: 0,
            gid: Gid::UNSPECIFIED,
            sid: 0,
            sid_mask: 0,
            scope_id: 0,
        };
        let (storage, size) = encode(Some(Address::Ib(ib)));
        assert_eq!(decode(&storage, size), Err(Errno::AFNOSUPPORT));
    }
}
