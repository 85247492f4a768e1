//! The machine's network interfaces and their addresses, by `getifaddrs(3)`.

#![allow(unsafe_code, reason = "getifaddrs(3) and ioctl(2)")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use portolan_provider::{Error, Result, Step};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use portolan_port_sharing::room::{self, with_room};

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// Name, such as `eth0`.
    pub(crate) name: String,
    /// Linux's index.
    pub(crate) index: u32,
    /// Largest IP packet.
    pub(crate) mtu: u32,
    /// Hardware address, if it has one of Ethernet's length.
    pub(crate) mac: Option<[u8; 6]>,
    /// Whether it is up and running.
    pub(crate) running: bool,
    /// Its addresses, in the kernel's order.
    pub(crate) addresses: Vec<IpAddr>,
}

/// Attempts to read the interfaces while none is renamed or removed in between.
const READINGS_MAX: u32 = 8;

/// The interfaces by index, including those without an IP address.
///
/// # Errors
/// `Os` if the system does not list them, or if names change faster than they can be read.
pub(crate) fn list() -> Result<Vec<Interface>> {
    let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
    let query = with_room(|| socket_with(family, SocketType::DGRAM, flags, None))
        .map_err(|errno| os_error("socket", errno))?;
    list_asking(|name| interface_mtu(&query, name))
}

/// As [`list`]. `mtu_of` returns the MTU of the interface that currently has a name.
fn list_asking(mtu_of: impl Fn(&CStr) -> Option<u32>) -> Result<Vec<Interface>> {
    for _ in 0..READINGS_MAX {
        // An interface may be removed or renamed during the reading. Leaving it out would report it as removed, so
        // read everything again.
        if let Some(interfaces) = read_once(&mtu_of)? {
            return Ok(interfaces);
        }
    }
    Err(os_error("ioctl (SIOCGIFMTU)", Errno::NODEV))
}

/// Reads the interfaces once. Returns `None` if an interface of the list has lost its name.
fn read_once(mtu_of: impl Fn(&CStr) -> Option<u32>) -> Result<Option<Vec<Interface>>> {
    let list = AddressList::read()?;
    // Every interface has an entry of its own, which contains its index.
    let mut found: BTreeMap<CString, Interface> = BTreeMap::new();
    for entry in list.iter() {
        let (Some(name), Some(index)) = (entry.interface_name(), entry.link_index()) else {
            continue;
        };
        let Some(mtu) = mtu_of(&name) else {
            return Ok(None);
        };
        let interface = Interface {
            name: name.to_string_lossy().into_owned(),
            index,
            mtu,
            mac: None,
            running: entry.is_running(),
            addresses: Vec::new(),
        };
        found.insert(name, interface);
    }
    for entry in list.iter() {
        // IPv4 addresses have labels, which begin with the interface's name only by convention.
        let named = entry.interface_name().and_then(|name| found.get_mut(&name));
        match (named, entry.address()) {
            (Some(interface), Some(EntryAddress::Ip(ip))) => interface.addresses.push(ip),
            (Some(interface), Some(EntryAddress::Mac(mac))) => interface.mac = Some(mac),
            _ => {}
        }
    }
    let mut interfaces: Vec<_> = found.into_values().collect();
    interfaces.sort_unstable_by_key(|interface| interface.index);
    Ok(Some(interfaces))
}

fn interface_mtu(query: &OwnedFd, name: &CStr) -> Option<u32> {
    // SAFETY: `ifreq` is plain data, for which zeros are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.to_bytes();
    if bytes.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    // SAFETY: `request` is a valid `ifreq` with a name ending in NUL, which the call reads and writes.
    let done = unsafe { libc::ioctl(query.as_raw_fd(), libc::SIOCGIFMTU, &mut request) };
    if done != 0 {
        return None;
    }
    // SAFETY: SIOCGIFMTU succeeded, so this is the field it filled.
    u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
}

/// The list that `getifaddrs` allocated.
struct AddressList {
    head: *mut libc::ifaddrs,
}

impl AddressList {
    fn read() -> Result<Self> {
        let mut head = std::ptr::null_mut();
        // SAFETY: the call stores the head of a list that it allocates.
        if unsafe { libc::getifaddrs(&mut head) } != 0 {
            let error = std::io::Error::last_os_error();
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            return Err(os_error("getifaddrs", errno));
        }
        Ok(Self { head })
    }

