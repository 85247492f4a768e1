//! Devices, ports, protection domains.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::{c_char, c_int, c_void};

use portolan_abi_layout::exports;
use rustix::io::Errno;

use crate::guard::{number, pointer, status, value};
use crate::layout::*;
use crate::object::own;
use crate::{context, device, mr, pd, query};

/// Copies an entry into `size` bytes; the program's structure may be shorter or longer than ours.
///
/// # Safety
/// `into` has `size` bytes.
unsafe fn give_entry(entry: &GidEntry, into: *mut GidEntry, size: usize) {
    let known = size.min(size_of::<GidEntry>());
    // SAFETY: `into` has `size` bytes, and at most an entry's length is copied.
    unsafe {
        into.cast::<u8>().write_bytes(0, size);
        std::ptr::copy_nonoverlapping(
            std::ptr::from_ref(entry).cast::<u8>(),
            into.cast::<u8>(),
            known,
        );
    }
}

exports! {
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device {
        pointer(|| {
            let (list, length) = device::give_list(device::list()?);
            if !count.is_null() {
                // SAFETY: the program provides the memory.
                unsafe { count.write(length) };
            }
            Ok(list)
        })
    }

    fn ibv_free_device_list(list: *mut *mut Device) {
        // SAFETY: the list is one of ours and is not used afterwards.
        value((), || unsafe { device::take_list(list) });
    }

    fn ibv_get_device_name(of: *mut Device) -> *const c_char {
        if of.is_null() {
            return std::ptr::null();
        }
        // SAFETY: the program's device.
        unsafe { (&raw const (*of).name).cast() }
    }

    fn ibv_get_device_guid(of: *mut Device) -> u64 {
        // SAFETY: the program's device.
        value(0, || unsafe { own(of) }.map_or(0, |device| device.guid()))
    }

    fn ibv_get_device_index(of: *mut Device) -> c_int {
        // SAFETY: the program's device.
        value(-1, || unsafe { own(of) }.map_or(-1, |device| device.index() as c_int))
    }

    fn ibv_open_device(of: *mut Device) -> *mut Context {
        // SAFETY: the program's device.
        pointer(|| unsafe { context::open(of) })
    }

    fn ibv_close_device(of: *mut Context) -> c_int {
        // SAFETY: the program's context, which it does not use afterwards.
        number(|| unsafe { context::close(of) })
    }

    fn ibv_query_device(of: *mut Context, into: *mut DeviceAttr) -> c_int {
        number(|| {
            // SAFETY: the program's pointers.
            let attr = unsafe { query::device(of) }?;
            if into.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: the program provides the memory.
            unsafe { into.write(attr) };
            Ok(())
        })
    }

    fn ibv_query_port(of: *mut Context, port_num: u8, into: *mut PortAttr) -> c_int {
        // SAFETY: the program's pointers.
        number(|| unsafe { query::port(of, port_num, into) })
    }

    // This function returns zeros for an empty entry of the table.
    fn ibv_query_gid(of: *mut Context, port_num: u8, index: c_int, into: *mut Gid) -> c_int {
        status(|| {
            let index = u32::try_from(index).map_err(|_| Errno::INVAL)?;
            // SAFETY: the program's pointers.
            let gid = match unsafe { query::gid(of, port_num.into(), index) } {
                Ok(entry) => entry.gid,
                Err(Errno::NODATA) => Gid { raw: [0; 2] },
                Err(errno) => return Err(errno),
            };
            if into.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: the program provides the memory.
            unsafe { into.write(gid) };
            Ok(0)
        })
    }

    fn _ibv_query_gid_ex(
        of: *mut Context,
        port_num: u32,
        index: u32,
        into: *mut GidEntry,
        flags: u32,
        size: usize
    ) -> c_int {
        number(|| {
            if flags != 0 || into.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: the program's pointers.
            unsafe { give_entry(&query::gid(of, port_num, index)?, into, size) };
            Ok(())
        })
    }

    fn _ibv_query_gid_table(
        of: *mut Context,
        into: *mut GidEntry,
        room: usize,
        flags: u32,
        size: usize
    ) -> isize {
        let given = || {
            if flags != 0 || (into.is_null() && room > 0) || size == 0 {
                return Err(Errno::INVAL);
            }
            // SAFETY: the program's context.
            let gids = unsafe { query::gids(of) }?;
            if gids.len() > room {
                return Err(Errno::INVAL);
            }
            for (at, entry) in gids.iter().enumerate() {
                // SAFETY: the program's array has room for that many entries of this size.
                unsafe { give_entry(entry, into.byte_add(at * size), size) };
            }
            Ok(gids.len() as isize)
        };
        let failed = |errno: Errno| -(errno.raw_os_error() as isize);
        value(failed(Errno::IO), || given().unwrap_or_else(failed))
    }

    fn ibv_query_gid_type(of: *mut Context, port_num: u8, index: u32, into: *mut u32) -> c_int {
        status(|| {
            // SAFETY: the program's pointers.
            let found = unsafe { query::gid_type(of, port_num, index) }?;
            if into.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: the program provides the memory.
            unsafe { into.write(found) };
            Ok(0)
        })
    }

    fn ibv_query_pkey(of: *mut Context, port_num: u8, index: c_int, into: *mut u16) -> c_int {
        status(|| {
            // SAFETY: the program's pointers.
            let pkey = unsafe { query::pkey(of, port_num, index) }?;
            if into.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: the program provides the memory.
            unsafe { into.write(pkey) };
            Ok(0)
        })
    }

    fn ibv_get_pkey_index(of: *mut Context, port_num: u8, pkey: u16) -> c_int {
        // SAFETY: the program's context.
        status(|| unsafe { query::pkey_index(of, port_num, pkey) })
    }

    fn ibv_alloc_pd(of: *mut Context) -> *mut Pd {
        // SAFETY: the program's context.
        pointer(|| unsafe { pd::alloc(of) })
    }

    fn ibv_dealloc_pd(of: *mut Pd) -> c_int {
        // SAFETY: the program's domain, which it does not use after success.
        number(|| unsafe { pd::dealloc(of) })
    }

    fn ibv_import_device(descriptor: c_int) -> *mut Context {
        // SAFETY: the program's descriptor, which is ours after success.
        pointer(|| unsafe { context::import(descriptor) })
    }

    fn ibv_import_pd(of: *mut Context, handle: u32) -> *mut Pd {
        // SAFETY: the program's context.
        pointer(|| unsafe { pd::import(of, handle) })
    }

    fn ibv_unimport_pd(of: *mut Pd) {
        // SAFETY: the program's domain, which it does not use afterwards.
        number(|| unsafe { pd::unimport(of) });
    }

    fn ibv_import_mr(of: *mut Pd, handle: u32) -> *mut Mr {
        // SAFETY: the program's domain.
        pointer(|| unsafe { mr::import(of, handle) })
    }

    fn ibv_unimport_mr(of: *mut Mr) {
        // SAFETY: the program's region, which it does not use afterwards.
        number(|| unsafe { mr::unimport(of) });
    }

    // The devices have no device memory.
    fn ibv_import_dm(_of: *mut Context, _handle: u32) -> *mut c_void {
        pointer(|| Err(Errno::OPNOTSUPP))
    }

    fn ibv_unimport_dm(_of: *mut c_void) {}
}
