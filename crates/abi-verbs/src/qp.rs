//! Queue pairs.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::sync::Arc;

use portolan_provider::traits::{Qp as ProviderQp, Srq as ProviderSrq};
use portolan_provider::verbs::{QpAttrMask, QpInit, QpType};
use portolan_provider::{Cause, Error};
use portolan_roce::io::SoftQp;
use portolan_wire::addr::Gid as WireGid;
use rustix::io::Errno;

use crate::acks::{Acks, Reported};
use crate::convert;
use crate::guard::{Result, errno_of, pointer};
use crate::layout::{
    Context, Gid, Pd, QP_INIT_ATTR_PD, Qp, QpAttr, QpEx, QpInitAttr, QpInitAttrEx, qp_attr_mask,
};
use crate::object::{Held, Kind, end, make, next_handle, own};
use crate::qp_ex::{self, Building};
use crate::raisers::{Raiser, Raisers};

/// `IBV_QP_INIT_ATTR_CREATE_FLAGS`.
const INIT_CREATE_FLAGS: u32 = 1 << 2;
/// `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`.
const INIT_SEND_OPS: u32 = 1 << 6;

/// A queue pair.
pub(crate) struct OwnQp {
    pub(crate) qp: Arc<dyn ProviderQp>,
    pub(crate) is_ud: bool,
    pub(crate) reported: Reported,
    /// The context's, which may be closed before.
    raisers: Arc<Raisers>,
    pub(crate) building: Building,
    /// Whether it was created for the calls that build work requests.
    pub(crate) builds: bool,
    /// What it was created with.
    init: QpInitAttr,
    _held: [Option<Held>; 4],
}

impl Kind for Qp {
    type Whole = QpEx;
    type Own = OwnQp;
}

impl OwnQp {
    /// The software device's.
    pub(crate) fn soft(&self) -> Result<&SoftQp> {
        self.qp.as_any().downcast_ref().ok_or(Errno::NODEV)
    }
}

/// Creates a queue pair; its sizes are told.
///
/// # Errors
/// `EOPNOTSUPP` for a type that rdma_rxe does not have; `EINVAL` for sizes beyond the device's.
///
/// # Safety
/// All that is pointed to is the program's.
pub(crate) unsafe fn create(
    pd: *mut Pd,
    attr: &mut QpInitAttr,
    send_ops: Option<u64>,
) -> Result<*mut Qp> {
    let qp_type = match attr.qp_type {
        2 => QpType::Rc,
        3 => QpType::Uc,
        4 => QpType::Ud,
        _ => return Err(Errno::OPNOTSUPP),
    };
    // SAFETY: the caller keeps `pd` until this is done.
    let (domain, send_cq, recv_cq) = unsafe { (own(pd)?, own(attr.send_cq)?, own(attr.recv_cq)?) };
    let srq = match attr.srq.is_null() {
        true => None,
        // SAFETY: as above.
        false => Some(unsafe { own(attr.srq) }?),
    };
    let asked = QpInit {
        qp_type,
        cap: convert::cap(&attr.cap),
        sq_sig_all: attr.sq_sig_all != 0,
    };
    let shared: Option<&Arc<dyn ProviderSrq>> = srq.map(|srq| &srq.srq);
    let made = domain
        .pd
        .create_qp(&asked, send_cq.get()?, recv_cq.get()?, shared);
    let qp = made.map_err(|error| errno_of(&error))?;
    let (_, made) = qp.query().map_err(|error| errno_of(&error))?;
    attr.cap = convert::cap_to_c(&made.cap);
    let qp_num = qp.qpn().value();
    // SAFETY: the domain's context is open.
    let context = unsafe { (*pd).context };
    let whole = qp_ex::whole(context, pd, attr, next_handle(), qp_num);
    let own_qp = OwnQp {
        qp,
        is_ud: qp_type == QpType::Ud,
        reported: Reported::default(),
        raisers: Arc::clone(&domain.raisers),
        building: Building::new(made.cap.max_inline_data as usize),
        builds: send_ops.is_some(),
        init: *attr,
        _held: [
            Some(domain.users.hold()),
            Some(send_cq.users.hold()),
            Some(recv_cq.users.hold()),
            srq.map(|srq| srq.users.hold()),
        ],
    };
    let qp: *mut Qp = make(whole, own_qp)?;
    domain.raisers.qps.lock().insert(qp_num, Raiser(qp));
    Ok(qp)
}

