//! Connecting and accepting, with the parameters of both sides.

use std::sync::atomic::Ordering;

use portolan_provider::cm::{ConnParam, Ece, EventParam, EventType};
use portolan_provider::verbs::QpType;
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::cm::RejectReason;

use super::CmId;
use crate::cm::event::EventData;
use crate::lock;

/// As `responder_resources` or `initiator_depth`: as many as the device has, and when accepting no more
/// than the request names (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
pub const RESOURCES_MAX: u8 = 0xff;

/// What a connection request offers its receiver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    responder_resources: u8,
    initiator_depth: u8,
}

/// What became of a handshake upon the peer's reply.
#[derive(Debug)]
pub(in crate::cm) enum Finished {
    /// It is complete.
    Established,
    /// This side could not complete it; the peer was told by a rejection.
    Failed(Error),
    /// The peer has taken its reply back, or died, before this side came to it: an event of its own
    /// says so.
    Overtaken,
}

impl CmId {
    /// Sends a connection request (`rdma_connect(3)`). Number and kind of receive queue are those of the
    /// id's queue pair, if it has one. With a queue pair of the id the handshake
    /// ends in `Established`; without, `ConnectResponse` asks for [`CmId::establish`], and
    /// `param.qp_num` names the external queue pair.
    ///
    /// # Errors
    /// The route is not resolved, or the parameters are beyond their bounds.
    pub fn connect(&self, param: &ConnParam) -> Result<()> {
        let mut param = self.with_own_queue_pair(param);
        self.fit_to_device(Step::Connect, &mut param)?;
        let prefix = lock(&self.shared.connect_prefix).clone();
        if !prefix.is_empty() {
            param.private_data = [&prefix, &*param.private_data].concat().into();
        }
        self.channel()
            .connect(self.number(), &param, self.local_ece())?;
        self.complete(
            Step::Connect,
            &[
                EventType::Established,
                EventType::ConnectResponse,
                EventType::ConnectError,
                EventType::Unreachable,
                EventType::Rejected,
                // A datagram service answered with a key that the id may not use.
                EventType::AddrError,
            ],
        )
    }

    /// Accepts the connection request that made this id (`rdma_accept(3)`): its queue pair goes to
    /// RTS, then the reply is sent; `Established` follows. For datagrams nothing follows, and a
    /// synchronous id does not wait.
    ///
    /// # Errors
    /// The request was withdrawn, or the parameters are beyond their bounds.
    pub fn accept(&self, param: &ConnParam) -> Result<()> {
        let mut param = self.with_own_queue_pair(param);
        self.fit_to_request(&mut param);
        self.fit_to_device(Step::Accept, &mut param)?;
        let is_datagram = self.is_datagram();
        if let Some(qp) = self.own_queue_pair().filter(|_| !is_datagram) {
            self.ready_queue_pair(&*qp, param.responder_resources, param.initiator_depth)?;
        }
        let (number, uid) = (self.number(), self.shared.uid);
        self.channel()
            .accept(number, uid, &param, self.local_ece())?;
        if is_datagram {
            return Ok(());
        }
        self.complete(
            Step::Accept,
            &[
                EventType::Established,
                EventType::ConnectError,
                EventType::Unreachable,
                EventType::Rejected,
                EventType::Disconnected,
            ],
        )
    }

    /// Completes an active connection with an external queue pair (`rdma_establish(3)`).
    ///
    /// # Errors
    /// No reply has arrived.
    pub fn establish(&self) -> Result<()> {
        self.channel().establish(self.number())
    }

