//! Queue pairs.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::sync::Arc;

use portolan_provider::traits::{Qp as ProviderQp, Srq as ProviderSrq};
use portolan_provider::verbs::{self, QpAttrMask, QpInit, QpType};
use portolan_provider::{Cause, Error};
use portolan_roce::io::SoftQp;
use portolan_wire::addr::Gid as WireGid;
use rustix::io::Errno;

use crate::acks::{Acks, Reported};
use crate::guard::{Result, errno_of, pointer};
use crate::layout::{
    Context, Gid, Pd, QP_INIT_ATTR_PD, QP_INIT_ATTR_XRCD, QP_OPEN_ATTR_CONTEXT, QP_OPEN_ATTR_NAME,
    QPT_XRC_RECV, QPT_XRC_SEND, Qp, QpAttr, QpEx, QpInitAttr, QpInitAttrEx, QpOpenAttr, Sge, Xrcd,
    qp_attr_mask,
};
use crate::object::{Held, Kind, end, make, next_handle, own};
use crate::post;
use crate::qp_ex::{self, Building};
use crate::raisers::{Raiser, Raisers};
use crate::xrcd::XrcDomain;

/// `IBV_QP_INIT_ATTR_CREATE_FLAGS`.
const INIT_CREATE_FLAGS: u32 = 1 << 2;
/// `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`.
const INIT_SEND_OPS: u32 = 1 << 6;

