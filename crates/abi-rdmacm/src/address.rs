//! C's socket addresses as the bytes that the kernel expects.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6};
use rustix::io::Errno;

use crate::guard::Result;
use crate::layout::SockaddrIb;

/// `AF_IB`.
pub(crate) const AF_IB: i32 = 27;

/// `struct __kernel_sockaddr_storage`.
pub(crate) type Storage = [u8; 128];

/// The length of an address of this family, bytes.
pub(crate) fn length(family: i32) -> Option<usize> {
    match family {
        AF_INET => Some(size_of::<sockaddr_in>()),
        AF_INET6 => Some(size_of::<sockaddr_in6>()),
        AF_IB => Some(size_of::<SockaddrIb>()),
        _ => None,
    }
}

/// An address from the caller: null, or as long as its family requires.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct SocketAddress(*const sockaddr);

impl SocketAddress {
    /// # Safety
    /// The pointer is null, or points to an address as long as its family requires.
    pub(crate) unsafe fn new(pointer: *const sockaddr) -> Self {
        Self(pointer)
    }

    /// The address as bytes, and its length. `None` for null.
    ///
    /// # Errors
    /// `EINVAL` for a family that rdma_cm does not have.
    pub(crate) fn get(self) -> Result<Option<(Storage, u16)>> {
        let address = self.0;
        if address.is_null() {
            return Ok(None);
        }
        // SAFETY: an address begins with its family.
        let family = unsafe { (&raw const (*address).sa_family).read_unaligned() };
        let length = length(family.into()).ok_or(Errno::INVAL)?;
        let mut bytes = [0; 128];
        // SAFETY: the type says that the address is as long as its family's, and none is longer than the bytes.
        unsafe { std::ptr::copy_nonoverlapping(address.cast(), bytes.as_mut_ptr(), length) };
        Ok(Some((bytes, length as u16)))
    }

    /// As [`SocketAddress::get`].
    ///
    /// # Errors
    /// Those of [`SocketAddress::get`]; `EINVAL` for null.
    pub(crate) fn required(self) -> Result<(Storage, u16)> {
        self.get()?.ok_or(Errno::INVAL)
    }
}

/// The port in an address's bytes, network byte order. 0 for a family without ports.
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
    fn ports_are_at_each_familys_offset() {
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
            // SAFETY: it is as long as an AF_INET address.
            unsafe { SocketAddress::new(&address) }
                .required()
                .map(|(_, length)| length)
        };
        assert_eq!(outcome(libc::AF_UNIX), Err(Errno::INVAL));
        assert_eq!(outcome(AF_INET), Ok(16));
        // SAFETY: null means no address.
        let none = unsafe { SocketAddress::new(std::ptr::null()) };
        assert!(none.get().is_ok_and(|address| address.is_none()));
        assert!(none.required().is_err());
    }
}
