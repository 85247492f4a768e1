//! An id's queue pair and its state transitions.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use portolan_provider::traits::{CompChannel, Cq, Pd, Qp, Srq};
use portolan_provider::verbs::{QpAttr, QpAttrMask, QpInit, QpState, QpType};
use portolan_provider::{Cause, Error, Result, Step};

use super::CmId;

/// The parameters of an id's queue pair, with objects of the caller's. A [`QueuePairPlan`] creates what is missing.
///
/// ```
/// # use portolan::cm::{CmId, EventChannel, EventType};
/// use portolan::cm::{NewQueuePair, QpCap, QpInit, QpType};
/// # let patience = std::time::Duration::from_secs(5);
/// # let channel = EventChannel::open()?;
/// # let id = CmId::new(&channel)?;
/// # id.resolve_addr(None, "127.0.0.1:7471".parse().unwrap(), patience)?;
/// # assert_eq!(channel.next_event_within(patience)?.event_type(), EventType::AddrResolved);
///
/// let device = id.device()?;
/// let (pd, cq) = (device.alloc_pd()?, device.create_cq(16, None, 0)?);
/// let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, ..QpCap::default() };
/// let qp = id.create_queue_pair(&NewQueuePair {
///     pd: &pd,
///     send_cq: &cq,
///     recv_cq: &cq,
///     srq: None,
///     init: QpInit { qp_type: QpType::Rc, cap, sq_sig_all: true },
/// })?;
/// assert_eq!(id.queue_pair().expect("it has one").qpn(), qp.qpn());
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Debug)]
pub struct NewQueuePair<'a> {
    /// Protection domain, of the id's device.
    pub pd: &'a Arc<dyn Pd>,
    /// Completion queue for sends.
    pub send_cq: &'a Arc<dyn Cq>,
    /// Completion queue for receives.
    pub recv_cq: &'a Arc<dyn Cq>,
    /// Shared receive queue of the protection domain, if any.
    pub srq: Option<&'a Arc<dyn Srq>>,
    /// Type and sizes.
    pub init: QpInit,
}

/// A plan for queue pairs. Missing objects are created together with the queue pair.
///
/// [`CmId::create_planned_queue_pair`] follows a plan once. A listening endpoint ([`CmId::endpoint`]) follows it for each
/// request.
///
/// ```
/// # use portolan::cm::{CmId, EventChannel, EventType};
/// use portolan::cm::{QpCap, QpInit, QpType, QueuePairPlan};
/// # let patience = std::time::Duration::from_secs(5);
/// # let channel = EventChannel::open()?;
/// # let id = CmId::new(&channel)?;
/// # id.resolve_addr(None, "127.0.0.1:7471".parse().unwrap(), patience)?;
/// # assert_eq!(channel.next_event_within(patience)?.event_type(), EventType::AddrResolved);
///
/// let plan = QueuePairPlan {
///     pd: None,      // that of the device's other ids
///     send_cq: None, // a queue for 8 completions, with a channel
///     recv_cq: None, // a queue for 16, with a channel
///     srq: None,
///     init: QpInit {
///         qp_type: QpType::Rc,
///         cap: QpCap { max_send_wr: 8, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
///         sq_sig_all: true,
///     },
/// };
/// // The address of `id` is resolved, so it has a device.
/// id.create_planned_queue_pair(&plan)?;
/// let received = id.recv_completions().expect("those of the queue pair");
/// assert!(received.cq.capacity() >= 16 && received.channel.is_some());
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct QueuePairPlan {
    /// Protection domain; `None` uses the one that the device's endpoints share.
    pub pd: Option<Arc<dyn Pd>>,
    /// Completion queue for sends; `None` creates one with a channel.
    pub send_cq: Option<Arc<dyn Cq>>,
    /// Completion queue for receives; `None` creates one with a channel.
    pub recv_cq: Option<Arc<dyn Cq>>,
    /// Shared receive queue, if any.
    pub srq: Option<Arc<dyn Srq>>,
    /// Type and sizes.
    pub init: QpInit,
}

