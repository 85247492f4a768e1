//! `rdma_getaddrinfo` and its list.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use libc::{sockaddr, sockaddr_storage};
use portolan_addrinfo::{AddrInfoError, Hints, PathData, Problem, RawHints, get_addrinfo_with};
use portolan_provider::Address;
use rustix::io::Errno;

use crate::guard::set_errno;
use crate::layout::AddrInfo;
use crate::lookup;

/// An entry of the list; C's structure is its beginning, what that points to is behind.
#[repr(C)]
struct Whole {
    c: AddrInfo,
    source: sockaddr_storage,
    destination: sockaddr_storage,
    source_name: Option<CString>,
    destination_name: Option<CString>,
    /// Aligned for the structures in it.
    route: Box<[[u64; PathData::LEN / 8]]>,
    connect: Box<[u8]>,
}

/// `rdma_getaddrinfo`: 0 and a list, or an `EAI_` code, with `errno` for `EAI_SYSTEM`.
///
/// # Safety
/// Null or C's: texts, a structure with what it says, and a place for the list.
pub(crate) unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: *const AddrInfo,
    list: *mut *mut AddrInfo,
) -> c_int {
    if list.is_null() {
        set_errno(Errno::INVAL.raw_os_error());
        return libc::EAI_SYSTEM;
    }
    // SAFETY: as the caller promises.
    let question = unsafe { Question::read(node, service, hints) };
    let found = question.and_then(|asked| {
        let (machine, hints) = (lookup::machine(), asked.hints.as_ref());
        get_addrinfo_with(&machine, asked.node, asked.service, hints)
    });
    match found {
        Ok(found) => {
            // SAFETY: as the caller promises.
            unsafe { list.write(chain(found)) };
            0
        }
        Err(error) => {
            set_errno(error.errno());
            error.code().code()
        }
    }
}

/// What is asked, as C says it.
pub(crate) struct Question<'a> {
    pub(crate) node: Option<&'a str>,
    pub(crate) service: Option<&'a str>,
    pub(crate) hints: Option<Hints>,
}

impl<'a> Question<'a> {
    /// # Errors
    /// `EAI_NONAME` for a text that no host or service can be called; those of the hints.
    ///
    /// # Safety
    /// Null or C's: texts, and a structure with what it says.
    pub(crate) unsafe fn read(
        node: *const c_char,
        service: *const c_char,
        hints: *const AddrInfo,
    ) -> Result<Self, AddrInfoError> {
        // SAFETY: as the caller promises.
        let (node, service, hints) = unsafe { (text(node), text(service), hints.as_ref()) };
        // No host or service is called so.
        let nobodys = |_| AddrInfoError::new(None, None, Problem::UnknownService);
        let (node, service) = (node.map_err(nobodys)?, service.map_err(nobodys)?);
        // SAFETY: as the caller promises.
        let hints = hints
            .map(|hints| unsafe { read_hints(hints) })
            .transpose()?;
        Ok(Self {
            node,
            service,
            hints,
        })
    }
}

unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, std::str::Utf8Error> {
    match text.is_null() {
        true => Ok(None),
        // SAFETY: as the caller promises.
        false => unsafe { CStr::from_ptr(text) }.to_str().map(Some),
    }
}

