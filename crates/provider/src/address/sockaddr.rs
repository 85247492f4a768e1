//! Addresses in the byte layout of C's socket addresses.

use alloc::vec::Vec;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use portolan_wire::addr::{Gid, PKey};

use super::{Address, SockaddrIb};

/// `AF_INET` as Linux numbers it (`include/linux/socket.h`).
pub const AF_INET: u16 = 2;
/// `AF_INET6`.
pub const AF_INET6: u16 = 10;
/// `AF_IB`.
pub const AF_IB: u16 = 27;

/// Length of the longest socket address, `struct sockaddr_ib`, in bytes.
pub const SOCKADDR_LEN_MAX: usize = 48;

const INET_LEN: usize = 16;
const INET6_LEN: usize = 28;
const IB_LEN: usize = SOCKADDR_LEN_MAX;

/// Why bytes are not the address of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SockaddrError {
    /// Too short for the family's number.
    #[error("{length} bytes are too short for a socket address: its family needs two")]
    NoFamily {
        /// Length of the input, in bytes.
        length: usize,
    },
    /// A family that endpoints do not support.
    #[error("address family {0} is not one of AF_INET (2), AF_INET6 (10) and AF_IB (27)")]
    Family(u16),
    /// The length does not match the family.
    #[error("an address of family {family} has {expected} bytes, not {found}")]
    Length {
        /// Its family.
        family: u16,
        /// Length of that family's address, in bytes.
        expected: usize,
        /// Length of the input, in bytes.
        found: usize,
    },
}

impl Address {
    /// The family's number: [`AF_INET`], [`AF_INET6`] or [`AF_IB`].
    pub const fn family_number(&self) -> u16 {
        match self {
            Self::Inet(SocketAddr::V4(_)) => AF_INET,
            Self::Inet(SocketAddr::V6(_)) => AF_INET6,
            Self::Ib(_) => AF_IB,
        }
    }

    /// Reads `struct sockaddr_in`, `sockaddr_in6` or `sockaddr_ib`. The length must be exactly the
    /// family's, as the kernel's rdma_cm requires.
    ///
    /// # Errors
    /// [`SockaddrError`].
    pub fn from_sockaddr(bytes: &[u8]) -> Result<Self, SockaddrError> {
        let family = bytes.first_chunk().ok_or(SockaddrError::NoFamily {
            length: bytes.len(),
        })?;
        let family = u16::from_ne_bytes(*family);
        let length = |expected| SockaddrError::Length {
            family,
            expected,
            found: bytes.len(),
        };
        match family {
            AF_INET => {
                let bytes: &[u8; INET_LEN] = bytes.try_into().map_err(|_| length(INET_LEN))?;
                let ip = Ipv4Addr::from(at::<4, 4>(bytes));
                Ok(Self::Inet(SocketAddr::from((ip, be16::<2>(bytes)))))
            }
            AF_INET6 => {
                let bytes: &[u8; INET6_LEN] = bytes.try_into().map_err(|_| length(INET6_LEN))?;
                let flowinfo = u32::from_ne_bytes(at::<4, 4>(bytes));
                let ip = Ipv6Addr::from(at::<8, 16>(bytes));
                let scope_id = u32::from_ne_bytes(at::<24, 4>(bytes));
                let address = SocketAddrV6::new(ip, be16::<2>(bytes), flowinfo, scope_id);
                Ok(Self::Inet(address.into()))
            }
            AF_IB => {
                let bytes: &[u8; IB_LEN] = bytes.try_into().map_err(|_| length(IB_LEN))?;
                Ok(Self::Ib(SockaddrIb {
                    pkey: PKey(be16::<2>(bytes)),
                    flowinfo: u32::from_be_bytes(at::<4, 4>(bytes)),
                    gid: Gid(at::<8, 16>(bytes)),
                    sid: u64::from_be_bytes(at::<24, 8>(bytes)),
                    sid_mask: u64::from_be_bytes(at::<32, 8>(bytes)),
                    scope_id: u64::from_ne_bytes(at::<40, 8>(bytes)),
                }))
            }
            other => Err(SockaddrError::Family(other)),
        }
    }

