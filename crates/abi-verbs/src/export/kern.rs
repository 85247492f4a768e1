//! Conversions of the kernel's structures, and link-layer addresses.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::c_int;

use portolan_abi_layout::exports;
use portolan_kernel::raw::{self, Fields};
use rustix::io::Errno;

use crate::guard::{status, value};
use crate::layout::*;
use crate::{kern, link};

/// No VLAN.
const NO_VLAN: u16 = 0xFFFF;

/// Writes a structure converted from another one.
///
/// # Safety
/// The pointers are null or a program's.
unsafe fn copy<F, T>(into: *mut T, from: *const F, made: impl FnOnce(&F) -> T) {
    value((), || {
        // SAFETY: each pointer is null, or valid and writable.
        unsafe {
            if let Some(from) = from.as_ref()
                && !into.is_null()
            {
                into.write(made(from));
            }
        }
    });
}

exports! {
    fn ibv_copy_ah_attr_from_kern(into: *mut AhAttr, from: *const [u8; raw::AhAttr::SIZE]) {
        // SAFETY: the program's pointers.
        unsafe { copy(into, from, |bytes| (&raw::AhAttr::from_bytes(bytes)).into()) };
    }

    fn ibv_copy_qp_attr_from_kern(into: *mut QpAttr, from: *const [u8; raw::QpAttr::SIZE]) {
        // SAFETY: the program's pointers.
        unsafe { copy(into, from, |bytes| (&raw::QpAttr::from_bytes(bytes)).into()) };
    }

    fn ibv_copy_path_rec_from_kern(into: *mut SaPathRec, from: *const KernPath) {
        // SAFETY: the program's pointers.
        unsafe { copy(into, from, kern::path) };
    }

    fn ibv_copy_path_rec_to_kern(into: *mut KernPath, from: *const SaPathRec) {
        // SAFETY: the program's pointers.
        unsafe { copy(into, from, kern::path_to_kern) };
    }

    fn ibv_resolve_eth_l2_from_gid(
        of: *mut Context,
        attr: *mut AhAttr,
        into: *mut [u8; 6],
        into_vlan: *mut u16
    ) -> c_int {
        status(|| {
            // SAFETY: the program's pointers.
            let found = unsafe { link::resolve(of, attr.as_ref().ok_or(Errno::INVAL)?) }?;
            if into.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: as above. The interface's own VLAN is not reported, because packets are sent over UDP.
            unsafe {
                into.write(found);
                if !into_vlan.is_null() {
                    into_vlan.write(NO_VLAN);
                }
            }
            Ok(0)
        })
    }
}
