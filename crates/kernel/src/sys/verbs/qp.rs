//! Queue pairs.

use portolan_threads::lock::{Mutex, RwLock};
use std::any::Any;
use std::collections::VecDeque;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use portolan_abi_layout as abi;
use portolan_provider::error::errno::EOPNOTSUPP;
use portolan_provider::traits::{Cq, Mw, Qp, Srq};
use portolan_provider::verbs::{
    Counter, MwBind, QpAttr, QpAttrMask, QpCap, QpInit, QpType, RecvWr, Refusal, SendFlags, SendOp,
    SendWr,
};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::addr::{Gid, Qpn};

use super::ah::{AhShared, KernelAh};
use super::cq::KernelCq;
use super::domain::Domain;
use super::mw::{KernelMw, with_window};
use super::outcome::{check, foreign, made};
use super::post::{Full, Objects, bind_info, with_recv, with_send};
use super::srq::KernelSrq;

/// Mask to query all attributes (`enum ibv_qp_attr_mask`, 21 bits).
const QUERY_ALL: i32 = (1 << 21) - 1;

/// A queue pair of the kernel's.
#[derive(Debug)]
pub(super) struct KernelQp {
    /// `None` once it is destroyed. Posting reads the lock; destroying writes it.
    raw: RwLock<Option<NonNull<abi::Qp>>>,
    qpn: Qpn,
    qp_type: QpType,
    cap: QpCap,
    /// Address handles of datagrams that may be in flight: at most as many as the send queue holds.
    handles: Mutex<VecDeque<Arc<AhShared>>>,
    /// The groups that it is attached to, because the kernel does not destroy an attached queue pair.
    groups: Mutex<Vec<(Gid, u16)>>,
    pd: Arc<Domain>,
    // Destroyed after the queue pair.
    _cqs: [Arc<dyn Cq>; 2],
    _srq: Option<Arc<dyn Srq>>,
}

// SAFETY: libibverbs may be called by any thread.
unsafe impl Send for KernelQp {}
// SAFETY: as above.
unsafe impl Sync for KernelQp {}

impl KernelQp {
    pub(super) fn new(
        pd: Arc<Domain>,
        init: &QpInit,
        send_cq: &Arc<dyn Cq>,
        recv_cq: &Arc<dyn Cq>,
        srq: Option<&Arc<dyn Srq>>,
    ) -> Result<Self> {
        let device = &pd.device;
        if init.qp_type.is_xrc() {
            let cause = Cause::Unsupported("extended reliable connections");
            return Err(device.explain(Error::new(Step::CreateQp, cause)));
        }
        let shared = srq.map(|srq| shared_queue(srq, &pd)).transpose()?;
        let create = |srq: *mut abi::Srq| {
            let mut attr = abi::QpInitAttr {
                qp_context: null_mut(),
                send_cq: KernelCq::of(send_cq, device)?.raw.as_ptr(),
                recv_cq: KernelCq::of(recv_cq, device)?.raw.as_ptr(),
                srq,
                cap: (&init.cap).into(),
                qp_type: init.qp_type as u32,
                sq_sig_all: i32::from(init.sq_sig_all),
            };
            // SAFETY: the objects exist and belong to one device; the library writes the sizes it chose.
            let raw = unsafe { (device.library.create_qp)(pd.raw.as_ptr(), &mut attr) };
            let raw = made(Step::CreateQp, "ibv_create_qp", raw);
            Ok((raw.map_err(|error| device.explain(error))?, attr))
        };
        let (raw, attr) = match shared {
            Some(srq) => srq.with(Step::CreateQp, |raw| create(raw.as_ptr()))?,
            None => create(null_mut())?,
        };
        // SAFETY: the queue pair exists; its number does not change.
        let qpn = Qpn::new(unsafe { (*raw.as_ptr()).qp_num });
        Ok(Self {
            raw: RwLock::new(Some(raw)),
            qpn,
            qp_type: init.qp_type,
            cap: (&attr.cap).into(),
            handles: Mutex::default(),
            groups: Mutex::default(),
            pd,
            _cqs: [send_cq.clone(), recv_cq.clone()],
            _srq: srq.cloned(),
        })
    }

    /// Runs `act` with the queue pair, unless it is destroyed.
    fn with<T>(&self, step: Step, act: impl FnOnce(NonNull<abi::Qp>) -> Result<T>) -> Result<T> {
        self.pd.device.check(step)?;
        let raw = self.raw.read();
        let gone = || Error::new(step, Cause::NoSuchObject("queue pair"));
        raw.ok_or_else(gone).and_then(act)
    }