    /// Rejects a connection request or reply (`rdma_reject(3)`).
    ///
    /// # Errors
    /// There is none, or the private data is longer than the message holds.
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        self.reject_for(RejectReason::CONSUMER_DEFINED, private_data)
    }

    /// Rejects a connection request or reply because of the peer's vendor options
    /// (`rdma_reject_ece(3)`): with the reason 35.
    ///
    /// # Errors
    /// As for [`CmId::reject`].
    pub fn reject_ece(&self, private_data: &[u8]) -> Result<()> {
        self.reject_for(RejectReason::VENDOR_OPTION_NOT_SUPPORTED, private_data)
    }

    fn reject_for(&self, reason: RejectReason, private_data: &[u8]) -> Result<()> {
        let rejected = self.channel().reject(self.number(), reason, private_data);
        let has_rejected = &self.shared.has_rejected;
        has_rejected.fetch_or(rejected.is_ok(), Ordering::AcqRel);
        rejected
    }

    /// Sets the vendor options that go out with the request or its answer (`rdma_set_local_ece(3)`), which
    /// are those of an external queue pair.
    ///
    /// # Errors
    /// `InvalidState` for an id with a queue pair of its own, whose options nobody has set.
    pub fn set_local_ece(&self, ece: Ece) -> Result<()> {
        if self.has_queue_pair() {
            let (expected, found) = ("an id without queue pair", "one with");
            let cause = Cause::InvalidState { expected, found };
            return Err(self.explain(Error::new(Step::SetOption, cause)));
        }
        lock(&self.shared.ece).local = ece;
        Ok(())
    }

    /// The vendor options that go out with the request or its answer.
    pub fn local_ece(&self) -> Ece {
        lock(&self.shared.ece).local
    }

    /// The vendor options that came with the peer's request or answer (`rdma_get_remote_ece(3)`).
    pub fn remote_ece(&self) -> Ece {
        lock(&self.shared.ece).remote
    }

    /// Disconnects (`rdma_disconnect(3)`): the queue pair goes to ERR and its work is flushed;
    /// `Disconnected` follows, and `TimewaitExit` later.
    ///
    /// # Errors
    /// The id is not connected.
    pub fn disconnect(&self) -> Result<()> {
        self.fail_queue_pair();
        self.channel().disconnect(self.number())?;
        if self.is_datagram() {
            return Ok(());
        }
        let ends = [EventType::Disconnected, EventType::TimewaitExit];
        self.complete(Step::Disconnect, &ends)
    }

    /// Brings the queue pair to RTS and completes the handshake, upon the peer's reply.
    pub(in crate::cm) fn finish_connect(&self, reply: &EventParam) -> Finished {
        let Err(error) = self.complete_handshake(reply) else {
            return Finished::Established;
        };
        let told = self
            .channel()
            .reject(self.number(), RejectReason::CONSUMER_DEFINED, &[]);
        let was_over =
            matches!(&told, Err(error) if matches!(error.cause, Cause::InvalidState { .. }));
        if was_over && !self.shared.has_rejected.load(Ordering::Acquire) {
            return Finished::Overtaken;
        }
        // Nothing that the peer says comes after a rejection, so the order does not matter.
        let has_failed = &self.shared.has_failed_to_connect;
        has_failed.store(true, Ordering::Release);
        self.fail_queue_pair();
        Finished::Failed(error)
    }

    fn complete_handshake(&self, reply: &EventParam) -> Result<()> {
        let qp = self.own_queue_pair().ok_or(Error::new(
            Step::Connect,
            Cause::NoSuchObject("the id's queue pair"),
        ))?;
        let (responder, initiator) = match reply {
            EventParam::Conn(conn) => (conn.responder_resources, conn.initiator_depth),
            _ => (u8::MAX, u8::MAX),
        };
        self.ready_queue_pair(&*qp, responder, initiator)?;
        self.channel().establish(self.number())
    }

    pub(in crate::cm) fn has_failed_to_connect(&self) -> bool {
        self.shared.has_failed_to_connect.load(Ordering::Acquire)
    }

    pub(in crate::cm) fn note_remote_ece(&self, ece: Ece) {
        lock(&self.shared.ece).remote = ece;
    }

    /// Notes what the request that made this id offers.
    pub(in crate::cm) fn note_request(&self, request: &EventData) {
        self.note_remote_ece(request.ece());
        *lock(&self.shared.request) = request.conn().map(|conn| Offer {
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
        });
    }

    fn is_datagram(&self) -> bool {
        self.shared.service.qp_type == QpType::Ud
    }

    fn with_own_queue_pair(&self, param: &ConnParam) -> ConnParam {
        let mut param = param.clone();
        if let Some(qp) = self.own_queue_pair() {
            param.qp_num = qp.qpn();
            param.srq = self.shares_receives();
        }
        param
    }

    /// Takes as much as the request names for [`RESOURCES_MAX`].
    fn fit_to_request(&self, param: &mut ConnParam) {
        if let Some(offer) = *lock(&self.shared.request) {
            let asked = [
                (&mut param.responder_resources, offer.responder_resources),
                (&mut param.initiator_depth, offer.initiator_depth),
            ];
            for (asked, offered) in asked {
                if *asked == RESOURCES_MAX {
                    *asked = offered;
                }
            }
        }
    }

    /// Takes the device's limits for [`RESOURCES_MAX`], and refuses more than them.
    fn fit_to_device(&self, step: Step, param: &mut ConnParam) -> Result<()> {
        if self.shared.service.qp_type != QpType::Rc
            || (param.responder_resources, param.initiator_depth) == (0, 0)
        {
            return Ok(());
        }
        // Without a device the provider refuses, and says what is missing.
        let Ok(device) = self.device() else {
            return Ok(());
        };
        let limits = device.attr()?;
        let asked = [
            (
                "responder resources",
                &mut param.responder_resources,
                limits.max_qp_rd_atom,
            ),
            (
                "initiator depth",
                &mut param.initiator_depth,
                limits.max_qp_init_rd_atom,
            ),
        ];
        for (what, asked, limit) in asked {
            if *asked == RESOURCES_MAX {
                *asked = limit;
            }
            if *asked > limit {
                let expected = format_args!("0 to {limit}");
                return Err(self.explain(Error::invalid(step, what, expected, *asked)));
            }
        }
        Ok(())
    }
}
