//! Queue pairs of ids, their completion queues and shared receive queues, and their transitions.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::c_int;

use rustix::io::Errno;

use crate::guard::{Result, check, made};
use crate::id::{Id, get, set};
use crate::layout::*;
use crate::verbs::{create_qp_ex, create_srq_ex, verbs};

/// `rdma_create_qp`. Writes the actual capabilities back.
///
/// # Errors
/// `EINVAL` if the id has a queue pair or no device; those of the verbs.
pub(crate) fn create(id: &Id, pd: *mut Pd, attr: &mut QpInitAttr) -> Result<()> {
    let mut extended = QpInitAttrEx {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
        comp_mask: QP_INIT_ATTR_PD,
        pd: if pd.is_null() { get!(id, pd) } else { pd },
        ..QpInitAttrEx::zeroed()
    };
    create_with(id, &mut extended)?;
    attr.send_cq = extended.send_cq;
    attr.recv_cq = extended.recv_cq;
    attr.srq = extended.srq;
    attr.cap = extended.cap;
    Ok(())
}

/// `rdma_create_qp_ex`.
///
/// # Errors
/// As for [`create`]; `EINVAL` if a completion queue is not the id's. The attributes are then unchanged, so they name
/// no destroyed queue.
pub(crate) fn create_with(id: &Id, attr: &mut QpInitAttrEx) -> Result<()> {
    let (comp_mask, pd, srq, xrcd) = (attr.comp_mask, attr.pd, attr.srq, attr.xrcd);
    let (send_cq, recv_cq) = (attr.send_cq, attr.recv_cq);
    fill_and_make(id, attr).inspect_err(|_| {
        (attr.comp_mask, attr.pd, attr.srq, attr.xrcd) = (comp_mask, pd, srq, xrcd);
        (attr.send_cq, attr.recv_cq) = (send_cq, recv_cq);
    })
}

fn fill_and_make(id: &Id, attr: &mut QpInitAttrEx) -> Result<()> {
    let context = get!(id, verbs);
    if !get!(id, qp).is_null() || context.is_null() {
        return Err(Errno::INVAL);
    }
    if attr.comp_mask & QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= QP_INIT_ATTR_PD;
        attr.pd = get!(id, pd);
    } else {
        // SAFETY: the program's protection domain.
        let its_context = unsafe { (*attr.pd).context };
        if its_context != context {
            return Err(Errno::INVAL);
        }
    }
    if attr.qp_type == QPT_XRC_RECV
        && (attr.comp_mask & QP_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null())
    {
        attr.comp_mask |= QP_INIT_ATTR_XRCD;
        attr.xrcd = id.device()?.use_xrcd()?;
    }
    if is_another(get!(id, recv_cq), attr.recv_cq) || is_another(get!(id, send_cq), attr.send_cq) {
        return Err(Errno::INVAL);
    }
    if attr.srq.is_null() {
        attr.srq = get!(id, srq);
    }
    let made = make(id, context, attr);
    if made.is_err() {
        destroy_queues(id);
    }
    made
}

/// Whether the program passes another queue than the id's.
fn is_another(known: *mut Cq, wanted: *mut Cq) -> bool {
    !known.is_null() && !wanted.is_null() && known != wanted
}

/// Creates the missing completion queues, then the queue pair, and moves it to its first state.
fn make(id: &Id, context: *mut Context, attr: &mut QpInitAttrEx) -> Result<()> {
    if attr.recv_cq.is_null() {
        make_receive_queue(id, attr.cap.max_recv_wr)?;
        attr.recv_cq = get!(id, recv_cq);
    }
    if attr.send_cq.is_null() {
        make_send_queue(id, attr.cap.max_send_wr)?;
        attr.send_cq = get!(id, send_cq);
    }
    let verbs = verbs()?;
    // SAFETY: the id's device, and attributes from the program or created above.
    let qp = unsafe { create_qp_ex(verbs, context, attr) }?;
    set!(id, qp = qp);
    let ready = match attr.qp_type {
        QPT_UD => start_datagrams(id, qp),
        _ => step(id, qp, qp_state::INIT, |_| ()),
    };
    if ready.is_err() {
        set!(id, qp = std::ptr::null_mut());
        // SAFETY: just created. No other code has seen it.
        unsafe { (verbs.destroy_qp)(qp) };
        return ready;
    }
    set!(id, pd = attr.pd);
    Ok(())
}

