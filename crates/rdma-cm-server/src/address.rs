//! Addresses in the ABI's format: with the family's length, in a storage of 128 bytes.

use std::net::SocketAddr;

use portolan_kernel::raw::Storage;
use portolan_provider::Address;
use portolan_provider::address::gid_to_ip;
use rustix::io::Errno;

/// Decodes an address of `size` bytes; its port is in the family's own place.
///
/// # Errors
/// `EINVAL` for a length that does not match the family; `EAFNOSUPPORT` for an InfiniBand address, because no device
/// here has one.
pub(crate) fn decode(storage: &Storage, size: u16) -> Result<SocketAddr, Errno> {
    let bytes = storage.get(..usize::from(size)).ok_or(Errno::INVAL)?;
    match Address::from_sockaddr(bytes) {
        Ok(Address::Inet(address)) => Ok(address),
        Ok(Address::Ib(_)) => Err(Errno::AFNOSUPPORT),
        Err(_) => Err(Errno::INVAL),
    }
}

/// Decodes the address of a group. Also accepts an InfiniBand address with the GID of an IP group (`mckey -M`).
///
/// # Errors
/// As [`decode`]; `EINVAL` for a GID that is not a group's.
pub(crate) fn decode_group(storage: &Storage, size: u16) -> Result<SocketAddr, Errno> {
    let bytes = storage.get(..usize::from(size)).ok_or(Errno::INVAL)?;
    match Address::from_sockaddr(bytes) {
        Ok(Address::Ib(group)) if group.gid.is_multicast() => {
            Ok(SocketAddr::new(gid_to_ip(group.gid), 0))
        }
        Ok(Address::Ib(_)) => Err(Errno::INVAL),
        _ => decode(storage, size),
    }
}

/// Encodes an address and its length; the length of no address is 0.
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
    use std::net::IpAddr;

    use portolan_provider::SockaddrIb;
    use portolan_wire::{Gid, PKey};

    use super::*;

    #[test]
    fn encoded_addresses_are_decoded_and_an_empty_one_is_none() {
        for text in ["10.1.2.3:7471", "[fe80::1%3]:7471"] {
            let address: SocketAddr = text.parse().unwrap();
            let (storage, size) = encode(Some(address.into()));
            assert_eq!(decode(&storage, size), Ok(address));
        }
        assert_eq!(encode(None).1, 0);
        assert_eq!(decode(&[0; 128], 0), Err(Errno::INVAL));
    }

    #[test]
    fn invalid_lengths_and_families_are_refused() {
        let (storage, size) = encode(Some("10.1.2.3:1".parse::<SocketAddr>().unwrap().into()));
        for wrong in [size - 1, size + 1, 128, 129, u16::MAX] {
            assert_eq!(decode(&storage, wrong), Err(Errno::INVAL), "{wrong}");
        }
        let ib = infiniband(Gid::UNSPECIFIED);
        let (storage, size) = encode(Some(Address::Ib(ib)));
        assert_eq!(decode(&storage, size), Err(Errno::AFNOSUPPORT));
    }

    fn infiniband(gid: Gid) -> SockaddrIb {
        SockaddrIb {
            pkey: PKey::DEFAULT,
            flowinfo: 0,
            gid,
            sid: 0,
            sid_mask: 0,
            scope_id: 0,
        }
    }

    #[test]
    fn a_group_may_be_given_by_its_gid_and_other_infiniband_addresses_are_refused() {
        for text in ["ff15::7", "239.1.2.3"] {
            let group: IpAddr = text.parse().unwrap();
            let (storage, size) = encode(Some(Address::Ib(infiniband(Gid::from(group)))));
            assert_eq!(decode_group(&storage, size), Ok(SocketAddr::new(group, 0)));
            let (storage, size) = encode(Some(SocketAddr::new(group, 0).into()));
            assert_eq!(decode_group(&storage, size), Ok(SocketAddr::new(group, 0)));
        }
        let host = Gid::from(IpAddr::from([10, 1, 2, 3]));
        let (storage, size) = encode(Some(Address::Ib(infiniband(host))));
        assert_eq!(decode_group(&storage, size), Err(Errno::INVAL));
    }
}