    /// The address handle of a datagram.
    fn handle<'a>(&self, wr: &'a SendWr<'_>) -> Result<Option<(&'a Arc<AhShared>, abi::RemoteUd)>> {
        let Some(ud) = &wr.ud else {
            return Ok(None);
        };
        let ah = ud.ah.as_any().downcast_ref::<KernelAh>();
        let ah = ah
            .filter(|ah| Arc::ptr_eq(&ah.shared().pd.device, &self.pd.device))
            .ok_or_else(|| foreign(Step::PostSend, "address handle of this device"))?;
        let destination = abi::RemoteUd {
            ah: ah.shared().raw.as_ptr(),
            remote_qpn: ud.qpn.value(),
            remote_qkey: ud.qkey.0,
        };
        Ok(Some((ah.shared(), destination)))
    }

    /// Keeps the address handle of a posted datagram until the datagram cannot be in flight.
    fn keep(&self, handle: &Arc<AhShared>) {
        let mut handles = self.handles.lock();
        handles.push_back(handle.clone());
        if handles.len() > most_under_way(self.cap.max_send_wr) {
            let oldest = handles.pop_front();
            drop(handles);
            // May destroy it, so not under the lock.
            drop(oldest);
        }
    }

    fn post(&self, raw: NonNull<abi::Qp>, wr: &SendWr<'_>, objects: Objects) -> Result<()> {
        let full = Full {
            step: Step::PostSend,
            verb: "ibv_post_send",
            what: "work requests of the send queue",
            limit: || self.cap.max_send_wr,
        };
        with_send(wr, objects, full, |request, bad| {
            self.pd.device.ops().post_send.map_or(EOPNOTSUPP, |send| {
                // SAFETY: the queue pair exists; the request and `bad` are valid during the call.
                unsafe { send(raw.as_ptr(), request, bad) }
            })
        })
    }

    fn group(
        &self,
        step: Step,
        verb: &'static str,
        call: unsafe extern "C" fn(*mut abi::Qp, *const abi::Gid, u16) -> i32,
        (gid, lid): (Gid, u16),
    ) -> Result<()> {
        self.with(step, |raw| {
            // SAFETY: the queue pair exists, and the library only reads the GID.
            let code = unsafe { call(raw.as_ptr(), &gid.into(), lid) };
            check(step, verb, code).map_err(|error| self.pd.device.explain(error))
        })
    }
}

/// Maximum number of work requests in a send queue of this length: drivers round it up to a power of two and do not all
/// report that.
fn most_under_way(max_send_wr: u32) -> usize {
    (max_send_wr as usize + 1).next_power_of_two()
}

fn shared_queue<'a>(srq: &'a Arc<dyn Srq>, pd: &Domain) -> Result<&'a KernelSrq> {
    srq.as_any()
        .downcast_ref::<KernelSrq>()
        .filter(|srq| Arc::ptr_eq(&srq.pd.device, &pd.device))
        .ok_or_else(|| foreign(Step::CreateQp, "shared receive queue of this device"))
}

impl portolan_provider::sealed::Sealed for KernelQp {}

