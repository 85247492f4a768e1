//! `rdma_getaddrinfo` and its list.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use libc::sockaddr;
use once_cell::race::OnceBool;
use portolan::provider::{self, Choice};
use portolan::resolve::Machine;
use portolan_abi_layout::pointers::{In, Out, Text};
use portolan_addrinfo::{AddrInfoError, Hints, Problem, RawHints, get_addrinfo_with};
use portolan_provider::Address;

use crate::guard::{self, errno_of, set_errno};
use crate::layout::{self, AddrInfo, malloc_copy};
use crate::verbs::rdma_cm;

/// `rdma_getaddrinfo`. Returns 0 and a list, or an `EAI_` code, with `errno` for `EAI_SYSTEM`.
pub(crate) fn look_up(
    node: Text,
    service: Text,
    hints: In<AddrInfo>,
    list: Out<*mut AddrInfo>,
) -> c_int {
    if let Err(errno) = list.check() {
        set_errno(errno);
        return libc::EAI_SYSTEM;
    }
    let machine = match machine() {
        Ok(machine) => machine,
        Err(errno) => {
            set_errno(errno);
            return libc::EAI_SYSTEM;
        }
    };
    let found = Question::read(&node, &service, &hints).and_then(|asked| {
        get_addrinfo_with(&machine, asked.node, asked.service, asked.hints.as_ref())
    });
    match found {
        Ok(found) => {
            list.write(chain(found));
            0
        }
        Err(error) => {
            set_errno(errno_of(error.errno()));
            error.code().code()
        }
    }
}

/// Look-ups on this machine, with the devices of the loaded libibverbs.
///
/// # Errors
/// Those of loading it.
pub(crate) fn machine() -> guard::Result<Machine> {
    static PINNED: OnceBool = OnceBool::new();
    let rdma_cm = rdma_cm()?;
    PINNED.get_or_init(|| {
        let choice = match rdma_cm {
            Some(_) => Choice::Software,
            None => Choice::Kernel,
        };
        provider::pin(Some(choice));
        true
    });
    Ok(Machine::new())
}

/// The question, read from C's arguments.
pub(crate) struct Question<'a> {
    pub(crate) node: Option<&'a str>,
    pub(crate) service: Option<&'a str>,
    pub(crate) hints: Option<Hints>,
}

impl<'a> Question<'a> {
    /// # Errors
    /// `EAI_NONAME` for a text that cannot be the name of a host or service; those of the hints.
    pub(crate) fn read(
        node: &'a Text,
        service: &'a Text,
        hints: &In<AddrInfo>,
    ) -> Result<Self, AddrInfoError> {
        // No host or service has such a name.
        let nobodys = |_| AddrInfoError::new(None, None, Problem::UnknownService);
        let text = |text: &'a Text| text.get().map(CStr::to_str).transpose();
        let hints = hints.get().map(|hints| {
            // SAFETY: the pointers of valid hints match their lengths (`In`).
            unsafe { read_hints(hints) }
        });
        Ok(Self {
            node: text(node).map_err(nobodys)?,
            service: text(service).map_err(nobodys)?,
            hints: hints.transpose()?,
        })
    }
}

/// # Safety
/// Each pointer of the hints refers to as many bytes as the hints' length for it.
unsafe fn read_hints(hints: &AddrInfo) -> Result<Hints, AddrInfoError> {
    // SAFETY: each length belongs to its pointer.
    let (src_addr, dst_addr, route, connect) = unsafe {
        (
            bytes(hints.ai_src_addr.cast(), hints.ai_src_len as usize),
            bytes(hints.ai_dst_addr.cast(), hints.ai_dst_len as usize),
            bytes(hints.ai_route, hints.ai_route_len),
            bytes(hints.ai_connect, hints.ai_connect_len),
        )
    };
    RawHints {
        flags: hints.ai_flags,
        family: hints.ai_family,
        qp_type: hints.ai_qp_type,
        port_space: hints.ai_port_space,
        src_addr,
        dst_addr,
        route,
        connect,
    }
    .read()
}

/// # Safety
/// The pointer is null, or points to `length` bytes for the lifetime of the slice.
unsafe fn bytes<'a>(data: *const c_void, length: usize) -> &'a [u8] {
    match data.is_null() {
        true => &[],
        // SAFETY: the caller's promise.
        false => unsafe { std::slice::from_raw_parts(data.cast(), length) },
    }
}

/// Converts the entries to C's list. malloc allocates each part, because the program frees and replaces them.
pub(crate) fn chain(found: Vec<portolan_addrinfo::AddrInfo>) -> *mut AddrInfo {
    found
        .into_iter()
        .rev()
        .fold(std::ptr::null_mut(), |next, info| {
            malloc_copy(&[entry(info, next)])
        })
}

fn entry(info: portolan_addrinfo::AddrInfo, next: *mut AddrInfo) -> AddrInfo {
    let route = info.route.iter().filter_map(|path| path.to_bytes().ok());
    let route: Vec<u8> = route.flatten().collect();
    let (ai_src_addr, ai_src_len) = socket_address(info.src_addr.as_ref());
    let (ai_dst_addr, ai_dst_len) = socket_address(info.dst_addr.as_ref());
    AddrInfo {
        ai_flags: info.flags.bits().cast_signed(),
        ai_family: info.family.number().into(),
        ai_qp_type: info.qp_type as i32,
        ai_port_space: info.port_space.value().into(),
        ai_src_len,
        ai_dst_len,
        ai_src_addr,
        ai_dst_addr,
        ai_src_canonname: canonical_name(info.src_canonname),
        ai_dst_canonname: canonical_name(info.dst_canonname),
        ai_route_len: route.len(),
        ai_route: malloc_copy(&route).cast(),
        ai_connect_len: info.connect.len(),
        ai_connect: malloc_copy(&info.connect).cast(),
        ai_next: next,
    }
}

fn socket_address(address: Option<&Address>) -> (*mut sockaddr, u32) {
    let bytes = address.map(Address::to_sockaddr).unwrap_or_default();
    (malloc_copy(&bytes).cast(), bytes.len() as u32)
}

fn canonical_name(name: Option<String>) -> *mut c_char {
    let name = name.and_then(|name| CString::new(name).ok());
    let bytes = name.map(CString::into_bytes_with_nul).unwrap_or_default();
    malloc_copy(&bytes).cast()
}

/// `rdma_freeaddrinfo`: frees the whole list, including records that the program created. Null is an empty list.
///
/// # Safety
/// Each record and each part of it is null or allocated by malloc, and not used any more.
pub(crate) unsafe fn free(mut list: *mut AddrInfo) {
    while !list.is_null() {
        // SAFETY: each record of the list and each part of it is null or allocated by malloc (`# Safety`).
        unsafe {
            let record = list.read();
            layout::free(record.ai_src_addr);
            layout::free(record.ai_dst_addr);
            layout::free(record.ai_src_canonname);
            layout::free(record.ai_dst_canonname);
            layout::free(record.ai_route);
            layout::free(record.ai_connect);
            layout::free(list);
            list = record.ai_next;
        }
    }
}
