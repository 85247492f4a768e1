//! Network interfaces by name and index, and their flags.

#![allow(unsafe_code, reason = "foreign functions and an ioctl")]

use std::ffi::{CStr, CString, c_char};
use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// `if_nametoindex(3)`: the index of the interface with this name, if it exists.
pub(crate) fn index_of(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name is NUL-terminated and outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => None,
        index => Some(index),
    }
}

/// `if_indextoname(3)`: the name of the interface with this index, if it exists.
pub(crate) fn name_of(index: u32) -> Option<CString> {
    let mut name: [c_char; libc::IF_NAMESIZE] = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has IF_NAMESIZE bytes, the most that the function writes.
    let written = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    if written.is_null() {
        return None;
    }
    // SAFETY: a result that is not null is the buffer, NUL-terminated.
    Some(unsafe { CStr::from_ptr(name.as_ptr()) }.to_owned())
}

/// Whether this interface uses ARP or neighbour discovery.
///
/// Loopback, point-to-point links and interfaces marked NOARP do not (netdevice(7)).
///
/// # Errors
/// `ENODEV` if the interface does not exist; otherwise the errno of SIOCGIFFLAGS.
pub(crate) fn resolves_neighbours(index: u32) -> Result<bool, Errno> {
    const WITHOUT: i32 = libc::IFF_LOOPBACK | libc::IFF_POINTOPOINT | libc::IFF_NOARP;
    let name = name_of(index).ok_or(Errno::NODEV)?;
    let mut ifr_name = [0; libc::IFNAMSIZ];
    for (to, from) in ifr_name.iter_mut().zip(name.as_bytes_with_nul()) {
        *to = *from as c_char;
    }
    let mut request = libc::ifreq {
        ifr_name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: 0 },
    };
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: SIOCGIFFLAGS reads the name of an ifreq and writes its flags; `request` is one.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &mut request) };
    if result < 0 {
        return Err(std::io::Error::last_os_error()
            .raw_os_error()
            .map_or(Errno::IO, Errno::from_raw_os_error));
    }
    // SAFETY: the ioctl succeeded, so the union holds the flags.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(i32::from(flags) & WITHOUT == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_a_name_an_index_and_no_neighbours() {
        let index = index_of("lo").expect("every machine has lo");
        assert_eq!(name_of(index).as_deref(), Some(c"lo"));
        assert_eq!(resolves_neighbours(index), Ok(false));
    }

    #[test]
    fn a_missing_interface_is_a_distinct_error() {
        assert_eq!(index_of("no-such-if"), None);
        assert_eq!(index_of("nul\0inside"), None);
        assert_eq!(name_of(u32::MAX), None);
        assert_eq!(resolves_neighbours(u32::MAX), Err(Errno::NODEV));
    }
}
