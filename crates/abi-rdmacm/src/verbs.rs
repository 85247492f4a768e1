//! The libibverbs of the process. It is looked up when a verb is first needed, so programs that only look up names
//! work without one.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::{CStr, c_void};
use std::mem::offset_of;
use std::ptr::NonNull;

use once_cell::race::OnceBox;
use portolan_kernel::raw::RdmaCmTable;
use portolan_port_sharing::room::with_room;
use rustix::io::Errno;

use crate::guard::{Result, check, made};
use crate::layout::*;

/// [`RdmaCmTable::SYMBOL`] and its version, for C.
const RDMA_CM: &CStr = c"portolan_rdma_cm";
const RDMA_CM_VERSION: &CStr = c"PORTOLAN_1";

/// The process's libibverbs.
///
/// # Errors
/// `ENOSYS` without one, or with one older than rdma-core 33. The reason is printed once. Those of [`library`].
pub(crate) fn verbs() -> Result<&'static Verbs> {
    static FOUND: OnceBox<Option<Verbs>> = OnceBox::new();
    let library = library()?;
    let find = || {
        let found = Verbs::find(library?);
        found.inspect_err(print).ok()
    };
    let found = FOUND.get_or_init(|| Box::new(find()));
    found.as_ref().ok_or(Errno::NOSYS)
}

/// The rdma_cm device of the process's libibverbs. Portolan's own has one for its software devices. With any other
/// libibverbs, the devices and the connection manager are the kernel's.
///
/// # Errors
/// Those of [`library`].
pub(crate) fn rdma_cm() -> Result<Option<&'static RdmaCmTable>> {
    static FOUND: OnceBox<Option<&'static RdmaCmTable>> = OnceBox::new();
    if let Some(found) = FOUND.get() {
        return Ok(*found);
    }
    let library = library()?;
    let find = || {
        let entry = library?.symbol(RDMA_CM, RDMA_CM_VERSION)?;
        // SAFETY: the symbol with this version is such a function.
        let entry = unsafe {
            std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn() -> *const RdmaCmTable>(
                entry,
            )
        };
        // SAFETY: it has no arguments. Its result exists as long as the library, which is never unloaded.
        unsafe { entry().as_ref() }
    };
    Ok(*FOUND.get_or_init(|| Box::new(find())))
}

/// Loads libibverbs. `None` without one, which stays so: the objects that the process then makes are the kernel's.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`, which a later call need not give.
fn library() -> Result<Option<Library>> {
    static LOADED: OnceBox<Option<Library>> = OnceBox::new();
    // Miri loads no libraries.
    if cfg!(miri) {
        return Ok(None);
    }
    if let Some(loaded) = LOADED.get() {
        return Ok(*loaded);
    }
    let load = || match Library::load(Library::IBVERBS) {
        Err(LoadError::NoRoom(errno)) => Err(errno),
        loaded => Ok(loaded),
    };
    let loaded = with_room(load)?;
    Ok(*LOADED.get_or_init(|| Box::new(loaded.inspect_err(print).ok())))
}

fn print(error: &LoadError) {
    eprintln!("librdmacm (portolan): libibverbs.so.1: {error}");
}

/// `ibv_create_qp_ex`, which is inline in the header.
///
/// # Safety
/// Those of `ibv_create_qp_ex`.
pub(crate) unsafe fn create_qp_ex(
    verbs: &Verbs,
    context: *mut Context,
    attr: &mut QpInitAttrEx,
) -> Result<*mut Qp> {
    if attr.comp_mask == QP_INIT_ATTR_PD {
        let plain = std::ptr::from_mut(attr).cast();
        // SAFETY: the longer structure begins as the shorter one does.
        return made(unsafe { (verbs.create_qp)(attr.pd, plain) });
    }
    // SAFETY: the caller's context.
    let extended = unsafe { extended(context, offset_of!(VerbsContext, create_qp_ex)) };
    // SAFETY: the context has this slot.
    let function = extended.and_then(|verbs| unsafe { (*verbs).create_qp_ex });
    let function = function.ok_or(Errno::OPNOTSUPP)?;
    // SAFETY: the caller promises context and attributes.
    made(unsafe { function(context, attr) })
}

