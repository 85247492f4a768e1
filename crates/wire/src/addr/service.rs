//! Service ids, and the rdma_cm port spaces that they encode.

use core::fmt;

/// A port space of the rdma_cm (`enum rdma_ucm_port_space`), each with its own port numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum PortSpace {
    /// `RDMA_PS_IPOIB`: datagrams to IPoIB multicast groups.
    Ipoib = 0x0002,
    /// `RDMA_PS_TCP`: connected service.
    Tcp = 0x0106,
    /// `RDMA_PS_UDP`: datagram service.
    Udp = 0x0111,
    /// `RDMA_PS_IB`: any service, addressed by native InfiniBand addresses.
    Ib = 0x013F,
}

impl PortSpace {
    /// The port space with this number.
    pub const fn from_value(value: u16) -> Option<PortSpace> {
        Some(match value {
            0x0002 => PortSpace::Ipoib,
            0x0106 => PortSpace::Tcp,
            0x0111 => PortSpace::Udp,
            0x013F => PortSpace::Ib,
            _ => return None,
        })
    }

    /// Its number, as in the `RDMA_PS_*` constants.
    pub const fn value(self) -> u16 {
        self as u16
    }
}

impl fmt::Display for PortSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PortSpace::Ipoib => "ipoib",
            PortSpace::Tcp => "tcp",
            PortSpace::Udp => "udp",
            PortSpace::Ib => "ib",
        })
    }
}

/// A 64-bit service id (IBTA 12.7), which identifies a listener.
///
/// The rdma_cm derives it from a port space and a port: `(port space << 16) | port` (IBTA annex
/// A11).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The service id of a port.
    pub const fn from_port(port_space: PortSpace, port: u16) -> ServiceId {
        ServiceId(((port_space.value() as u64) << 16) | port as u64)
    }

    /// The port space; `None` if the id does not encode one.
    pub const fn port_space(self) -> Option<PortSpace> {
        if self.0 >> 32 != 0 {
            return None;
        }
        PortSpace::from_value((self.0 >> 16) as u16)
    }

    /// The port: the low 16 bits. Meaningful only if there is a
    /// [`port_space`](ServiceId::port_space).
    pub const fn port(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port_space() {
            Some(port_space) => write!(f, "{port_space}:{}", self.port()),
            None => write!(f, "0x{:016x}", self.0),
        }
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceId(0x{:016x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tcp_port_gives_the_id_that_linux_listens_on() {
        let id = ServiceId::from_port(PortSpace::Tcp, 7471);
        assert_eq!(id, ServiceId(0x0000_0000_0106_1D2F));
        assert_eq!((id.port_space(), id.port()), (Some(PortSpace::Tcp), 7471));
        assert_eq!(id.to_string(), "tcp:7471");
    }

    #[test]
    fn a_foreign_id_has_no_port_space_even_if_its_middle_looks_like_one() {
        let id = ServiceId(0x1000_0000_0106_1D2F);
        assert_eq!(id.port_space(), None);
        assert_eq!(id.to_string(), "0x1000000001061d2f");
    }
}
