//! The header that the rdma_cm puts before the private data of REQ and SIDR REQ (IBTA annex A11,
//! `struct cma_hdr`). It carries the IP addresses to the listener. AF_IB connections have none.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{At, Bits, Value, expect, head, layout, put};
use crate::{Error, Result};

/// Length of the header, in bytes.
pub const LEN: usize = 36;

/// The only defined version.
pub const VERSION: u8 = 0;

layout! {
    /// IP addressing of a connection request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CmaHeader("CMA header", LEN) {
        /// The caller's address family: 4 or 6.
        pub ip_version: u8 = Bits<1, 4, 4>,
        /// The caller's port, host order. (The listener's is in the service id.)
        pub port: u16 = At<2>,
        /// The caller's address in network order; an IPv4 address is in the last four bytes, after
        /// zeros.
        pub src: [u8; 16] = At<4>,
        /// The listener's address, in the same layout.
        pub dst: [u8; 16] = At<20>,
    }
}

impl CmaHeader {
    /// Length of the header, in bytes.
    pub const LEN: usize = LEN;

    /// The header for a connection from `src` and `port` to `dst`; `None` if the families differ.
    pub const fn new(src: IpAddr, port: u16, dst: IpAddr) -> Option<CmaHeader> {
        let (ip_version, src, dst) = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => (4, widen(src), widen(dst)),
            (IpAddr::V6(src), IpAddr::V6(dst)) => (6, src.octets(), dst.octets()),
            _ => return None,
        };
        Some(CmaHeader {
            ip_version,
            port,
            src,
            dst,
        })
    }

    /// The caller's address.
    pub const fn src_addr(&self) -> IpAddr {
        self.addr(self.src)
    }

    /// The listener's address.
    pub const fn dst_addr(&self) -> IpAddr {
        self.addr(self.dst)
    }

    const fn addr(&self, bytes: [u8; 16]) -> IpAddr {
        if self.ip_version == 4 {
            let [.., a, b, c, d] = bytes;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        } else {
            IpAddr::V6(Ipv6Addr::from_bits(u128::from_be_bytes(bytes)))
        }
    }

    /// Reads the header at the front of private data.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`]; [`Error::Unsupported`] for a version other than [`VERSION`] or an IP
    /// version other than 4 and 6. A listener rejects such a request.
    pub fn parse(input: &[u8]) -> Result<CmaHeader> {
        let bytes: &[u8; LEN] = head("CMA header", input)?;
        expect("CMA header version", bytes[0], VERSION)?;
        let header = CmaHeader::read(bytes);
        match header.ip_version {
            4 | 6 => Ok(header),
            other => Err(Error::Unsupported {
                what: "CMA header IP version",
                got: other.into(),
            }),
        }
    }

    /// Writes the header at the front of `out`; returns [`LEN`].
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`]; [`Error::OutOfRange`] for an `ip_version` above 15.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize> {
        let mut bytes = [0; LEN];
        bytes[0] = VERSION;
        self.write("CMA header", &mut bytes)?;
        put("CMA header", &bytes, out)
    }
}

const fn widen(addr: Ipv4Addr) -> [u8; 16] {
    let [a, b, c, d] = addr.octets();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
}

impl fmt::Display for CmaHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} port {} -> {}",
            self.src_addr(),
            self.port,
            self.dst_addr()
        )
    }
}