fn make_receive_queue(id: &Id, entries: u32) -> Result<()> {
    if !get!(id, recv_cq).is_null() || entries == 0 {
        return Ok(());
    }
    let (channel, cq) = make_queue(id, entries)?;
    set!(id, recv_cq_channel = channel);
    set!(id, recv_cq = cq);
    Ok(())
}

fn make_send_queue(id: &Id, entries: u32) -> Result<()> {
    if !get!(id, send_cq).is_null() || entries == 0 {
        return Ok(());
    }
    let (channel, cq) = make_queue(id, entries)?;
    set!(id, send_cq_channel = channel);
    set!(id, send_cq = cq);
    Ok(())
}

/// Creates a completion queue with its own channel. Its context is the id, as rdma_verbs.h expects.
fn make_queue(id: &Id, entries: u32) -> Result<(*mut CompChannel, *mut Cq)> {
    let verbs = verbs()?;
    let context = get!(id, verbs);
    let entries = c_int::try_from(entries).map_err(|_| Errno::INVAL)?;
    // SAFETY: the id's open device.
    let channel = made(unsafe { (verbs.create_comp_channel)(context) })?;
    // SAFETY: as above, with the channel created above.
    let cq = unsafe { (verbs.create_cq)(context, entries, id.as_c().cast(), channel, 0) };
    match made(cq) {
        Ok(cq) => Ok((channel, cq)),
        Err(errno) => {
            // SAFETY: nothing uses it.
            unsafe { (verbs.destroy_comp_channel)(channel) };
            Err(errno)
        }
    }
}

/// `rdma_destroy_qp`: destroys the queue pair and the completion queues created for it.
pub(crate) fn destroy(id: &Id) {
    let qp = get!(id, qp);
    set!(id, qp = std::ptr::null_mut());
    if let (Ok(verbs), false) = (verbs(), qp.is_null()) {
        // SAFETY: the id's own queue pair. The program must not post to it any more.
        unsafe { (verbs.destroy_qp)(qp) };
    }
    destroy_queues(id);
}

/// Destroys the id's completion queues, then their channels. Those of the receiving side of an extended connection
/// stay with the shared receive queue.
fn destroy_queues(id: &Id) {
    let Ok(verbs) = verbs() else { return };
    if get!(id, qp_type) == QPT_XRC_RECV && !get!(id, srq).is_null() {
        return;
    }
    let queues = distinct([get!(id, recv_cq), get!(id, send_cq)]);
    let channels = distinct([get!(id, recv_cq_channel), get!(id, send_cq_channel)]);
    set!(id, recv_cq = std::ptr::null_mut());
    set!(id, send_cq = std::ptr::null_mut());
    set!(id, recv_cq_channel = std::ptr::null_mut());
    set!(id, send_cq_channel = std::ptr::null_mut());
    for cq in queues {
        // SAFETY: created by `make_queue`, or left to the id by the program. The id does not refer to it any more.
        unsafe { (verbs.destroy_cq)(cq) };
    }
    for channel in channels {
        // SAFETY: as above; its queues are destroyed.
        unsafe { (verbs.destroy_comp_channel)(channel) };
    }
}

/// The pointers that are not null, each once: a program may have set both to the same.
fn distinct<T>([first, second]: [*mut T; 2]) -> impl Iterator<Item = *mut T> {
    let second = if second == first {
        std::ptr::null_mut()
    } else {
        second
    };
    [first, second].into_iter().filter(|each| !each.is_null())
}

/// `rdma_create_srq`.
///
/// # Errors
/// As for [`create_srq_with`].
pub(crate) fn create_srq(id: &Id, pd: *mut Pd, attr: &mut SrqInitAttr) -> Result<()> {
    let mut extended = SrqInitAttrEx {
        srq_context: attr.srq_context,
        attr: attr.attr,
        comp_mask: SRQ_INIT_ATTR_TYPE | SRQ_INIT_ATTR_PD,
        srq_type: match get!(id, qp_type) {
            QPT_XRC_RECV => SRQT_XRC,
            _ => SRQT_BASIC,
        },
        pd,
        ..SrqInitAttrEx::zeroed()
    };
    create_srq_with(id, &mut extended)?;
    attr.attr = extended.attr;
    Ok(())
}