/// A completion queue of an id's queue pair.
///
/// ```
/// # use portolan::cm::{CmId, EventChannel, EventType};
/// # use portolan::cm::{QpCap, QpInit, QpType, QueuePairPlan};
/// # use portolan::provider::verbs::{QpAttr, QpAttrMask, QpState};
/// use portolan::provider::verbs::{RecvWr, WcStatus, WorkCompletion};
/// # let patience = std::time::Duration::from_secs(5);
/// # let events = EventChannel::open()?;
/// # let id = CmId::new(&events)?;
/// # id.resolve_addr(None, "127.0.0.1:7471".parse().unwrap(), patience)?;
/// # assert_eq!(events.next_event_within(patience)?.event_type(), EventType::AddrResolved);
/// # let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, ..QpCap::default() };
/// # let init = QpInit { qp_type: QpType::Rc, cap, sq_sig_all: true };
/// # let plan = QueuePairPlan { pd: None, send_cq: None, recv_cq: None, srq: None, init };
///
/// let qp = id.create_planned_queue_pair(&plan)?; // without queues of its own
/// let received = id.recv_completions().expect("that of the queue pair");
/// let channel = received.channel.as_ref().expect("it was created with the queue");
/// received.cq.arm(false)?; // the next completion makes the channel readable
/// qp.post_recv(&RecvWr { wr_id: 7, sges: &[] })?;
/// # let flush = QpAttr { state: QpState::Err, ..QpAttr::default() };
/// # qp.modify(&flush, QpAttrMask::STATE)?;
/// // The connection ends, so the receive is flushed.
/// assert!(channel.take_event()?.is_some());
/// let mut batch = [WorkCompletion::EMPTY; 4];
/// assert_eq!(received.cq.poll(&mut batch)?, 1);
/// assert_eq!((batch[0].wr_id, batch[0].status), (7, WcStatus::WrFlushErr));
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Completions {
    /// The queue.
    pub cq: Arc<dyn Cq>,
    /// Its channel, if it was created together with the queue pair.
    pub channel: Option<Arc<dyn CompChannel>>,
}

/// An id's queue pair with its completion queues.
#[derive(Debug)]
pub(super) struct OwnQueuePair {
    pub(super) qp: Arc<dyn Qp>,
    pub(super) srq: Option<Arc<dyn Srq>>,
    send: Completions,
    recv: Completions,
    /// Keeps a shared protection domain alive, so that the next queue pair finds it.
    _pd: Arc<dyn Pd>,
    /// Whether only its creator may post to it, take its completions and destroy it.
    pub(super) is_private: bool,
    /// The creator of a private one, if it wants to know of the id's end.
    pub(super) owner: Option<Weak<dyn QueuePairOwner>>,
}

/// The creator of a private queue pair.
pub(crate) trait QueuePairOwner: fmt::Debug + Send + Sync {
    /// The program destroys the id: no further event will arrive.
    fn id_is_destroyed(&self);
}

impl CmId {
    /// Creates the id's queue pair (`rdma_create_qp(3)`) and moves it to INIT, or to RTS for
    /// datagrams.
    ///
    /// # Errors
    /// The id has no device or already has a queue pair, or the sizes exceed the device's limits.
    pub fn create_queue_pair(&self, new: &NewQueuePair<'_>) -> Result<Arc<dyn Qp>> {
        self.create_new(new, false)
    }

    /// Like [`CmId::create_queue_pair`], for a queue pair that the id never exposes. Other code
    /// that posts to it or takes its completions could get a buffer back whose work is still
    /// posted.
    pub(crate) fn create_private_queue_pair(&self, new: &NewQueuePair<'_>) -> Result<Arc<dyn Qp>> {
        self.create_new(new, true)
    }

