//! The objects of an open device that can raise asynchronous events.

#![allow(unsafe_code, reason = "addresses of objects move between threads")]

use portolan_threads::lock::Mutex;
use std::collections::HashMap;

use portolan_provider::verbs::AsyncEvent;

use crate::layout::{Cq, Qp, Srq};

/// The objects whose asynchronous events this context reports.
#[derive(Default)]
pub(crate) struct Raisers {
    /// By number.
    pub(crate) cqs: Mutex<HashMap<u32, Raiser<Cq>>>,
    /// By number. A receiving queue pair of an XRC domain may have several structures. The oldest one gets its events.
    pub(crate) qps: Mutex<HashMap<u32, Vec<Raiser<Qp>>>>,
    /// By number.
    pub(crate) srqs: Mutex<HashMap<u32, Raiser<Srq>>>,
}

/// The address of an object, which is alive while it is in the table.
pub(crate) struct Raiser<C>(pub(crate) *mut C);

// SAFETY: it is only an address; a thread that dereferences it holds the lock that the object's destruction takes.
unsafe impl<C> Send for Raiser<C> {}

impl Raisers {
    /// Whether an event belongs to an object of this context, or to the port or device.
    pub(crate) fn raises(&self, event: &AsyncEvent) -> bool {
        use AsyncEvent::*;
        match event {
            QpFatal(qpn)
            | QpReqErr(qpn)
            | QpAccessErr(qpn)
            | CommEst(qpn)
            | SqDrained(qpn)
            | QpLastWqeReached(qpn) => self.qps.lock().contains_key(&qpn.value()),
            SrqLimitReached(number) => self.srqs.lock().contains_key(&number.0),
            CqErr(number) => self.cqs.lock().contains_key(&number.0),
            PortActive(_) | PortErr(_) | GidChange(_) | DeviceFatal => true,
            _ => false,
        }
    }
}