    fn iter(&self) -> impl Iterator<Item = Entry<'_>> {
        let mut next: *const libc::ifaddrs = self.head;
        std::iter::from_fn(move || {
            // SAFETY: `next` is null or an entry of the list, which lives as long as `self`.
            let entry = unsafe { next.as_ref() }?;
            next = entry.ifa_next;
            Some(Entry(entry))
        })
    }
}

impl Drop for AddressList {
    fn drop(&mut self) {
        // SAFETY: the list came from `getifaddrs` and is freed once.
        unsafe { libc::freeifaddrs(self.head) };
    }
}

struct Entry<'a>(&'a libc::ifaddrs);

enum EntryAddress {
    Ip(IpAddr),
    Mac([u8; 6]),
}

impl Entry<'_> {
    /// The interface's name, without the suffix that an address label may have (`eth0:1`).
    fn interface_name(&self) -> Option<CString> {
        if self.0.ifa_name.is_null() {
            return None;
        }
        // SAFETY: a name of the list is a string ending in NUL that lives as long as the list.
        let name = unsafe { CStr::from_ptr(self.0.ifa_name) };
        let name = name.to_bytes().split(|byte| *byte == b':').next()?;
        CString::new(name).ok()
    }

    fn is_running(&self) -> bool {
        let wanted = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
        self.0.ifa_flags & wanted == wanted
    }

    /// The interface's index, if the entry describes the interface itself (packet(7)).
    fn link_index(&self) -> Option<u32> {
        let address = self.0.ifa_addr;
        // SAFETY: not null, and every socket address begins with its family.
        let is_link =
            !address.is_null() && i32::from(unsafe { (*address).sa_family }) == libc::AF_PACKET;
        // SAFETY: its family says that it is a `sockaddr_ll`; read without assuming alignment.
        let link = is_link.then(|| unsafe { address.cast::<libc::sockaddr_ll>().read_unaligned() });
        u32::try_from(link?.sll_ifindex).ok()
    }

    fn address(&self) -> Option<EntryAddress> {
        let address = self.0.ifa_addr;
        if address.is_null() {
            return None;
        }
        // SAFETY: not null, and every socket address begins with its family.
        match i32::from(unsafe { (*address).sa_family }) {
            libc::AF_INET => {
                // SAFETY: its family says that it is a `sockaddr_in`; read without assuming alignment.
                let inet = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
                Some(EntryAddress::Ip(
                    Ipv4Addr::from(inet.sin_addr.s_addr.to_ne_bytes()).into(),
                ))
            }
            libc::AF_INET6 => {
                // SAFETY: its family says that it is a `sockaddr_in6`; read without assuming alignment.
                let inet = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
                Some(EntryAddress::Ip(
                    Ipv6Addr::from(inet.sin6_addr.s6_addr).into(),
                ))
            }
            libc::AF_PACKET => {
                // SAFETY: its family says that it is a `sockaddr_ll`; read without assuming alignment.
                let link = unsafe { address.cast::<libc::sockaddr_ll>().read_unaligned() };
                let mac = *link.sll_addr.first_chunk::<6>()?;
                (link.sll_halen == 6 && mac != [0; 6]).then_some(EntryAddress::Mac(mac))
            }
            _ => None,
        }
    }
}

fn os_error(call: &'static str, errno: Errno) -> Error {
    Error::new(Step::OpenDevice, room::cause(call, errno))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn an_interface_renamed_during_its_query_is_queried_again() {
        let asked = Cell::new(0);
        let mtu_of = |_: &CStr| {
            asked.set(asked.get() + 1);
            (asked.get() > 2).then_some(1500)
        };
        let names = |interfaces: Vec<Interface>| -> Vec<_> {
            interfaces.into_iter().map(|found| found.name).collect()
        };
        assert_eq!(names(list_asking(mtu_of).unwrap()), names(list().unwrap()));
    }

    #[test]
    fn endlessly_changing_names_are_an_error_and_not_an_empty_list() {
        let refused = list_asking(|_| None).unwrap_err();
        assert_eq!(refused.errno(), libc::ENODEV);
    }

    #[test]
    fn the_loopback_interface_is_listed_with_its_address_and_mtu() {
        let interfaces = list().unwrap();
        let loopback = interfaces
            .iter()
            .find(|interface| interface.addresses.contains(&Ipv4Addr::LOCALHOST.into()))
            .expect("this machine has no 127.0.0.1");
        assert!(loopback.running);
        assert!(loopback.mtu >= 1280, "{loopback:?}");
        assert_ne!(loopback.index, 0);
        assert_eq!(loopback.mac, None);
    }
}