unsafe fn read_hints(hints: &AddrInfo) -> Result<Hints, AddrInfoError> {
    // SAFETY: as the caller promises.
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

unsafe fn bytes<'a>(data: *const c_void, length: usize) -> &'a [u8] {
    match data.is_null() {
        true => &[],
        // SAFETY: as the caller promises.
        false => unsafe { std::slice::from_raw_parts(data.cast(), length) },
    }
}

/// The entries as C's list.
pub(crate) fn chain(found: Vec<portolan_addrinfo::AddrInfo>) -> *mut AddrInfo {
    found
        .into_iter()
        .rev()
        .fold(std::ptr::null_mut(), |next, info| {
            let whole = Box::into_raw(entry(info));
            // SAFETY: just made. What C's part points to is in the box, which stays where it is.
            unsafe { point(whole, next) };
            whole.cast()
        })
}

fn entry(info: portolan_addrinfo::AddrInfo) -> Box<Whole> {
    let name = |name: Option<String>| name.and_then(|name| CString::new(name).ok());
    let route = info.route.iter().filter_map(|path| path.to_bytes().ok());
    Box::new(Whole {
        c: AddrInfo {
            ai_flags: info.flags.bits().cast_signed(),
            ai_family: info.family.number().into(),
            ai_qp_type: info.qp_type.number().into(),
            ai_port_space: info.port_space.value().into(),
            ai_src_len: length(info.src_addr.as_ref()),
            ai_dst_len: length(info.dst_addr.as_ref()),
            ai_src_addr: std::ptr::null_mut(),
            ai_dst_addr: std::ptr::null_mut(),
            ai_src_canonname: std::ptr::null_mut(),
            ai_dst_canonname: std::ptr::null_mut(),
            ai_route_len: 0,
            ai_route: std::ptr::null_mut(),
            ai_connect_len: 0,
            ai_connect: std::ptr::null_mut(),
            ai_next: std::ptr::null_mut(),
        },
        source: storage(info.src_addr.as_ref()),
        destination: storage(info.dst_addr.as_ref()),
        source_name: name(info.src_canonname),
        destination_name: name(info.dst_canonname),
        route: route.map(words).collect(),
        connect: info.connect.into(),
    })
}

/// # Safety
/// The entry exists.
unsafe fn point(whole: *mut Whole, next: *mut AddrInfo) {
    // SAFETY: as the caller promises; nobody else has it yet.
    let whole = unsafe { &mut *whole };
    let c = &mut whole.c;
    c.ai_next = next;
    if c.ai_src_len > 0 {
        c.ai_src_addr = (&raw mut whole.source).cast::<sockaddr>();
    }
    if c.ai_dst_len > 0 {
        c.ai_dst_addr = (&raw mut whole.destination).cast::<sockaddr>();
    }
    let name = |name: &Option<CString>| {
        let place = name.as_ref().map(|name| name.as_ptr().cast_mut());
        place.unwrap_or(std::ptr::null_mut())
    };
    c.ai_src_canonname = name(&whole.source_name);
    c.ai_dst_canonname = name(&whole.destination_name);
    if !whole.route.is_empty() {
        c.ai_route_len = size_of_val(&*whole.route);
        c.ai_route = whole.route.as_mut_ptr().cast();
    }
    if !whole.connect.is_empty() {
        c.ai_connect_len = whole.connect.len();
        c.ai_connect = whole.connect.as_mut_ptr().cast();
    }
}

fn length(address: Option<&Address>) -> u32 {
    address.map_or(0, |address| address.to_sockaddr().len() as u32)
}

fn storage(address: Option<&Address>) -> sockaddr_storage {
    // SAFETY: the structure is of bytes.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    if let Some(bytes) = address.map(Address::to_sockaddr) {
        assert!(bytes.len() <= size_of::<sockaddr_storage>());
        let place = (&raw mut storage).cast::<u8>();
        // SAFETY: there is room, as just looked.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    }
    storage
}

fn words(bytes: [u8; PathData::LEN]) -> [u64; PathData::LEN / 8] {
    std::array::from_fn(|at| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at * 8..at * 8 + 8]);
        u64::from_ne_bytes(word)
    })
}

/// `rdma_freeaddrinfo`: the whole list; null is none.
///
/// # Safety
/// The list is one of [`look_up`]'s, and nobody uses it any more.
pub(crate) unsafe fn free(mut list: *mut AddrInfo) {
    while !list.is_null() {
        // SAFETY: as the caller promises.
        let whole = unsafe { Box::from_raw(list.cast::<Whole>()) };
        list = whole.c.ai_next;
    }
}