/// `rdma_create_srq_ex`. A queue of extended connections gets the device's domain and a completion queue if it has
/// none.
///
/// # Errors
/// `EINVAL` if the id has no device, or the domain belongs to another device; those of the verbs. The attributes are
/// then unchanged.
pub(crate) fn create_srq_with(id: &Id, attr: &mut SrqInitAttrEx) -> Result<()> {
    let (comp_mask, pd, cq, xrcd) = (attr.comp_mask, attr.pd, attr.cq, attr.xrcd);
    fill_and_make_srq(id, attr).inspect_err(|_| {
        (attr.comp_mask, attr.pd, attr.cq, attr.xrcd) = (comp_mask, pd, cq, xrcd);
    })
}

fn fill_and_make_srq(id: &Id, attr: &mut SrqInitAttrEx) -> Result<()> {
    let context = get!(id, verbs);
    // An existing queue of the id stays the program's. The id refers to the newest one.
    if context.is_null() {
        return Err(Errno::INVAL);
    }
    if attr.comp_mask & SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= SRQ_INIT_ATTR_PD;
        attr.pd = get!(id, pd);
    }
    // SAFETY: the program's protection domain, or the id's own.
    let its_context = unsafe { (*attr.pd).context };
    if its_context != context {
        return Err(Errno::INVAL);
    }
    let is_extended = attr.comp_mask & SRQ_INIT_ATTR_TYPE != 0 && attr.srq_type == SRQT_XRC;
    if is_extended && (attr.comp_mask & SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null()) {
        attr.xrcd = id.device()?.use_xrcd()?;
        attr.comp_mask |= SRQ_INIT_ATTR_XRCD;
    }
    let makes_queue = is_extended && (attr.comp_mask & SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null());
    if makes_queue {
        make_receive_queue(id, attr.attr.max_wr)?;
        attr.cq = get!(id, recv_cq);
        attr.comp_mask |= SRQ_INIT_ATTR_CQ;
    }
    // SAFETY: the id's device, and attributes from the program or created above.
    let made = unsafe { create_srq_ex(verbs()?, context, attr) };
    match made {
        Ok(srq) => set!(id, srq = srq),
        Err(_) if makes_queue => destroy_queues(id),
        Err(_) => {}
    }
    made.map(drop)
}

/// `rdma_destroy_srq`.
pub(crate) fn destroy_srq(id: &Id) {
    let srq = get!(id, srq);
    set!(id, srq = std::ptr::null_mut());
    if let (Ok(verbs), false) = (verbs(), srq.is_null()) {
        // SAFETY: the id's own.
        unsafe { (verbs.destroy_srq)(srq) };
    }
    if get!(id, qp).is_null() {
        destroy_queues(id);
    }
}

/// Moves the queue pair through RTR to RTS. [`MAX_RESOURCES`] keeps the kernel's limits.
///
/// # Errors
/// `EINVAL` without a queue pair; the kernel's; those of the verbs.
pub(crate) fn to_ready(id: &Id, responder_resources: u8, initiator_depth: u8) -> Result<()> {
    let qp = get!(id, qp);
    if qp.is_null() {
        return Err(Errno::INVAL);
    }
    // Repeat the first transition: now the path is known, and INIT was entered with defaults.
    step(id, qp, qp_state::INIT, |_| ())?;
    step(id, qp, qp_state::RTR, |attr| {
        if responder_resources != MAX_RESOURCES {
            attr.max_dest_rd_atomic = responder_resources;
        }
    })?;
    step(id, qp, qp_state::RTS, |attr| {
        if initiator_depth != MAX_RESOURCES {
            attr.max_rd_atomic = initiator_depth;
        }
    })
}

/// Moves to ERR, which flushes posted work. Does nothing without a queue pair.
///
/// # Errors
/// Those of the verbs.
pub(crate) fn to_error(id: &Id) -> Result<()> {
    to_state(id, qp_state::ERR)
}

/// Moves to SQD, which waits for posted work. Does nothing without a queue pair.
///
/// # Errors
/// Those of the verbs.
pub(crate) fn to_drained(id: &Id) -> Result<()> {
    to_state(id, qp_state::SQD)
}

