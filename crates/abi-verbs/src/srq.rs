//! Shared receive queues.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use portolan_provider::traits::Srq as ProviderSrq;
use portolan_provider::verbs;
use rustix::io::Errno;

use crate::acks::{Acks, FRESH, Reported};
use crate::guard::{Result, errno_of, number, pointer};
use crate::layout::*;
use crate::object::{Held, Kind, Users, end, make, next_handle, own};
use crate::post;
use crate::raisers::{Raiser, Raisers};

/// A shared receive queue.
pub(crate) struct OwnSrq {
    pub(crate) srq: Arc<dyn ProviderSrq>,
    pub(crate) users: Users,
    pub(crate) reported: Reported,
    /// The context's; the context may be closed first.
    raisers: Arc<Raisers>,
    _held: [Option<Held>; 3],
}

impl Kind for Srq {
    type Whole = Self;
    type Own = OwnSrq;
}

/// Creates a shared receive queue and writes its actual sizes to the attributes.
///
/// # Errors
/// `EINVAL` for sizes beyond the device's.
///
/// # Safety
/// The domain is one of ours.
pub(crate) unsafe fn create(
    pd: *mut Pd,
    srq_context: *mut c_void,
    attr: &mut SrqAttr,
    xrc: Option<(*mut Xrcd, *mut Cq)>,
) -> Result<*mut Srq> {
    // SAFETY: the caller keeps `pd` alive during this call.
    let domain = unsafe { own(pd) }?;
    let asked = verbs::SrqAttr {
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        // Only a modify arms it.
        srq_limit: 0,
    };
    let xrc = match xrc {
        // SAFETY: the caller keeps them alive during this call.
        Some((xrcd, cq)) => Some(unsafe { (own(xrcd)?, own(cq)?) }),
        None => None,
    };
    let srq = match xrc {
        Some((xrcd, cq)) => {
            let xrcd = &xrcd.domain.xrcd;
            domain.pd.create_xrc_srq(&asked, xrcd, cq.get()?)
        }
        None => domain.pd.create_srq(&asked),
    };
    let srq = srq.map_err(|error| errno_of(&error))?;
    let made = srq.query().map_err(|error| errno_of(&error))?;
    (attr.max_wr, attr.max_sge) = (made.max_wr, made.max_sge);
    let srqn = srq.number().0;
    // SAFETY: the domain's context is open.
    let context = unsafe { (*pd).context };
    let (mutex, cond) = FRESH;
    let whole = Srq {
        context,
        srq_context,
        pd,
        handle: next_handle(),
        mutex,
        cond,
        events_completed: 0,
    };
    let own_srq = OwnSrq {
        srq,
        users: Users::default(),
        reported: Reported::default(),
        raisers: Arc::clone(&domain.raisers),
        _held: [
            Some(domain.users.hold()),
            xrc.map(|(xrcd, _)| xrcd.users.hold()),
            xrc.map(|(_, cq)| cq.users.hold()),
        ],
    };
    let srq = make(whole, own_srq);
    domain.raisers.srqs.lock().insert(srqn, Raiser(srq));
    Ok(srq)
}

/// # Errors
/// `EBUSY` while queue pairs use it; `EINVAL` if it is already destroyed, or another thread is destroying it.
///
/// # Safety
/// After success it is only used to acknowledge its events.
pub(crate) unsafe fn destroy(srq: *mut Srq) -> Result<()> {
    let ending = end(srq)?;
    let own_srq = ending.own();
    own_srq.users.check_none()?;
    own_srq.srq.destroy().map_err(|error| errno_of(&error))?;
    own_srq.raisers.srqs.lock().remove(&own_srq.srq.number().0);
    // SAFETY: it is alive; otherwise as the caller promises.
    unsafe {
        acks(srq).wait(&own_srq.reported);
        ending.free();
    }
    Ok(())
}