/// `ibv_create_srq_ex`, which is inline in the header.
///
/// # Safety
/// Those of `ibv_create_srq_ex`.
pub(crate) unsafe fn create_srq_ex(
    verbs: &Verbs,
    context: *mut Context,
    attr: &mut SrqInitAttrEx,
) -> Result<*mut Srq> {
    let mask = attr.comp_mask;
    let is_basic = mask & SRQ_INIT_ATTR_TYPE == 0 || attr.srq_type == SRQT_BASIC;
    if mask & !SRQ_INIT_ATTR_TYPE == SRQ_INIT_ATTR_PD && is_basic {
        let plain = std::ptr::from_mut(attr).cast();
        // SAFETY: the longer structure begins as the shorter one does.
        return made(unsafe { (verbs.create_srq)(attr.pd, plain) });
    }
    // SAFETY: the caller's context.
    let extended = unsafe { extended(context, offset_of!(VerbsContext, create_srq_ex)) };
    // SAFETY: the context has this slot.
    let function = extended.and_then(|verbs| unsafe { (*verbs).create_srq_ex });
    let function = function.ok_or(Errno::OPNOTSUPP)?;
    // SAFETY: the caller promises context and attributes.
    made(unsafe { function(context, attr) })
}

/// `ibv_open_xrcd` for a private domain, which is inline in the header.
///
/// # Safety
/// Those of `ibv_open_xrcd`.
pub(crate) unsafe fn open_xrcd(context: *mut Context) -> Result<*mut Xrcd> {
    let mut attr = XrcdInitAttr {
        comp_mask: XRCD_INIT_ATTR_FD | XRCD_INIT_ATTR_OFLAGS,
        fd: -1,
        oflags: libc::O_CREAT,
    };
    // SAFETY: the caller's context.
    let extended = unsafe { extended(context, offset_of!(VerbsContext, open_xrcd)) };
    // SAFETY: the context has this slot.
    let function = extended.and_then(|verbs| unsafe { (*verbs).open_xrcd });
    let function = function.ok_or(Errno::OPNOTSUPP)?;
    // SAFETY: the caller promises the context.
    made(unsafe { function(context, &mut attr) })
}

/// `ibv_close_xrcd`, which is inline in the header.
///
/// # Safety
/// Those of `ibv_close_xrcd`.
pub(crate) unsafe fn close_xrcd(xrcd: *mut Xrcd) -> Result<()> {
    // SAFETY: the caller's domain.
    let context = unsafe { (*xrcd).context };
    // SAFETY: as above.
    let extended = unsafe { extended(context, offset_of!(VerbsContext, close_xrcd)) };
    // SAFETY: the context has this slot.
    let function = extended.and_then(|verbs| unsafe { (*verbs).close_xrcd });
    let function = function.ok_or(Errno::OPNOTSUPP)?;
    // SAFETY: the caller promises the domain.
    check(unsafe { function(xrcd) })
}

/// The larger structure that ends with an open device's context, if it contains the slot at `offset`.
///
/// # Safety
/// libibverbs has opened the context.
unsafe fn extended(context: *mut Context, offset: usize) -> Option<*mut VerbsContext> {
    // SAFETY: the caller's context.
    if unsafe { (*context).abi_compat } as usize != ABI_IS_EXTENDED {
        return None;
    }
    let verbs = context.wrapping_byte_sub(offset_of!(VerbsContext, context));
    let verbs = verbs.cast::<VerbsContext>();
    // SAFETY: every extended context has its size right before the plain one.
    let size = unsafe { (&raw const (*verbs).sz).read() };
    (size >= size_of::<VerbsContext>() - offset).then_some(verbs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_of_our_own_libibverbs_is_looked_up_by_name() {
        assert_eq!(RDMA_CM.to_str(), Ok(RdmaCmTable::SYMBOL));
        assert_eq!(RDMA_CM_VERSION.to_str(), Ok(RdmaCmTable::SYMBOL_VERSION));
    }
}
