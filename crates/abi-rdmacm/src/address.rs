//! C's socket addresses as the bytes that the kernel takes.

use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6};
use rustix::io::Errno;

use crate::guard::Result;
use crate::layout::SockaddrIb;

/// `AF_IB`.
pub(crate) const AF_IB: i32 = 27;

/// `struct __kernel_sockaddr_storage`.
pub(crate) type Storage = [u8; 128];

/// Bytes of an address of this family.
pub(crate) fn length(family: i32) -> Option<usize> {
    match family {
        AF_INET => Some(size_of::<sockaddr_in>()),
        AF_INET6 => Some(size_of::<sockaddr_in6>()),
        AF_IB => Some(size_of::<SockaddrIb>()),
        _ => None,
    }
}

/// The address as bytes, and how many count.
///
/// # Errors
/// `EINVAL` for null, and for a family that has no ids.
///
/// # Safety
/// It is null, or points to an address as long as its family's.
pub(crate) unsafe fn read(address: *const sockaddr) -> Result<(Storage, u16)> {
    if address.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: an address begins with its family.
    let family = unsafe { (&raw const (*address).sa_family).read_unaligned() };
    let length = length(family.into()).ok_or(Errno::INVAL)?;
    let mut bytes = [0; 128];
    // SAFETY: the address is as long as its family's, and none is longer than the bytes.
    unsafe { std::ptr::copy_nonoverlapping(address.cast(), bytes.as_mut_ptr(), length) };
    Ok((bytes, length as u16))
}

/// The port within an address's bytes, in network byte order; 0 for a family without.
pub(crate) fn port(bytes: &Storage) -> u16 {
    let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    match i32::from(word(0)) {
        AF_INET | AF_INET6 => word(2),
        // The last bytes of the service id.
        AF_IB => word(30),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_lie_where_each_family_has_them() {
        let mut bytes = [0; 128];
        let cases = [(AF_INET, 2), (AF_INET6, 2), (AF_IB, 30)];
        for (family, at) in cases {
            bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
            bytes[at..at + 2].copy_from_slice(&7471u16.to_be_bytes());
            assert_eq!(port(&bytes), 7471u16.to_be(), "{family}");
        }
        bytes[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        assert_eq!(port(&bytes), 0);
    }

    #[test]
    fn an_address_of_another_family_is_refused() {
        let mut address = sockaddr {
            sa_family: libc::AF_UNIX as u16,
            sa_data: [0; 14],
        };
        let mut outcome = |family: i32| {
            address.sa_family = family as u16;
            // SAFETY: it is as long as that of AF_INET.
            unsafe { read(&address) }.map(|(_, length)| length)
        };
        assert_eq!(outcome(libc::AF_UNIX), Err(Errno::INVAL));
        assert_eq!(outcome(AF_INET), Ok(16));
        // SAFETY: null is allowed.
        assert!(unsafe { read(std::ptr::null()) }.is_err());
    }
}
