//! libc's getaddrinfo(3).

#![allow(unsafe_code, reason = "getaddrinfo and its result list")]

use std::ffi::{CStr, CString};
use std::mem::size_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr;

use super::{
    ADDRESSES_MAX, Eai, Family, NameOptions, NameResult, PlannedService, Reason, SocketType,
};

/// Calls the system's resolver. Blocks.
pub(super) fn ask(
    node: Option<&str>,
    service: PlannedService<'_>,
    options: NameOptions,
) -> Result<Vec<NameResult>, Reason> {
    call(node, service, options)?.collect()
}

/// Calls the system's resolver and only counts its results. Blocks.
pub(super) fn count(
    node: Option<&str>,
    service: PlannedService<'_>,
    options: NameOptions,
) -> Result<usize, Reason> {
    Ok(call(node, service, options)?.count())
}

fn call(
    node: Option<&str>,
    service: PlannedService<'_>,
    options: NameOptions,
) -> Result<List, Reason> {
    let node = node
        .map(CString::new)
        .transpose()
        .map_err(|_| Reason::EmbeddedNul("host"))?;
    let (service, numeric_service) = match service {
        PlannedService::Port(port) => (CString::new(port.to_string()), true),
        PlannedService::Name(name) => (CString::new(name), false),
    };
    let service = service.map_err(|_| Reason::EmbeddedNul("service"))?;
    let hints = hints(options, node.is_some(), numeric_service);

    let mut head = ptr::null_mut();
    let node_ptr = node.as_ref().map_or(ptr::null(), |node| node.as_ptr());
    // SAFETY: both texts are NUL-terminated and outlive the call, `hints` is fully initialized with
    // null pointers, and `head` receives the list.
    let code = unsafe { libc::getaddrinfo(node_ptr, service.as_ptr(), &hints, &mut head) };
    if code != 0 {
        let errno = std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or_default();
        return Err(match Eai::from_code(code, errno) {
            Eai::NoName if options.numeric_host && node.is_some() => Reason::NotNumeric,
            eai => Reason::Resolver(eai),
        });
    }
    Ok(List(head))
}

fn hints(options: NameOptions, has_node: bool, numeric_service: bool) -> libc::addrinfo {
    let mut flags = 0;
    let mut set = |wanted: bool, flag| flags |= if wanted { flag } else { 0 };
    set(options.passive, libc::AI_PASSIVE);
    set(options.numeric_host, libc::AI_NUMERICHOST);
    set(numeric_service, libc::AI_NUMERICSERV);
    // Without a node there is no name to canonicalize, and libc rejects the flag.
    set(options.canonical_name && has_node, libc::AI_CANONNAME);
    set(options.configured_only, libc::AI_ADDRCONFIG);
    libc::addrinfo {
        ai_flags: flags,
        ai_family: match options.family {
            None => libc::AF_UNSPEC,
            Some(Family::V4) => libc::AF_INET,
            Some(Family::V6) => libc::AF_INET6,
        },
        ai_socktype: match options.socket_type {
            SocketType::Stream => libc::SOCK_STREAM,
            SocketType::Datagram => libc::SOCK_DGRAM,
        },
        ai_protocol: 0,
        ai_addrlen: 0,
        ai_addr: ptr::null_mut(),
        ai_canonname: ptr::null_mut(),
        ai_next: ptr::null_mut(),
    }
}

/// A list that getaddrinfo returned; freed when dropped.
struct List(*mut libc::addrinfo);

impl List {
    fn count(&self) -> usize {
        let mut next = self.0;
        let mut count = 0;
        // SAFETY: as in `collect`.
        while let Some(entry) = unsafe { next.as_ref() } {
            next = entry.ai_next;
            count += 1;
        }
        count
    }

    fn collect(self) -> Result<Vec<NameResult>, Reason> {
        let mut results = Vec::new();
        let mut next = self.0;
        // SAFETY: `next` is null or an entry of the list, which `self` owns.
        while let Some(entry) = unsafe { next.as_ref() } {
            next = entry.ai_next;
            let Some(addr) = socket_address(entry) else {
                continue;
            };
            if results.len() == ADDRESSES_MAX {
                return Err(Reason::TooManyAddresses);
            }
            results.push(NameResult {
                addr,
                canonical_name: canonical_name(entry),
            });
        }
        if results.is_empty() {
            Err(Reason::Resolver(Eai::NoData))
        } else {
            Ok(results)
        }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from getaddrinfo, which succeeded, and is freed only here.
        unsafe { libc::freeaddrinfo(self.0) }
    }
}

fn canonical_name(entry: &libc::addrinfo) -> Option<String> {
    if entry.ai_canonname.is_null() {
        return None;
    }
    // SAFETY: libc's canonical name is NUL-terminated and lives as long as the list.
    let name = unsafe { CStr::from_ptr(entry.ai_canonname) };
    Some(name.to_string_lossy().into_owned())
}

/// The entry's address, if it is an IP address.
fn socket_address(entry: &libc::addrinfo) -> Option<SocketAddr> {
    let length = entry.ai_addrlen as usize;
    match entry.ai_family {
        libc::AF_INET if length >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: libc stored a sockaddr_in there, as the family and the length show.
            let addr = unsafe { ptr::read_unaligned(entry.ai_addr.cast::<libc::sockaddr_in>()) };
            let ip = Ipv4Addr::from_bits(u32::from_be(addr.sin_addr.s_addr));
            Some((ip, u16::from_be(addr.sin_port)).into())
        }
        libc::AF_INET6 if length >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: as above, for sockaddr_in6.
            let addr = unsafe { ptr::read_unaligned(entry.ai_addr.cast::<libc::sockaddr_in6>()) };
            let ip = Ipv6Addr::from(addr.sin6_addr.s6_addr);
            let port = u16::from_be(addr.sin6_port);
            Some(SocketAddrV6::new(ip, port, addr.sin6_flowinfo, addr.sin6_scope_id).into())
        }
        _ => None,
    }
}