/// # Safety
/// The queue is one of ours.
pub(crate) unsafe fn acks(srq: *mut Srq) -> Acks {
    // SAFETY: as the caller promises; this only computes addresses.
    unsafe {
        Acks {
            mutex: &raw mut (*srq).mutex,
            cond: &raw mut (*srq).cond,
            completed: &raw mut (*srq).events_completed,
        }
    }
}

/// # Safety
/// The queue is one of ours.
pub(crate) unsafe fn modify(srq: *mut Srq, attr: &SrqAttr, mask: u32) -> Result<()> {
    if mask & !(SRQ_MAX_WR | SRQ_LIMIT) != 0 {
        return Err(Errno::INVAL);
    }
    let given = |bit, value| (mask & bit != 0).then_some(value);
    // SAFETY: the caller keeps `srq` alive during this call.
    let modified = unsafe { own(srq) }?.srq.modify(
        given(SRQ_MAX_WR, attr.max_wr),
        given(SRQ_LIMIT, attr.srq_limit),
    );
    modified.map_err(|error| errno_of(&error))
}

/// # Safety
/// The queue is one of ours.
pub(crate) unsafe fn query(srq: *mut Srq) -> Result<SrqAttr> {
    // SAFETY: the caller keeps `srq` alive during this call.
    let found = unsafe { own(srq) }?
        .srq
        .query()
        .map_err(|error| errno_of(&error))?;
    Ok(SrqAttr {
        max_wr: found.max_wr,
        max_sge: found.max_sge,
        srq_limit: found.srq_limit,
    })
}

/// `create_srq_ex` of the table; supports the basic type and XRC.
pub(crate) unsafe extern "C" fn create_extended(
    _context: *mut Context,
    attr: *mut SrqInitAttrEx,
) -> *mut Srq {
    pointer(|| {
        // SAFETY: the program's structure.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::INVAL)?;
        let mask = attr.comp_mask;
        let srq_type = match mask & SRQ_INIT_ATTR_TYPE {
            0 => SRQT_BASIC,
            _ => attr.srq_type,
        };
        let (needed, xrc) = match srq_type {
            SRQT_BASIC => (SRQ_INIT_ATTR_PD, None),
            SRQT_XRC => {
                let needed = SRQ_INIT_ATTR_PD | SRQ_INIT_ATTR_XRCD | SRQ_INIT_ATTR_CQ;
                (needed, Some((attr.xrcd, attr.cq)))
            }
            _ => return Err(Errno::OPNOTSUPP),
        };
        if mask & !(SRQ_INIT_ATTR_TYPE | needed) != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if mask & needed != needed {
            return Err(Errno::INVAL);
        }
        // SAFETY: the program's domains and queue.
        unsafe { create(attr.pd, attr.srq_context, &mut attr.attr, xrc) }
    })
}

/// `get_srq_num` of the table.
pub(crate) unsafe extern "C" fn get_number(srq: *mut Srq, into: *mut u32) -> c_int {
    number(|| {
        // SAFETY: the program's queue.
        let found = unsafe { own(srq) }?.srq.number().0;
        if into.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the program provides the memory.
        unsafe { into.write(found) };
        Ok(())
    })
}

/// `post_srq_recv` of the table.
pub(crate) unsafe extern "C" fn post_recv(
    srq: *mut Srq,
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: the program's pointers.
    number(|| unsafe {
        let srq = &own(srq)?.srq;
        post::receives(wr, bad, |wr| srq.post_recv(wr))
    })
}

/// As for [`create`].
///
/// # Safety
/// As for [`create`].
pub(crate) unsafe fn create_plain(pd: *mut Pd, attr: *mut SrqInitAttr) -> Result<*mut Srq> {
    // SAFETY: the program's structure.
    let attr = unsafe { attr.as_mut() }.ok_or(Errno::INVAL)?;
    // SAFETY: the caller keeps `pd`; the attributes are its own.
    unsafe { create(pd, attr.srq_context, &mut attr.attr, None) }
}
