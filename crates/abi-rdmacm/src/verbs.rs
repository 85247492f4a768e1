//! The libibverbs that the process has, or would have: found when a verb is first needed, so that a program
//! which only asks for names needs none.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::sync::OnceLock;

use portolan_kernel::raw::RdmaCmTable;
use rustix::io::Errno;

use crate::guard::{Result, made};
use crate::layout::*;

const SONAME: &CStr = c"libibverbs.so.1";
/// [`RdmaCmTable::SYMBOL`] and its version, for C.
const RDMA_CM: &CStr = c"portolan_rdma_cm";
const RDMA_CM_VERSION: &CStr = c"PORTOLAN_1";

macro_rules! functions {
    ($($field:ident = $symbol:literal, $version:literal: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// Its functions, by their names without `ibv_`.
        pub(crate) struct Verbs {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        /// Finds all of them, or says which is missing.
        fn find(handle: *mut c_void) -> std::result::Result<Verbs, &'static CStr> {
            Ok(Verbs {
                $($field: {
                    // SAFETY: an open library and two texts of C's.
                    let address = unsafe { libc::dlvsym(handle, $symbol.as_ptr(), $version.as_ptr()) };
                    if address.is_null() {
                        return Err($symbol);
                    }
                    // SAFETY: the symbol of this version has this type in every libibverbs.
                    unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($arg),*) $(-> $result)?,
                        >(address)
                    }
                },)*
            })
        }
    };
}

functions! {
    get_device_list = c"ibv_get_device_list", c"IBVERBS_1.1": fn(*mut c_int) -> *mut *mut Device;
    free_device_list = c"ibv_free_device_list", c"IBVERBS_1.1": fn(*mut *mut Device);
    get_device_guid = c"ibv_get_device_guid", c"IBVERBS_1.1": fn(*mut Device) -> u64;
    get_device_name = c"ibv_get_device_name", c"IBVERBS_1.1": fn(*mut Device) -> *const c_char;
    get_device_index = c"ibv_get_device_index", c"IBVERBS_1.9": fn(*mut Device) -> c_int;
    open_device = c"ibv_open_device", c"IBVERBS_1.1": fn(*mut Device) -> *mut Context;
    close_device = c"ibv_close_device", c"IBVERBS_1.1": fn(*mut Context) -> c_int;
    query_device = c"ibv_query_device", c"IBVERBS_1.1": fn(*mut Context, *mut DeviceAttr) -> c_int;
    query_port = c"ibv_query_port", c"IBVERBS_1.1": fn(*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid_table = c"_ibv_query_gid_table", c"IBVERBS_1.11":
        fn(*mut Context, *mut GidEntry, usize, u32, usize) -> isize;
    alloc_pd = c"ibv_alloc_pd", c"IBVERBS_1.1": fn(*mut Context) -> *mut Pd;
    dealloc_pd = c"ibv_dealloc_pd", c"IBVERBS_1.1": fn(*mut Pd) -> c_int;
    create_comp_channel = c"ibv_create_comp_channel", c"IBVERBS_1.0":
        fn(*mut Context) -> *mut CompChannel;
    destroy_comp_channel = c"ibv_destroy_comp_channel", c"IBVERBS_1.0":
        fn(*mut CompChannel) -> c_int;
    create_cq = c"ibv_create_cq", c"IBVERBS_1.1":
        fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq = c"ibv_destroy_cq", c"IBVERBS_1.1": fn(*mut Cq) -> c_int;
    create_srq = c"ibv_create_srq", c"IBVERBS_1.1": fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
    destroy_srq = c"ibv_destroy_srq", c"IBVERBS_1.1": fn(*mut Srq) -> c_int;
    create_qp = c"ibv_create_qp", c"IBVERBS_1.1": fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp = c"ibv_modify_qp", c"IBVERBS_1.1": fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp = c"ibv_destroy_qp", c"IBVERBS_1.1": fn(*mut Qp) -> c_int;
    query_ece = c"ibv_query_ece", c"IBVERBS_1.10": fn(*mut Qp, *mut Ece) -> c_int;
    set_ece = c"ibv_set_ece", c"IBVERBS_1.10": fn(*mut Qp, *mut Ece) -> c_int;
    attach_mcast = c"ibv_attach_mcast", c"IBVERBS_1.1": fn(*mut Qp, *const Gid, u16) -> c_int;
    detach_mcast = c"ibv_detach_mcast", c"IBVERBS_1.1": fn(*mut Qp, *const Gid, u16) -> c_int;
}

/// The process's libibverbs.
///
/// # Errors
/// `ENOSYS` without one, or with one older than rdma-core 33; the reason is printed once.
pub(crate) fn verbs() -> Result<&'static Verbs> {
    static LOADED: OnceLock<Option<Verbs>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref().ok_or(Errno::NOSYS)
}

