//! Asynchronous events: of queue pairs, shared receive queues, ports and the device.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::c_void;

use portolan_provider::verbs::AsyncEvent as ProviderEvent;

use crate::context::OwnContext;
use crate::guard::{Result, errno_of};
use crate::layout::{AsyncEvent, Context, Cq, Qp, Srq, async_event_type as kind};
use crate::object::{Kind, own};
use crate::wait::Attempt;
use crate::{cq, qp, srq};

/// Takes an event, if one is queued.
///
/// # Errors
/// Errors of [`Attempt::wait`].
///
/// # Safety
/// The context is open, and `into` is writable.
pub(crate) unsafe fn take(context: *mut Context, into: *mut AsyncEvent) -> Result<Attempt> {
    // SAFETY: the caller keeps `context` alive during this call.
    let own_context = unsafe { own(context) }?;
    loop {
        let taken = own_context
            .listener
            .take()
            .map_err(|error| errno_of(&error))?;
        match taken.map(|event| own_context.report(event)) {
            Some(Some(event)) => {
                // SAFETY: the caller provides the memory.
                unsafe { into.write(event) };
                return Ok(Attempt::Done);
            }
            // The event's object was destroyed.
            Some(None) => {}
            None => {
                let fd = own_context
                    .listener
                    .fd()
                    .map_err(|error| errno_of(&error))?;
                return Attempt::wait(fd);
            }
        }
    }
}

impl OwnContext {
    /// Converts an event for C and counts it as reported; `None` if its object was destroyed.
    fn report(&self, event: ProviderEvent) -> Option<AsyncEvent> {
        use ProviderEvent::*;
        let of_qp = |qpn: portolan_wire::Qpn, event_type| {
            let qps = self.raisers.qps.lock();
            let qp = qps.get(&qpn.value())?.first()?.0;
            // SAFETY: it is alive while it is in the table.
            unsafe { own(qp) }.ok()?.reported.add();
            let element = qp.cast();
            Some(AsyncEvent {
                element,
                event_type,
            })
        };
        let of_port = |port: u8, event_type| {
            let element = std::ptr::without_provenance_mut(usize::from(port));
            Some(AsyncEvent {
                element,
                event_type,
            })
        };
        match event {
            QpFatal(qpn) => of_qp(qpn, kind::QP_FATAL),
            QpReqErr(qpn) => of_qp(qpn, kind::QP_REQ_ERR),
            QpAccessErr(qpn) => of_qp(qpn, kind::QP_ACCESS_ERR),
            CommEst(qpn) => of_qp(qpn, kind::COMM_EST),
            SqDrained(qpn) => of_qp(qpn, kind::SQ_DRAINED),
            QpLastWqeReached(qpn) => of_qp(qpn, kind::QP_LAST_WQE_REACHED),
            CqErr(number) => {
                let cqs = self.raisers.cqs.lock();
                let cq = cqs.get(&number.0)?.0;
                // SAFETY: it is alive while it is in the table.
                unsafe { own(cq) }.ok()?.async_reported.add();
                let (element, event_type) = (cq.cast::<c_void>(), kind::CQ_ERR);
                Some(AsyncEvent {
                    element,
                    event_type,
                })
            }
            SrqLimitReached(number) => {
                let srqs = self.raisers.srqs.lock();
                let srq = srqs.get(&number.0)?.0;
                // SAFETY: as above.
                unsafe { own(srq) }.ok()?.reported.add();
                let (element, event_type) = (srq.cast::<c_void>(), kind::SRQ_LIMIT_REACHED);
                Some(AsyncEvent {
                    element,
                    event_type,
                })
            }
            PortActive(port) => of_port(port, kind::PORT_ACTIVE),
            PortErr(port) => of_port(port, kind::PORT_ERR),
            GidChange(port) => of_port(port, kind::GID_CHANGE),
            DeviceFatal => of_port(0, kind::DEVICE_FATAL),
            _ => None,
        }
    }
}

/// Whether this process has made what raised an event.
///
/// # Safety
/// The element is of this kind.
unsafe fn is_own<C: Kind>(event: &AsyncEvent) -> bool {
    // SAFETY: as the caller promises.
    unsafe { own(event.element.cast::<C>()) }.is_ok()
}

/// Acknowledges an event.
///
/// # Safety
/// The event is from [`take`] and not acknowledged yet.
pub(crate) unsafe fn acknowledge(event: &AsyncEvent) {
    // SAFETY: as the caller promises; the event's object is not destroyed before this. In a forked child the copy's mutex may stay
    // locked.
    unsafe {
        match event.event_type {
            kind::QP_FATAL
            | kind::QP_REQ_ERR
            | kind::QP_ACCESS_ERR
            | kind::COMM_EST
            | kind::SQ_DRAINED
            | kind::QP_LAST_WQE_REACHED
                if is_own::<Qp>(event) =>
            {
                qp::acks(event.element.cast()).add(1);
            }
            kind::CQ_ERR if is_own::<Cq>(event) => {
                cq::async_acks(event.element.cast()).add(1);
            }
            kind::SRQ_LIMIT_REACHED if is_own::<Srq>(event) => {
                srq::acks(event.element.cast()).add(1);
            }
            _ => {}
        }
    }
}
