//! Network interfaces, which lead from IP addresses to iWARP and InfiniBand ports: the GIDs of these ports contain no IP
//! address, and the kernel compares them with the hardware addresses of interfaces (`cma_acquire_dev_by_src_ip`).
//!
//! * The GID of an iWARP port is the hardware address of its interface, padded with zeros (`iw_query_gid`).
//! * The hardware address of an IPoIB interface is a queue pair number, in four bytes, and the GID of its port (RFC 4391,
//!   9.1.1). A port has an interface for each partition.

use std::net::IpAddr;
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use portolan_wire::addr::Gid;

const ETHERNET_ADDRESS_LEN: usize = 6;
const IPOIB_ADDRESS_LEN: usize = 20;
/// `ARPHRD_INFINIBAND` of the kernel's `if_arp.h`.
const HARDWARE_TYPE_INFINIBAND: u16 = 32;

/// A snapshot of the machine's interfaces.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    links: Vec<Link>,
    /// Name of an interface, and one of its addresses.
    addresses: Vec<(String, IpAddr)>,
}

#[derive(Debug)]
struct Link {
    index: u32,
    name: String,
    /// The GID that an RDMA port has because of the hardware address.
    gid: Option<Gid>,
}

impl Interfaces {
    /// The current interfaces; empty if the kernel does not list them.
    pub(crate) fn now() -> Self {
        let mut found = Self::default();
        for entry in getifaddrs().into_iter().flatten() {
            let Some(address) = entry.address else {
                continue;
            };
            let name = entry.interface_name;
            if let Some(link) = address.as_link_addr() {
                // A socket address is too short for the hardware address of an IPoIB interface.
                let gid = match link.hatype() {
                    HARDWARE_TYPE_INFINIBAND => listed_address(&name).and_then(|at| ipoib_gid(&at)),
                    _ => link.addr().and_then(iwarp_gid),
                };
                let index = u32::try_from(link.ifindex()).unwrap_or(0);
                found.links.push(Link { index, name, gid });
            } else if let Some(ip) = ip_of(&address) {
                found.addresses.push((name, ip));
            }
        }
        found
    }

    /// An interface of the port with this GID.
    pub(crate) fn index_of(&self, gid: Gid) -> Option<u32> {
        self.links_of(gid).next().map(|link| link.index)
    }

    /// The interface of the port with this GID that has the IP address.
    pub(crate) fn index_with(&self, gid: Gid, ip: IpAddr) -> Option<u32> {
        let has = |link: &&Link| {
            let mut addresses = self.addresses.iter();
            addresses.any(|(owner, address)| *owner == link.name && *address == ip)
        };
        self.links_of(gid).find(has).map(|link| link.index)
    }

    fn links_of(&self, gid: Gid) -> impl Iterator<Item = &Link> {
        let links = self.links.iter();
        links.filter(move |link| link.gid == Some(gid))
    }
}

/// The GID of an iWARP port on the interface with this hardware address; `None` for one of zeros, which `lo` has.
fn iwarp_gid(hardware: [u8; ETHERNET_ADDRESS_LEN]) -> Option<Gid> {
    let mut gid = Gid([0; 16]);
    gid.0[..ETHERNET_ADDRESS_LEN].copy_from_slice(&hardware);
    (!gid.is_unspecified()).then_some(gid)
}

/// The hardware address of an interface, as sysfs prints it.
fn listed_address(interface: &str) -> Option<String> {
    let folder = Path::new("/sys/class/net").join(interface);
    std::fs::read_to_string(folder.join("address")).ok()
}

/// The GID in the hardware address of an IPoIB interface, 20 bytes in hexadecimal with colons.
fn ipoib_gid(hardware: &str) -> Option<Gid> {
    let bytes = hardware.trim().split(':');
    let bytes = bytes.map(|byte| u8::from_str_radix(byte, 16).ok());
    let bytes: Vec<u8> = bytes.collect::<Option<_>>()?;
    let bytes: &[u8; IPOIB_ADDRESS_LEN] = bytes.as_slice().try_into().ok()?;
    bytes.last_chunk().map(|gid| Gid(*gid))
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IPOIB: &str = "80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:10:01\n";

    fn link(index: u32, name: &str, gid: Option<Gid>) -> Link {
        let name = name.into();
        Link { index, name, gid }
    }

    fn several() -> Interfaces {
        let ib0 = ipoib_gid(IPOIB);
        Interfaces {
            links: vec![
                link(1, "lo", iwarp_gid([0; 6])),
                link(2, "eth0", iwarp_gid([2, 1, 2, 3, 4, 5])),
                link(3, "eth1", iwarp_gid([2, 1, 2, 3, 4, 6])),
                link(4, "ib0", ib0),
                link(5, "ib0.8001", ib0),
            ],
            addresses: vec![
                ("lo".into(), [127, 0, 0, 1].into()),
                ("eth1".into(), [10, 0, 0, 1].into()),
                ("ib0".into(), [10, 0, 1, 1].into()),
                ("ib0.8001".into(), [10, 0, 2, 1].into()),
            ],
        }
    }

    #[test]
    fn an_iwarp_port_has_the_interface_whose_hardware_address_is_its_gid_and_the_addresses_there() {
        let mut gid = Gid([0; 16]);
        gid.0[..6].copy_from_slice(&[2, 1, 2, 3, 4, 6]);
        let has = |gid, ip: [u8; 4]| several().index_with(gid, ip.into());
        assert_eq!(several().index_of(gid), Some(3));
        assert_eq!(has(gid, [10, 0, 0, 1]), Some(3));
        assert_eq!(has(gid, [127, 0, 0, 1]), None);
        gid.0[5] = 5;
        assert_eq!(has(gid, [10, 0, 0, 1]), None, "the address is eth1's");
        gid.0[15] = 1;
        assert_eq!(several().index_of(gid), None, "a GID of InfiniBand's");
        let zeros = Gid([0; 16]);
        assert_eq!(several().index_of(zeros), None, "lo has no hardware");
    }

    #[test]
    fn an_infiniband_port_has_the_addresses_of_all_its_ipoib_interfaces() {
        let gid = Gid::from_ipv6("fe80::2:c903:0:1001".parse().unwrap());
        assert_eq!(ipoib_gid(IPOIB), Some(gid));
        let has = |gid, ip: [u8; 4]| several().index_with(gid, ip.into());
        assert_eq!(has(gid, [10, 0, 1, 1]), Some(4));
        assert_eq!(has(gid, [10, 0, 2, 1]), Some(5));
        assert_eq!(has(gid, [10, 0, 0, 1]), None, "the address is eth1's");
        let other = Gid::from_ipv6("fe80::2:c903:0:1002".parse().unwrap());
        assert_eq!(has(other, [10, 0, 1, 1]), None);
        for short in ["", "80:00", &IPOIB[3..], "80:zz"] {
            assert_eq!(ipoib_gid(short), None);
        }
    }

    #[test]
    fn the_interfaces_of_this_machine_are_listed_with_their_addresses() {
        let now = Interfaces::now();
        assert!(now.links.iter().any(|link| link.name == "lo"));
        let loopback = ("lo".to_owned(), IpAddr::from([127, 0, 0, 1]));
        assert!(now.addresses.contains(&loopback));
    }
}
