//! Memory windows.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use portolan_provider::traits::Mw as ProviderMw;
use portolan_provider::verbs::{MwType, SendFlags};
use rustix::io::Errno;

use crate::guard::{errno_of, number, pointer};
use crate::layout::{Mw, MwBind, Pd, Qp};
use crate::object::{Held, Kind, end, make, next_handle, own};
use crate::post;

/// A memory window.
pub(crate) struct OwnMw {
    mw: Arc<dyn ProviderMw>,
    _pd: Held,
}

impl Kind for Mw {
    type Whole = Self;
    type Own = OwnMw;
}

/// `alloc_mw` of the table.
pub(crate) unsafe extern "C" fn alloc(pd: *mut Pd, kind: c_uint) -> *mut Mw {
    pointer(|| {
        // SAFETY: the program's domain.
        let domain = unsafe { own(pd) }?;
        let mw_type = match kind {
            1 => MwType::Type1,
            2 => MwType::Type2,
            _ => return Err(Errno::INVAL),
        };
        let mw = domain
            .pd
            .alloc_mw(mw_type)
            .map_err(|error| errno_of(&error))?;
        let whole = Mw {
            // SAFETY: a domain of ours.
            context: unsafe { (*pd).context },
            pd,
            rkey: mw.rkey(),
            handle: next_handle(),
            r#type: kind,
        };
        let _pd = domain.users.hold();
        Ok(make(whole, OwnMw { mw, _pd }))
    })
}

/// `dealloc_mw` of the table.
pub(crate) unsafe extern "C" fn dealloc(mw: *mut Mw) -> c_int {
    number(|| {
        let ending = end(mw)?;
        let done = ending.own().mw.deallocate();
        done.map_err(|error| errno_of(&error))?;
        // SAFETY: the program does not use it afterwards.
        unsafe { ending.free() };
        Ok(())
    })
}

/// `bind_mw` of the table, for windows of type 1: changes the window's key.
pub(crate) unsafe extern "C" fn bind(qp: *mut Qp, mw: *mut Mw, bind: *mut MwBind) -> c_int {
    number(|| {
        // SAFETY: the program's pointers.
        let (own_qp, own_mw, bind) = unsafe { (own(qp)?, own(mw)?, bind.as_ref()) };
        let bind = bind.ok_or(Errno::INVAL)?;
        // SAFETY: the program's region.
        let window = unsafe { post::window(&bind.bind_info) }?;
        let flags = SendFlags::from_bits_truncate(bind.send_flags);
        let bound = own_qp.qp.bind_mw(&own_mw.mw, bind.wr_id, &window, flags);
        let rkey = bound.map_err(|error| errno_of(&error))?;
        // SAFETY: the program only reads the field.
        unsafe { (&raw mut (*mw).rkey).write(rkey) };
        Ok(())
    })
}