/// A queue pair.
pub(crate) struct OwnQp {
    pub(crate) qp: Arc<dyn ProviderQp>,
    pub(crate) qp_type: QpType,
    /// The domain of a queue pair that receives for XRC, which may be opened several times.
    domain: Option<Arc<XrcDomain>>,
    pub(crate) reported: Reported,
    /// The context's; the context may be closed first.
    raisers: Arc<Raisers>,
    pub(crate) building: Building,
    /// Whether it was created for the calls that build work requests.
    pub(crate) builds: bool,
    /// The attributes it was created with.
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

/// The parts of a new C queue pair.
struct Made {
    qp: Arc<dyn ProviderQp>,
    qp_type: QpType,
    domain: Option<Arc<XrcDomain>>,
    raisers: Arc<Raisers>,
    builds: bool,
    held: [Option<Held>; 4],
}

/// # Safety
/// All pointers are the program's.
unsafe fn make_qp(
    context: *mut Context,
    pd: *mut Pd,
    attr: &mut QpInitAttr,
    made: Made,
) -> Result<*mut Qp> {
    let (now, init) = made.qp.query().map_err(|error| errno_of(&error))?;
    attr.cap = (&init.cap).into();
    let qp_num = made.qp.qpn().value();
    let mut whole = qp_ex::whole(context, pd, attr, next_handle(), qp_num);
    whole.qp_base.state = now.state as u32;
    let own_qp = OwnQp {
        qp: made.qp,
        qp_type: made.qp_type,
        domain: made.domain,
        reported: Reported::default(),
        raisers: Arc::clone(&made.raisers),
        building: Building::new(init.cap.max_inline_data as usize),
        builds: made.builds,
        init: *attr,
        _held: made.held,
    };
    let qp: *mut Qp = make(whole, own_qp);
    let mut raisers = made.raisers.qps.lock();
    raisers.entry(qp_num).or_default().push(Raiser(qp));
    Ok(qp)
}

/// Inline bytes that fit into a request in place of its scatter/gather elements, computed as in rdma_rxe. Programs
/// (`rdma_xclient`) send that much inline data without requesting it.
fn room_of_pieces(max_send_sge: u32) -> u32 {
    let bytes = max_send_sge.saturating_mul(size_of::<Sge>() as u32);
    bytes.min(post::INLINE_MAX as u32)
}

/// Creates a queue pair and writes its actual sizes to the attributes.
///
/// # Errors
/// `EOPNOTSUPP` for a type that rdma_rxe lacks; `EINVAL` for sizes beyond the device's.
///
/// # Safety
/// All pointers are the program's.
pub(crate) unsafe fn create(
    pd: *mut Pd,
    attr: &mut QpInitAttr,
    send_ops: Option<u64>,
) -> Result<*mut Qp> {
    let qp_type = match attr.qp_type {
        2 => QpType::Rc,
        3 => QpType::Uc,
        4 => QpType::Ud,
        QPT_XRC_SEND => QpType::XrcSend,
        _ => return Err(Errno::OPNOTSUPP),
    };
    if qp_type == QpType::XrcSend {
        // It has no receives.
        (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (0, 0);
        (attr.recv_cq, attr.srq) = (attr.send_cq, std::ptr::null_mut());
    }
    // SAFETY: the caller keeps `pd` alive during this call.
    let (domain, send_cq, recv_cq) = unsafe { (own(pd)?, own(attr.send_cq)?, own(attr.recv_cq)?) };
    let srq = match attr.srq.is_null() {
        true => None,
        // SAFETY: as above.
        false => Some(unsafe { own(attr.srq) }?),
    };
    let mut cap = verbs::QpCap::from(&attr.cap);
    cap.max_inline_data = cap.max_inline_data.max(room_of_pieces(cap.max_send_sge));
    let asked = QpInit {
        qp_type,
        cap,
        sq_sig_all: attr.sq_sig_all != 0,
    };
    let shared: Option<&Arc<dyn ProviderSrq>> = srq.map(|srq| &srq.srq);
    let made = domain
        .pd
        .create_qp(&asked, send_cq.get()?, recv_cq.get()?, shared);
    let qp = made.map_err(|error| errno_of(&error))?;
    let made = Made {
        qp,
        qp_type,
        domain: None,
        raisers: Arc::clone(&domain.raisers),
        builds: send_ops.is_some(),
        held: [
            Some(domain.users.hold()),
            Some(send_cq.users.hold()),
            Some(recv_cq.users.hold()),
            srq.map(|srq| srq.users.hold()),
        ],
    };
    // SAFETY: as the caller promises; the domain's context is open.
    unsafe { make_qp((*pd).context, pd, attr, made) }
}

/// Creates the receiving end of an extended reliable connection.
///
/// # Safety
/// All pointers are the program's.
unsafe fn create_receiving(xrcd: *mut Xrcd, attr: &mut QpInitAttr) -> Result<*mut Qp> {
    // SAFETY: the caller keeps `xrcd` alive during this call.
    let domain = Arc::clone(unsafe { &own(xrcd)?.domain });
    let qp = domain.create_qp()?;
    // SAFETY: as the caller promises.
    unsafe { make_receiving(xrcd, attr, domain, qp) }
}

/// # Safety
/// All pointers are the program's.
unsafe fn make_receiving(
    xrcd: *mut Xrcd,
    attr: &mut QpInitAttr,
    domain: Arc<XrcDomain>,
    qp: Arc<dyn ProviderQp>,
) -> Result<*mut Qp> {
    // SAFETY: the caller keeps `xrcd` alive during this call.
    let own_xrcd = unsafe { own(xrcd) }?;
    *attr = QpInitAttr {
        qp_context: attr.qp_context,
        qp_type: QPT_XRC_RECV,
        ..QpInitAttr::zeroed()
    };
    let made = Made {
        qp,
        qp_type: QpType::XrcRecv,
        domain: Some(domain),
        raisers: Arc::clone(&own_xrcd.raisers),
        builds: false,
        held: [Some(own_xrcd.users.hold()), None, None, None],
    };
    // SAFETY: as the caller promises; the domain's context is open.
    unsafe { make_qp((*xrcd).context, std::ptr::null_mut(), attr, made) }
}

/// `open_qp` of the table.
pub(crate) unsafe extern "C" fn open(_context: *mut Context, attr: *mut QpOpenAttr) -> *mut Qp {
    pointer(|| {
        // SAFETY: the program's structure.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
        let mask = attr.comp_mask & !QP_OPEN_ATTR_CONTEXT;
        if mask != QP_OPEN_ATTR_NAME || attr.qp_type != QPT_XRC_RECV {
            return Err(Errno::INVAL);
        }
        let mut init = QpInitAttr::zeroed();
        if attr.comp_mask & QP_OPEN_ATTR_CONTEXT != 0 {
            init.qp_context = attr.qp_context;
        }
        // SAFETY: the program's domain.
        let domain = Arc::clone(unsafe { &own(attr.xrcd)?.domain });
        let qp = domain.open_qp(attr.qp_num)?;
        // SAFETY: as above.
        unsafe { make_receiving(attr.xrcd, &mut init, domain, qp) }
    })
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
        let known = QP_INIT_ATTR_PD | QP_INIT_ATTR_XRCD | INIT_CREATE_FLAGS | INIT_SEND_OPS;
        if mask & !known != 0 || flags != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let needed = match attr.qp_type {
            QPT_XRC_RECV => QP_INIT_ATTR_XRCD,
            _ => QP_INIT_ATTR_PD,
        };
        if mask & needed == 0 {
            return Err(Errno::INVAL);
        }
        let send_ops = (mask & INIT_SEND_OPS != 0).then_some(attr.send_ops_flags);
        qp_ex::check_operations(attr.qp_type, send_ops.unwrap_or(0))?;
        let plain: *mut QpInitAttr = std::ptr::from_mut(attr).cast();
        let (pd, xrcd) = (attr.pd, attr.xrcd);
        // SAFETY: the longer structure starts with the shorter one.
        unsafe {
            match needed {
                QP_INIT_ATTR_XRCD => create_receiving(xrcd, &mut *plain),
                _ => create(pd, &mut *plain, send_ops),
            }
        }
    })
}