/// The process's libibverbs, open; null without one.
fn open() -> *mut c_void {
    // SAFETY: the name is a text of C's; the library's initialization is that of every program with it. It is
    // never unloaded, so its functions stay.
    unsafe { libc::dlopen(SONAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }
}

/// The rdma_cm device of the process's libibverbs: Portolan's own has one for its software devices. Others' devices
/// are the kernel's, and so is their connection manager.
pub(crate) fn rdma_cm() -> Option<&'static RdmaCmTable> {
    static FOUND: OnceLock<Option<&'static RdmaCmTable>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let handle = open();
        if handle.is_null() {
            return None;
        }
        // SAFETY: an open library and two texts of C's.
        let entry = unsafe { libc::dlvsym(handle, RDMA_CM.as_ptr(), RDMA_CM_VERSION.as_ptr()) };
        if entry.is_null() {
            return None;
        }
        // SAFETY: the symbol of this version is such a function.
        let entry = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const RdmaCmTable>(entry)
        };
        // SAFETY: it takes nothing, and what it gives stays as long as the library, which is never unloaded.
        unsafe { entry().as_ref() }
    })
}

fn load() -> Option<Verbs> {
    let handle = open();
    if handle.is_null() {
        eprintln!("librdmacm (portolan): {}", loaders_reason());
        return None;
    }
    find(handle)
        .inspect_err(|symbol| {
            let symbol = symbol.to_string_lossy();
            eprintln!("librdmacm (portolan): libibverbs.so.1 has no {symbol}: it is too old");
        })
        .ok()
}

fn loaders_reason() -> String {
    // SAFETY: the loader's last words are good until its next call in this thread, and copied before.
    unsafe {
        let text: *const c_char = libc::dlerror();
        if text.is_null() {
            return "libibverbs.so.1 cannot be loaded".into();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

impl Verbs {
    /// `ibv_create_qp_ex`, which the header has inline.
    ///
    /// # Safety
    /// As for it.
    pub(crate) unsafe fn create_qp_ex(
        &self,
        context: *mut Context,
        attr: &mut QpInitAttrEx,
    ) -> Result<*mut Qp> {
        if attr.comp_mask == QP_INIT_ATTR_PD {
            let plain = std::ptr::from_mut(attr).cast();
            // SAFETY: the longer structure begins as the shorter one does.
            return made(unsafe { (self.create_qp)(attr.pd, plain) });
        }
        // SAFETY: the caller's context.
        let extended = unsafe { extended(context, offset_of!(VerbsContext, create_qp_ex)) };
        // SAFETY: the context has this slot.
        let function = extended.and_then(|verbs| unsafe { (*verbs).create_qp_ex });
        let function = function.ok_or(Errno::OPNOTSUPP)?;
        // SAFETY: as the caller promises.
        made(unsafe { function(context, attr) })
    }

    /// `ibv_create_srq_ex`, which the header has inline.
    ///
    /// # Safety
    /// As for it.
    pub(crate) unsafe fn create_srq_ex(
        &self,
        context: *mut Context,
        attr: &mut SrqInitAttrEx,
    ) -> Result<*mut Srq> {
        let mask = attr.comp_mask;
        let is_basic = mask & SRQ_INIT_ATTR_TYPE == 0 || attr.srq_type == SRQT_BASIC;
        if mask & !SRQ_INIT_ATTR_TYPE == SRQ_INIT_ATTR_PD && is_basic {
            let plain = std::ptr::from_mut(attr).cast();
            // SAFETY: the longer structure begins as the shorter one does.
            return made(unsafe { (self.create_srq)(attr.pd, plain) });
        }
        // SAFETY: the caller's context.
        let extended = unsafe { extended(context, offset_of!(VerbsContext, create_srq_ex)) };
        // SAFETY: the context has this slot.
        let function = extended.and_then(|verbs| unsafe { (*verbs).create_srq_ex });
        let function = function.ok_or(Errno::OPNOTSUPP)?;
        // SAFETY: as the caller promises.
        made(unsafe { function(context, attr) })
    }
}

/// The larger structure that an open device's context is the end of, if it reaches up to the slot at `offset`
/// of our idea of it.
///
/// # Safety
/// The context is one that libibverbs opened.
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
    fn the_entry_of_our_own_libibverbs_is_looked_for_by_its_name() {
        assert_eq!(RDMA_CM.to_str(), Ok(RdmaCmTable::SYMBOL));
        assert_eq!(RDMA_CM_VERSION.to_str(), Ok(RdmaCmTable::SYMBOL_VERSION));
    }
}