fn to_state(id: &Id, state: u32) -> Result<()> {
    let qp = get!(id, qp);
    if qp.is_null() {
        return Ok(());
    }
    modify(qp, &mut only_state(state), qp_attr_mask::STATE)
}

/// A transition to a state with the kernel's attributes for it.
fn step(id: &Id, qp: *mut Qp, state: u32, change: impl FnOnce(&mut QpAttr)) -> Result<()> {
    let (mut attr, mask) = id.init_qp_attr(state)?;
    attr.qp_state = state;
    change(&mut attr);
    modify(qp, &mut attr, mask & !qp_attr_mask::KERNELS_OWN)
}

/// Datagrams need no peer, so all three transitions happen at once.
fn start_datagrams(id: &Id, qp: *mut Qp) -> Result<()> {
    step(id, qp, qp_state::INIT, |attr| {
        attr.qkey = datagram_key(attr.qkey)
    })?;
    modify(qp, &mut only_state(qp_state::RTR), qp_attr_mask::STATE)?;
    let mask = qp_attr_mask::STATE | qp_attr_mask::SQ_PSN;
    modify(qp, &mut only_state(qp_state::RTS), mask)
}

/// The Q_Key for datagrams. If the kernel has none, the one of the connection manager's groups and services.
fn datagram_key(kernels: u32) -> u32 {
    if kernels == 0 { UDP_QKEY } else { kernels }
}

fn only_state(state: u32) -> QpAttr {
    QpAttr {
        qp_state: state,
        ..QpAttr::zeroed()
    }
}

fn modify(qp: *mut Qp, attr: &mut QpAttr, mask: u32) -> Result<()> {
    // SAFETY: a queue pair of an id, and valid attributes.
    check(unsafe { (verbs()?.modify_qp)(qp, attr, mask.cast_signed()) })
}

#[cfg(test)]
mod tests {
    use std::ptr::{null_mut, without_provenance_mut};

    use super::*;

    /// An id of the device at `context`, without a queue pair. The device is not called.
    fn id_of(context: *mut Context) -> Id {
        let id = Id::new(null_mut(), false);
        set!(&id, verbs = context);
        id
    }

    #[test]
    fn the_same_queue_for_both_directions_is_destroyed_once() {
        let (one, other) = (
            without_provenance_mut::<Cq>(64),
            without_provenance_mut(128),
        );
        let all = |pair| distinct(pair).collect::<Vec<_>>();
        assert_eq!(all([one, one]), [one]);
        assert_eq!(all([one, other]), [one, other]);
        assert_eq!(all([null_mut(), other]), [other]);
        assert_eq!(all([one, null_mut()]), [one]);
        assert_eq!(all([null_mut(), null_mut()]), []);
    }

    #[test]
    fn refused_attributes_and_the_id_stay_unchanged() {
        let (context, own, wanted) = (
            without_provenance_mut(64),
            without_provenance_mut(128),
            without_provenance_mut(192),
        );
        let id = id_of(context);
        set!(&id, recv_cq = own);
        let (mut pd, mut attr) = (Pd::zeroed(), QpInitAttrEx::zeroed());
        pd.context = context;
        set!(&id, pd = &raw mut pd);
        attr.recv_cq = wanted;
        assert_eq!(create_with(&id, &mut attr), Err(Errno::INVAL));
        assert_eq!(attr.recv_cq, wanted);
        assert!(attr.pd.is_null());
        assert_eq!(attr.comp_mask, 0);
        assert_eq!(get!(&id, recv_cq), own);
        assert!(is_another(own, wanted));
        assert!(!is_another(own, own));
        assert!(!is_another(own, null_mut()));
        assert!(!is_another(null_mut(), wanted));

        let mut attr = SrqInitAttrEx::zeroed();
        attr.comp_mask = SRQ_INIT_ATTR_TYPE;
        attr.srq_type = SRQT_XRC;
        assert_eq!(create_srq_with(&id, &mut attr), Err(Errno::INVAL));
        assert_eq!(attr.comp_mask, SRQ_INIT_ATTR_TYPE);
        assert!(attr.pd.is_null());
        id.unregister();
    }
}