    /// Writes `struct sockaddr_in`, `sockaddr_in6` or `sockaddr_ib`: ports, addresses, flow
    /// information and service ids in network byte order, family and scope ids in host order.
    pub fn to_sockaddr(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SOCKADDR_LEN_MAX);
        out.extend(self.family_number().to_ne_bytes());
        match self {
            Self::Inet(SocketAddr::V4(v4)) => {
                out.extend(v4.port().to_be_bytes());
                out.extend(v4.ip().octets());
                out.extend([0; 8]);
            }
            Self::Inet(SocketAddr::V6(v6)) => {
                out.extend(v6.port().to_be_bytes());
                // Copied in memory order: Rust's own conversions do not swap it either.
                out.extend(v6.flowinfo().to_ne_bytes());
                out.extend(v6.ip().octets());
                out.extend(v6.scope_id().to_ne_bytes());
            }
            Self::Ib(ib) => {
                out.extend(ib.pkey.0.to_be_bytes());
                out.extend(ib.flowinfo.to_be_bytes());
                out.extend(ib.gid.0);
                out.extend(ib.sid.to_be_bytes());
                out.extend(ib.sid_mask.to_be_bytes());
                out.extend(ib.scope_id.to_ne_bytes());
            }
        }
        out
    }
}

/// `LEN` bytes at `AT` of an address whose length is already checked.
fn at<const AT: usize, const LEN: usize>(bytes: &[u8]) -> [u8; LEN] {
    let mut out = [0; LEN];
    out.copy_from_slice(&bytes[AT..AT + LEN]);
    out
}

fn be16<const AT: usize>(bytes: &[u8]) -> u16 {
    u16::from_be_bytes(at::<AT, 2>(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ib_address_has_the_layout_of_sockaddr_ib() {
        let address = Address::Ib(SockaddrIb {
            pkey: PKey(0x8001),
            flowinfo: 0x0102_0304,
            gid: Gid([7; 16]),
            sid: 0x0106_1D2F,
            sid_mask: u64::MAX,
            scope_id: 5,
        });
        let bytes = address.to_sockaddr();
        assert_eq!(bytes.len(), 48);
        assert_eq!(bytes[..2], 27u16.to_ne_bytes());
        assert_eq!(bytes[2..8], [0x80, 0x01, 1, 2, 3, 4]);
        assert_eq!(bytes[8..24], [7; 16]);
        assert_eq!(bytes[24..32], [0, 0, 0, 0, 1, 6, 0x1D, 0x2F]);
        assert_eq!(bytes[32..40], [0xFF; 8]);
        assert_eq!(bytes[40..], 5u64.to_ne_bytes());
        assert_eq!(Address::from_sockaddr(&bytes), Ok(address));
    }

    #[test]
    fn internet_addresses_have_the_layout_of_libc() {
        let v4 = Address::Inet("192.0.2.1:7471".parse().unwrap());
        let mut expected = Vec::from(2u16.to_ne_bytes());
        expected.extend([0x1D, 0x2F, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(v4.to_sockaddr(), expected);
        let v6 = Address::Inet("[fe80::1%3]:7471".parse().unwrap());
        let bytes = v6.to_sockaddr();
        assert_eq!(bytes.len(), 28);
        assert_eq!(bytes[..2], 10u16.to_ne_bytes());
        assert_eq!(bytes[2..4], [0x1D, 0x2F]);
        assert_eq!(bytes[24..], 3u32.to_ne_bytes());
        for address in [v4, v6] {
            assert_eq!(Address::from_sockaddr(&address.to_sockaddr()), Ok(address));
        }
    }

    #[test]
    fn lengths_that_do_not_fit_the_family_are_refused() {
        for (family, expected) in [(AF_INET, 16), (AF_INET6, 28), (AF_IB, 48)] {
            for found in (2..64).filter(|found| *found != expected) {
                let mut bytes = alloc::vec![0; found];
                bytes[..2].copy_from_slice(&family.to_ne_bytes());
                let error = SockaddrError::Length {
                    family,
                    expected,
                    found,
                };
                assert_eq!(Address::from_sockaddr(&bytes), Err(error));
            }
        }
        for length in 0..2 {
            assert_eq!(
                Address::from_sockaddr(&[2][..length]),
                Err(SockaddrError::NoFamily { length })
            );
        }
        assert_eq!(
            Address::from_sockaddr(&1u16.to_ne_bytes()),
            Err(SockaddrError::Family(1))
        );
    }
}