    /// Sets who is told when the program destroys the id.
    pub(crate) fn set_queue_pair_owner(&self, owner: Weak<dyn QueuePairOwner>) {
        if let Some(own) = &mut *self.shared.queue_pair.lock() {
            own.owner = Some(owner);
        }
    }

    fn create_new(&self, new: &NewQueuePair<'_>, is_private: bool) -> Result<Arc<dyn Qp>> {
        let queue = |cq: &Arc<dyn Cq>| Completions {
            cq: cq.clone(),
            channel: None,
        };
        let queues = (queue(new.send_cq), queue(new.recv_cq));
        self.create_on(new.pd, queues, new.srq, &new.init, is_private)
    }

    /// Creates the id's queue pair by a plan, and the completion queues that the plan lacks.
    ///
    /// # Errors
    /// As for [`CmId::create_queue_pair`], and those of creating the queues.
    pub fn create_planned_queue_pair(&self, plan: &QueuePairPlan) -> Result<Arc<dyn Qp>> {
        let device = self.device()?;
        let pd = match &plan.pd {
            Some(pd) => pd.clone(),
            None => crate::device::shared_pd(&device)?,
        };
        let queue = |given: &Option<Arc<dyn Cq>>, depth: u32| -> Result<Completions> {
            if let Some(cq) = given.clone() {
                return Ok(Completions { cq, channel: None });
            }
            let channel = device.create_comp_channel()?;
            let cookie = self.shared.uid.0;
            let cq = device.create_cq(depth.max(1), Some(&channel), cookie)?;
            let channel = Some(channel);
            Ok(Completions { cq, channel })
        };
        let send = queue(&plan.send_cq, plan.init.cap.max_send_wr)?;
        let recv = queue(&plan.recv_cq, plan.init.cap.max_recv_wr)?;
        self.create_on(&pd, (send, recv), plan.srq.as_ref(), &plan.init, false)
    }

    fn create_on(
        &self,
        pd: &Arc<dyn Pd>,
        (send, recv): (Completions, Completions),
        srq: Option<&Arc<dyn Srq>>,
        init: &QpInit,
        is_private: bool,
    ) -> Result<Arc<dyn Qp>> {
        let mut held = self.shared.queue_pair.lock();
        if held.is_some() {
            return Err(self.explain(Error::new(
                Step::CreateQp,
                Cause::InvalidState {
                    expected: "an id without queue pair",
                    found: "one with",
                },
            )));
        }
        if init.qp_type != self.shared.service.qp_type {
            let (expected, found) = (self.shared.service.qp_type, init.qp_type);
            let what = "queue pair type";
            return Err(self.explain(Error::invalid(Step::CreateQp, what, expected, found)));
        }
        let qp = pd.create_qp(init, &send.cq, &recv.cq, srq)?;
        let states: &[QpState] = match init.qp_type {
            QpType::Ud => &[QpState::Init, QpState::Rtr, QpState::Rts],
            _ => &[QpState::Init],
        };
        for state in states {
            let (attr, mask) = self.channel().init_qp_attr(self.number(), *state)?;
            qp.modify(&attr, mask)?;
        }
        let created = qp.clone();
        let srq = srq.cloned();
        *held = Some(OwnQueuePair {
            qp,
            srq,
            send,
            recv,
            _pd: pd.clone(),
            is_private,
            owner: None,
        });
        Ok(created)
    }

    /// Destroys the id's queue pair (`rdma_destroy_qp(3)`), and the completion queues created with
    /// it unless they are still referenced. The id may then create another.
    ///
    /// # Errors
    /// `NoSuchObject` if the id has none, or if it belongs to a [`Connection`](crate::Connection),
    /// which destroys it itself.
    pub fn destroy_queue_pair(&self) -> Result<()> {
        let own = self.shared.queue_pair.lock().take_if(|own| !own.is_private);
        let missing = || {
            let cause = Cause::NoSuchObject("the id's queue pair");
            self.explain(Error::new(Step::DestroyId, cause))
        };
        own.ok_or_else(missing)?.qp.destroy()
    }