impl Qp for KernelQp {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let mut raw_attr = abi::QpAttr::from(attr);
        let mask = mask.bits().cast_signed();
        self.with(Step::ModifyQp, |raw| {
            let library = &self.pd.device.library;
            // SAFETY: the queue pair exists.
            let code = unsafe { (library.modify_qp)(raw.as_ptr(), &mut raw_attr, mask) };
            check(Step::ModifyQp, "ibv_modify_qp", code)
                .map_err(|error| self.pd.device.explain(error))
        })
    }

    fn query(&self) -> Result<(QpAttr, QpInit)> {
        let mut attr = abi::QpAttr::zeroed();
        let mut init = abi::QpInitAttr::zeroed();
        self.with(Step::ModifyQp, |raw| {
            let library = &self.pd.device.library;
            // SAFETY: the queue pair exists, and there is room for both structures.
            let code = unsafe { (library.query_qp)(raw.as_ptr(), &mut attr, QUERY_ALL, &mut init) };
            check(Step::ModifyQp, "ibv_query_qp", code)
                .map_err(|error| self.pd.device.explain(error))?;
            let init = QpInit {
                qp_type: self.qp_type,
                cap: (&init.cap).into(),
                sq_sig_all: init.sq_sig_all != 0,
            };
            // A queue pair has no path MTU before RTR.
            let unset = if attr.path_mtu == 0 {
                abi::qp_attr_mask::PATH_MTU
            } else {
                0
            };
            Ok((attr.named_by(!unset)?, init))
        })
    }

    fn counters(&self) -> Result<Vec<Counter>> {
        let what = "counters per queue pair (the kernel's drivers count per port)";
        Err(Error::new(Step::Query, Cause::Unsupported(what)))
    }

    fn refusal(&self) -> Result<Option<Refusal>> {
        self.pd.device.refusal(self.qpn)
    }

    fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        let handle = self.handle(wr)?;
        let ud = handle.map(|(_, ud)| ud);
        self.with(Step::PostSend, |raw| {
            match &wr.op {
                SendOp::BindMw { rkey, bind, .. } => {
                    with_window(&self.pd.device, *rkey, bind, |mw, mr| {
                        let window = Some((mw, mr));
                        self.post(raw, wr, Objects { ud, window })
                    })?;
                }
                _ => self.post(raw, wr, Objects { ud, window: None })?,
            }
            // A refused request is not in the queue and must not displace a posted one.
            if let Some((handle, _)) = handle {
                self.keep(handle);
            }
            Ok(())
        })
    }

    fn bind_mw(
        &self,
        mw: &Arc<dyn Mw>,
        wr_id: u64,
        bind: &MwBind,
        flags: SendFlags,
    ) -> Result<u32> {
        let mw = mw.as_any().downcast_ref::<KernelMw>();
        let mw = mw.ok_or_else(|| foreign(Step::BindMw, "memory window of this device"))?;
        let request = abi::MwBind {
            wr_id,
            send_flags: flags.bits(),
            bind_info: bind_info(null_mut(), Some(bind)),
        };
        self.with(Step::BindMw, |raw| {
            // SAFETY: the queue pair is not destroyed during the call.
            unsafe { mw.bind(&self.pd.device, raw, request, bind) }
        })
    }

    fn post_recv(&self, wr: &RecvWr<'_>) -> Result<()> {
        self.with(Step::PostReceive, |raw| {
            let full = Full {
                step: Step::PostReceive,
                verb: "ibv_post_recv",
                what: "work requests of the receive queue",
                limit: || self.cap.max_recv_wr,
            };
            with_recv(wr, full, |request, bad| {
                self.pd.device.ops().post_recv.map_or(EOPNOTSUPP, |recv| {
                    // SAFETY: the queue pair exists; the request and `bad` are valid during the call.
                    unsafe { recv(raw.as_ptr(), request, bad) }
                })
            })
        })
    }

    fn attach_mcast(&self, gid: &Gid, lid: u16) -> Result<()> {
        let attach = self.pd.device.library.attach_mcast;
        let group = (*gid, lid);
        self.group(Step::AttachMulticast, "ibv_attach_mcast", attach, group)?;
        let mut groups = self.groups.lock();
        if !groups.contains(&group) {
            groups.push(group);
        }
        Ok(())
    }

    fn detach_mcast(&self, gid: &Gid, lid: u16) -> Result<()> {
        let detach = self.pd.device.library.detach_mcast;
        let group = (*gid, lid);
        self.group(Step::DetachMulticast, "ibv_detach_mcast", detach, group)?;
        self.groups.lock().retain(|attached| *attached != group);
        Ok(())
    }

    fn destroy(&self) -> Result<()> {
        self.pd.device.check(Step::CreateQp)?;
        let mut raw = self.raw.write();
        let Some(qp) = *raw else {
            return Ok(());
        };
        let library = &self.pd.device.library;
        for (gid, lid) in self.groups.lock().drain(..) {
            // A failure means that the group is already detached.
            // SAFETY: the queue pair exists, and the write lock excludes all other users.
            let _ = unsafe { (library.detach_mcast)(qp.as_ptr(), &gid.into(), lid) };
        }
        // SAFETY: as above.
        let code = unsafe { (library.destroy_qp)(qp.as_ptr()) };
        let device = &self.pd.device;
        device.ended(Step::CreateQp, "ibv_destroy_qp", code)?;
        *raw = None;
        device.async_events.lock().forget(self.qpn);
        self.handles.lock().clear();
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for KernelQp {
    fn drop(&mut self) {
        if self.pd.device.is_own()
            && let Err(error) = self.destroy()
        {
            tracing::warn!(%error, "queue pair not destroyed");
        }
    }
}
