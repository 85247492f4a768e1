//! Network interfaces, which identify iWARP devices: such a device's GID is the hardware address of its interface,
//! padded with zeros, and the kernel compares exactly that (`iw_query_gid`, `cma_acquire_dev_by_src_ip`).

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use portolan_wire::addr::Gid;

const HARDWARE_ADDRESS_BYTES: usize = 6;

/// A snapshot of the machine's interfaces.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    /// Index, name and hardware address.
    links: Vec<(u32, String, [u8; HARDWARE_ADDRESS_BYTES])>,
    /// Name of an interface, and one of its addresses.
    addresses: Vec<(String, IpAddr)>,
}

impl Interfaces {
    /// The current interfaces; empty if the kernel does not list them.
    pub(crate) fn now() -> Self {
        let mut found = Self::default();
        for entry in getifaddrs().into_iter().flatten() {
            let Some(address) = entry.address else {
                continue;
            };
            if let Some(link) = address.as_link_addr() {
                let index = u32::try_from(link.ifindex()).unwrap_or(0);
                let hardware = link.addr().unwrap_or_default();
                found.links.push((index, entry.interface_name, hardware));
            } else if let Some(ip) = ip_of(&address) {
                found.addresses.push((entry.interface_name, ip));
            }
        }
        found
    }

    /// The interface of an iWARP device's GID.
    pub(crate) fn index_of(&self, gid: Gid) -> Option<u32> {
        self.link_of(gid).map(|(index, _)| index)
    }

    /// Whether the interface of an iWARP device has the address. `gid` is the device's.
    pub(crate) fn has(&self, gid: Gid, ip: IpAddr) -> bool {
        self.link_of(gid).is_some_and(|(_, name)| {
            let mut addresses = self.addresses.iter();
            addresses.any(|(owner, address)| owner == name && *address == ip)
        })
    }

    fn link_of(&self, gid: Gid) -> Option<(u32, &String)> {
        let (hardware, rest) = gid.0.split_at(HARDWARE_ADDRESS_BYTES);
        let is_hardware = rest.iter().all(|byte| *byte == 0) && hardware != [0; 6];
        let mut links = self.links.iter();
        let link = links.find(|(_, _, address)| is_hardware && address == hardware);
        link.map(|(index, name, _)| (*index, name))
    }
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Interfaces {
        Interfaces {
            links: vec![
                (1, "lo".into(), [0; 6]),
                (2, "eth0".into(), [2, 1, 2, 3, 4, 5]),
                (3, "eth1".into(), [2, 1, 2, 3, 4, 6]),
            ],
            addresses: vec![
                ("lo".into(), [127, 0, 0, 1].into()),
                ("eth1".into(), [10, 0, 0, 1].into()),
            ],
        }
    }

    #[test]
    fn an_iwarp_device_has_the_interface_whose_hardware_address_is_its_gid_and_the_addresses_there()
    {
        let mut gid = Gid([0; 16]);
        gid.0[..6].copy_from_slice(&[2, 1, 2, 3, 4, 6]);
        assert_eq!(two().index_of(gid), Some(3));
        assert!(two().has(gid, [10, 0, 0, 1].into()));
        assert!(!two().has(gid, [127, 0, 0, 1].into()));
        gid.0[5] = 5;
        assert!(
            !two().has(gid, [10, 0, 0, 1].into()),
            "the address is eth1's"
        );
        gid.0[15] = 1;
        assert_eq!(two().index_of(gid), None, "an address of InfiniBand's");
        assert_eq!(two().index_of(Gid([0; 16])), None, "lo has no hardware");
    }

    #[test]
    fn the_interfaces_of_this_machine_are_listed_with_their_addresses() {
        let now = Interfaces::now();
        assert!(now.links.iter().any(|(_, name, _)| name == "lo"));
        let loopback = ("lo".to_owned(), IpAddr::from([127, 0, 0, 1]));
        assert!(now.addresses.contains(&loopback));
    }
}