    /// The id's queue pair; `None` for the id of a [`Connection`](crate::Connection), which never
    /// exposes its queue pair and completions.
    pub fn queue_pair(&self) -> Option<Arc<dyn Qp>> {
        self.of_public(|own| own.qp.clone())
    }

    /// The completion queue of the queue pair's sends (`send_cq`, `send_cq_channel`); `None`
    /// whenever [`CmId::queue_pair`] is.
    pub fn send_completions(&self) -> Option<Completions> {
        self.of_public(|own| own.send.clone())
    }

    /// The completion queue of the queue pair's receives (`recv_cq`, `recv_cq_channel`); `None`
    /// whenever [`CmId::queue_pair`] is.
    pub fn recv_completions(&self) -> Option<Completions> {
        self.of_public(|own| own.recv.clone())
    }

    fn of_public<T>(&self, part: impl FnOnce(&OwnQueuePair) -> T) -> Option<T> {
        let held = self.shared.queue_pair.lock();
        held.as_ref().filter(|own| !own.is_private).map(part)
    }

    /// The id's queue pair, including a private one.
    pub(super) fn own_queue_pair(&self) -> Option<Arc<dyn Qp>> {
        let held = self.shared.queue_pair.lock();
        held.as_ref().map(|own| own.qp.clone())
    }

    /// The attributes that move an external queue pair to `state` (`rdma_init_qp_attr(3)`).
    ///
    /// # Errors
    /// The id's state does not provide them yet.
    pub fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, QpAttrMask)> {
        self.channel().init_qp_attr(self.number(), state)
    }

    /// Returns whether the queue pair uses a shared receive queue.
    pub(super) fn shares_receives(&self) -> bool {
        let held = self.shared.queue_pair.lock();
        held.as_ref().is_some_and(|own| own.srq.is_some())
    }

    pub(in crate::cm) fn has_queue_pair(&self) -> bool {
        self.shared.queue_pair.lock().is_some()
    }

    /// Moves the queue pair from INIT through RTR to RTS with the handshake's attributes. Reads and
    /// atomics are limited to what both sides named.
    ///
    /// The access rights are set again with RTR, as IBTA 10.3.1 permits: the queue pair may have been created before
    /// the handshake showed whether the peer may read. On the passive side the request shows that.
    pub(super) fn ready_queue_pair(&self, qp: &dyn Qp, responder: u8, initiator: u8) -> Result<()> {
        let (mut attr, mut mask) = self.channel().init_qp_attr(self.number(), QpState::Rtr)?;
        if self.shared.request.lock().is_none() {
            let (init, init_mask) = self.channel().init_qp_attr(self.number(), QpState::Init)?;
            attr.access = init.access;
            mask |= init_mask & QpAttrMask::ACCESS_FLAGS;
        }
        attr.min_rnr_timer = self.shared.min_rnr_timer.load(Ordering::Relaxed);
        if responder != u8::MAX {
            attr.max_dest_rd_atomic = attr.max_dest_rd_atomic.min(responder);
        }
        qp.modify(&attr, mask)?;
        let (mut attr, mask) = self.channel().init_qp_attr(self.number(), QpState::Rts)?;
        if initiator != u8::MAX {
            attr.max_rd_atomic = attr.max_rd_atomic.min(initiator);
        }
        qp.modify(&attr, mask)
    }

    /// Moves the id's queue pair to ERR; its work is flushed.
    pub(crate) fn fail_queue_pair(&self) {
        if let Some(qp) = self.own_queue_pair() {
            fail(&*qp);
        }
    }
}

/// Moves a queue pair to ERR; its work is flushed.
pub(super) fn fail(qp: &dyn Qp) {
    let attr = QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    };
    // Modify fails for a queue pair in RESET, which has no work, and for one that is gone.
    let _ = qp.modify(&attr, QpAttrMask::STATE);
}