/// `create_qp_ex` of the table.
pub(crate) unsafe extern "C" fn create_extended(
    _context: *mut Context,
    attr: *mut QpInitAttrEx,
) -> *mut Qp {
    pointer(|| {
        // SAFETY: the program's structure.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::INVAL)?;
        let mask = attr.comp_mask;
        let flags = if mask & INIT_CREATE_FLAGS != 0 {
            attr.create_flags
        } else {
            0
        };
        if mask & !(QP_INIT_ATTR_PD | INIT_CREATE_FLAGS | INIT_SEND_OPS) != 0 || flags != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if mask & QP_INIT_ATTR_PD == 0 {
            return Err(Errno::INVAL);
        }
        let send_ops = (mask & INIT_SEND_OPS != 0).then_some(attr.send_ops_flags);
        qp_ex::check_operations(attr.qp_type, send_ops.unwrap_or(0))?;
        let plain: *mut QpInitAttr = std::ptr::from_mut(attr).cast();
        // SAFETY: the longer structure begins as the shorter one does.
        unsafe { create(attr.pd, &mut *plain, send_ops) }
    })
}

/// # Errors
/// `EBUSY` while it is in use; `EINVAL` if it ended before, or another thread is ending it.
///
/// # Safety
/// Nobody uses it any more but to acknowledge its events, if it succeeds.
pub(crate) unsafe fn destroy(qp: *mut Qp) -> Result<()> {
    let ending = end(qp)?;
    let own_qp = ending.own();
    own_qp.qp.destroy().map_err(|error| errno_of(&error))?;
    own_qp.raisers.qps.lock().remove(&own_qp.qp.qpn().value());
    // SAFETY: it lives; for the rest as the caller promises.
    unsafe {
        acks(qp).wait(&own_qp.reported);
        ending.free();
    }
    Ok(())
}

/// # Safety
/// The queue pair is one of ours.
pub(crate) unsafe fn acks(qp: *mut Qp) -> Acks {
    // SAFETY: as the caller promises; only addresses are made.
    unsafe {
        Acks {
            mutex: &raw mut (*qp).mutex,
            cond: &raw mut (*qp).cond,
            completed: &raw mut (*qp).events_completed,
        }
    }
}

/// # Errors
/// `EINVAL` for a change that the state does not allow, an address without a global route, or a state that it is
/// not in; `EOPNOTSUPP` for what rdma_rxe does not have.
///
/// # Safety
/// The queue pair is one of ours.
pub(crate) unsafe fn modify(qp: *mut Qp, attr: &QpAttr, mask: u32) -> Result<()> {
    use qp_attr_mask::*;
    // SAFETY: the caller keeps `qp` until this is done.
    let own_qp = unsafe { own(qp) }?;
    if mask & (CAP | RATE_LIMIT) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let known = QpAttrMask::all().bits() | CUR_STATE | PATH_MIG_STATE;
    if mask & !known != 0 {
        return Err(Errno::INVAL);
    }
    if mask & AV != 0 && attr.ah_attr.is_global == 0 {
        return Err(Errno::INVAL);
    }
    if mask & CUR_STATE != 0 {
        let (now, _) = own_qp.qp.query().map_err(|error| errno_of(&error))?;
        if now.state as u32 != attr.cur_qp_state {
            return Err(Errno::INVAL);
        }
    }
    let to = convert::qp_attr(attr, mask)?;
    let modified = own_qp.qp.modify(&to, QpAttrMask::from_bits_truncate(mask));
    modified.map_err(|error| errno_of(&error))?;
    if mask & STATE != 0 {
        // SAFETY: as above; it is for the program to look at.
        unsafe { (&raw mut (*qp).state).write(attr.qp_state) };
    }
    Ok(())
}

/// # Safety
/// The queue pair is one of ours.
pub(crate) unsafe fn query(qp: *mut Qp) -> Result<(QpAttr, QpInitAttr)> {
    // SAFETY: the caller keeps `qp` until this is done.
    let own_qp = unsafe { own(qp) }?;
    let (attr, init) = own_qp.qp.query().map_err(|error| errno_of(&error))?;
    let cap = convert::cap_to_c(&init.cap);
    // SAFETY: as above.
    unsafe { (&raw mut (*qp).state).write(attr.state as u32) };
    Ok((
        convert::qp_attr_to_c(&attr, cap),
        QpInitAttr { cap, ..own_qp.init },
    ))
}

/// Attaches to a multicast group, or detaches.
///
/// # Safety
/// The pointers are the program's.
pub(crate) unsafe fn multicast(qp: *mut Qp, gid: *const Gid, is_attach: bool) -> Result<()> {
    // SAFETY: the caller keeps `qp` until this is done.
    let (own_qp, gid) = unsafe { (own(qp)?, gid.as_ref().ok_or(Errno::INVAL)?) };
    let gid = WireGid::from(*gid);
    let done = match is_attach {
        true => own_qp.qp.attach_mcast(&gid),
        false => own_qp.qp.detach_mcast(&gid),
    };
    done.map_err(|error: Error| match error.cause {
        // The kernel's word for it.
        Cause::NoSuchObject(_) => Errno::INVAL,
        _ => errno_of(&error),
    })
}
