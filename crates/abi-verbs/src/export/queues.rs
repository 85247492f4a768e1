//! Memory, channels, completion queues, shared receive queues, queue pairs, address handles, events.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::{c_int, c_uint, c_void};

use portolan_abi_layout::exports;
use rustix::io::Errno;

use crate::guard::{number, pointer, status, value};
use crate::layout::*;
use crate::object::{is_there, own};
use crate::wait::{self, Attempt};
use crate::{ah, async_event, channel, cq, mr, qp, srq};

/// Writes a result to memory that the program provides.
///
/// # Errors
/// `EINVAL` for null.
///
/// # Safety
/// It is null or writable.
unsafe fn give<T>(into: *mut T, value: T) -> Result<(), Errno> {
    if into.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller vouches for the pointer.
    unsafe { into.write(value) };
    Ok(())
}

exports! {
    fn ibv_reg_mr(of: *mut Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr {
        // SAFETY: the program's domain and memory.
        pointer(|| unsafe { mr::register(of, addr, length, addr.expose_provenance() as u64, access as u32) })
    }

    fn ibv_reg_mr_iova(
        of: *mut Pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_int
    ) -> *mut Mr {
        // SAFETY: the program's domain and memory.
        pointer(|| unsafe { mr::register(of, addr, length, iova, access as u32) })
    }

    fn ibv_reg_mr_iova2(
        of: *mut Pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint
    ) -> *mut Mr {
        // SAFETY: the program's domain and memory.
        pointer(|| unsafe { mr::register(of, addr, length, iova, access) })
    }

    // Memory of other devices is not memory of the process.
    fn ibv_reg_dmabuf_mr(
        _of: *mut Pd,
        _offset: u64,
        _length: usize,
        _iova: u64,
        _descriptor: c_int,
        _access: c_int
    ) -> *mut Mr {
        pointer(|| Err(Errno::OPNOTSUPP))
    }

    // Every failure leaves the old region unchanged, which is what -1 (`IBV_REREG_MR_ERR_INPUT`) means.
    fn ibv_rereg_mr(
        of: *mut Mr,
        flags: c_int,
        pd: *mut Pd,
        addr: *mut c_void,
        length: usize,
        access: c_int
    ) -> c_int {
        status(|| {
            // SAFETY: the program's region, domain and memory.
            unsafe { mr::reregister(of, flags as u32, pd, addr, length, access as u32) }?;
            Ok(0)
        })
    }

    fn ibv_dereg_mr(of: *mut Mr) -> c_int {
        // SAFETY: the program's region, which it does not use after success.
        number(|| unsafe { mr::deregister(of) })
    }

    fn ibv_create_comp_channel(of: *mut Context) -> *mut CompChannel {
        // SAFETY: the program's context.
        pointer(|| unsafe { channel::create(of) })
    }

    fn ibv_destroy_comp_channel(of: *mut CompChannel) -> c_int {
        // SAFETY: the program's channel, which it does not use after success.
        number(|| unsafe { channel::destroy(of) })
    }

    fn ibv_create_cq(
        of: *mut Context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut CompChannel,
        comp_vector: c_int
    ) -> *mut Cq {
        pointer(|| {
            let cqe = u32::try_from(cqe).map_err(|_| Errno::INVAL)?;
            let vector = u32::try_from(comp_vector).map_err(|_| Errno::INVAL)?;
            // SAFETY: the program's pointers.
            unsafe { cq::create(of, cqe, cq_context, channel, vector, 0) }
        })
    }

    fn ibv_resize_cq(of: *mut Cq, cqe: c_int) -> c_int {
        // SAFETY: the program's queue.
        number(|| unsafe { cq::resize(of, cqe) })
    }

    fn ibv_destroy_cq(of: *mut Cq) -> c_int {
        // SAFETY: the program's queue, which it does not use after success.
        number(|| unsafe { cq::destroy(of) })
    }

    fn ibv_get_cq_event(
        of: *mut CompChannel,
        into: *mut *mut Cq,
        into_context: *mut *mut c_void
    ) -> c_int {
        wait::until(|slept| {
            if into.is_null() || into_context.is_null() {
                return Err(Errno::INVAL);
            }
            if slept.0 && !is_there(of) {
                return Err(Errno::BADF);
            }
            // SAFETY: the program's pointers.
            unsafe {
                let attempt = channel::take_event(of, into)?;
                if let Attempt::Done = attempt {
                    into_context.write((**into).cq_context);
                }
                Ok(attempt)
            }
        })
    }

    fn ibv_ack_cq_events(of: *mut Cq, count: c_uint) {
        // SAFETY: the program's queue.
        value((), || unsafe { cq::acknowledge(of, count) });
    }

    fn ibv_create_srq(of: *mut Pd, attr: *mut SrqInitAttr) -> *mut Srq {
        // SAFETY: the program's pointers.
        pointer(|| unsafe { srq::create_plain(of, attr) })
    }

    fn ibv_modify_srq(of: *mut Srq, attr: *mut SrqAttr, mask: c_int) -> c_int {
        // SAFETY: the program's pointers.
        number(|| unsafe { srq::modify(of, attr.as_ref().ok_or(Errno::INVAL)?, mask as u32) })
    }

    fn ibv_query_srq(of: *mut Srq, into: *mut SrqAttr) -> c_int {
        // SAFETY: the program's pointers.
        number(|| unsafe { give(into, srq::query(of)?) })
    }

    fn ibv_destroy_srq(of: *mut Srq) -> c_int {
        // SAFETY: the program's queue, which it does not use after success.
        number(|| unsafe { srq::destroy(of) })
    }

    fn ibv_create_qp(of: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp {
        // SAFETY: the program's pointers.
        pointer(|| unsafe { qp::create(of, attr.as_mut().ok_or(Errno::INVAL)?, None) })
    }

    fn ibv_qp_to_qp_ex(of: *mut Qp) -> *mut QpEx {
        pointer(|| {
            // SAFETY: the program's queue pair.
            match unsafe { own(of) }?.builds {
                true => Ok(of.cast()),
                false => Err(Errno::OPNOTSUPP),
            }
        })
    }

    fn ibv_modify_qp(of: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int {
        // SAFETY: the program's pointers.
        number(|| unsafe { qp::modify(of, attr.as_ref().ok_or(Errno::INVAL)?, mask as u32) })
    }

    fn ibv_query_qp(
        of: *mut Qp,
        into: *mut QpAttr,
        _mask: c_int,
        into_init: *mut QpInitAttr
    ) -> c_int {
        number(|| {
            // SAFETY: the program's pointers.
            unsafe {
                let (attr, init) = qp::query(of)?;
                give(into, attr)?;
                give(into_init, init)
            }
        })
    }

    // The processor copies data, in no guaranteed order.
    fn ibv_query_qp_data_in_order(_of: *mut Qp, _op: c_uint, _flags: u32) -> c_int {
        0
    }

    fn ibv_destroy_qp(of: *mut Qp) -> c_int {
        // SAFETY: the program's queue pair, which it does not use after success.
        number(|| unsafe { qp::destroy(of) })
    }

    // Enhanced connection establishment needs hardware, as with rdma_rxe.
    fn ibv_query_ece(_of: *mut Qp, _into: *mut Ece) -> c_int {
        number(|| Err(Errno::OPNOTSUPP))
    }

    fn ibv_set_ece(_of: *mut Qp, _ece: *mut Ece) -> c_int {
        number(|| Err(Errno::OPNOTSUPP))
    }

    fn ibv_attach_mcast(of: *mut Qp, gid: *const Gid, _lid: u16) -> c_int {
        // SAFETY: the program's pointers.
        number(|| unsafe { qp::multicast(of, gid, true) })
    }

    fn ibv_detach_mcast(of: *mut Qp, gid: *const Gid, _lid: u16) -> c_int {
        // SAFETY: the program's pointers.
        number(|| unsafe { qp::multicast(of, gid, false) })
    }

    fn ibv_create_ah(of: *mut Pd, attr: *mut AhAttr) -> *mut Ah {
        // SAFETY: the program's pointers.
        pointer(|| unsafe { ah::create(of, attr.as_ref().ok_or(Errno::INVAL)?) })
    }

    fn ibv_init_ah_from_wc(
        of: *mut Context,
        port_num: u8,
        wc: *mut Wc,
        grh: *mut Grh,
        into: *mut AhAttr
    ) -> c_int {
        // SAFETY: the program's pointers.
        status(|| unsafe { give(into, ah::way_back(of, port_num, wc, grh)?).map(|()| 0) })
    }

    fn ibv_create_ah_from_wc(of: *mut Pd, wc: *mut Wc, grh: *mut Grh, port_num: u8) -> *mut Ah {
        pointer(|| {
            if of.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: the program's pointers.
            unsafe { ah::create(of, &ah::way_back((*of).context, port_num, wc, grh)?) }
        })
    }

    fn ibv_destroy_ah(of: *mut Ah) -> c_int {
        // SAFETY: the program's handle, which it does not use afterwards.
        number(|| unsafe { ah::destroy(of) })
    }

    fn ibv_get_async_event(of: *mut Context, into: *mut AsyncEvent) -> c_int {
        wait::until(|_| {
            if into.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: the program's pointers.
            unsafe { async_event::take(of, into) }
        })
    }

    fn ibv_ack_async_event(event: *mut AsyncEvent) {
        value((), || {
            // SAFETY: the program's event, not acknowledged yet.
            unsafe {
                if let Some(event) = event.as_ref() {
                    async_event::acknowledge(event);
                }
            }
        });
    }
}