/// # Errors
/// `EBUSY` while it is in use; `EINVAL` if it is already destroyed, or another thread is destroying it.
///
/// # Safety
/// After success it is only used to acknowledge its events.
pub(crate) unsafe fn destroy(qp: *mut Qp) -> Result<()> {
    let ending = end(qp)?;
    let own_qp = ending.own();
    let qp_num = own_qp.qp.qpn().value();
    match &own_qp.domain {
        Some(domain) => domain.close_qp(qp_num)?,
        None => own_qp.qp.destroy().map_err(|error| errno_of(&error))?,
    }
    {
        let mut raisers = own_qp.raisers.qps.lock();
        if let Some(same) = raisers.get_mut(&qp_num) {
            same.retain(|raiser| raiser.0 != qp);
            if same.is_empty() {
                raisers.remove(&qp_num);
            }
        }
    }
    // SAFETY: it is alive; otherwise as the caller promises.
    unsafe {
        acks(qp).wait(&own_qp.reported);
        ending.free();
    }
    Ok(())
}

/// # Safety
/// The queue pair is one of ours.
pub(crate) unsafe fn acks(qp: *mut Qp) -> Acks {
    // SAFETY: as the caller promises; this only computes addresses.
    unsafe {
        Acks {
            mutex: &raw mut (*qp).mutex,
            cond: &raw mut (*qp).cond,
            completed: &raw mut (*qp).events_completed,
        }
    }
}

/// # Errors
/// `EINVAL` for a change that the state does not allow, an address without a global route, or a wrong current state;
/// `EOPNOTSUPP` for attributes that rdma_rxe lacks.
///
/// # Safety
/// The queue pair is one of ours.
pub(crate) unsafe fn modify(qp: *mut Qp, attr: &QpAttr, mask: u32) -> Result<()> {
    use qp_attr_mask::*;
    // SAFETY: the caller keeps `qp` alive during this call.
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
    let to = attr.named_by(mask).map_err(|error| errno_of(&error))?;
    let modified = own_qp.qp.modify(&to, QpAttrMask::from_bits_truncate(mask));
    modified.map_err(|error| errno_of(&error))?;
    if mask & STATE != 0 {
        // SAFETY: as above; the program only reads the field.
        unsafe { (&raw mut (*qp).state).write(attr.qp_state) };
    }
    Ok(())
}

/// # Safety
/// The queue pair is one of ours.
pub(crate) unsafe fn query(qp: *mut Qp) -> Result<(QpAttr, QpInitAttr)> {
    // SAFETY: the caller keeps `qp` alive during this call.
    let own_qp = unsafe { own(qp) }?;
    let (attr, init) = own_qp.qp.query().map_err(|error| errno_of(&error))?;
    let cap = (&init.cap).into();
    // SAFETY: as above.
    unsafe { (&raw mut (*qp).state).write(attr.state as u32) };
    Ok((
        QpAttr {
            cap,
            ..(&attr).into()
        },
        QpInitAttr { cap, ..own_qp.init },
    ))
}

/// Attaches to or detaches from a multicast group.
///
/// # Safety
/// The pointers are the program's.
pub(crate) unsafe fn multicast(qp: *mut Qp, gid: *const Gid, is_attach: bool) -> Result<()> {
    // SAFETY: the caller keeps `qp` alive during this call.
    let (own_qp, gid) = unsafe { (own(qp)?, gid.as_ref().ok_or(Errno::INVAL)?) };
    let gid = WireGid::from(*gid);
    let done = match is_attach {
        true => own_qp.qp.attach_mcast(&gid, 0),
        false => own_qp.qp.detach_mcast(&gid, 0),
    };
    done.map_err(|error: Error| match error.cause {
        // The kernel's errno for it.
        Cause::NoSuchObject(_) => Errno::INVAL,
        _ => errno_of(&error),
    })
}
