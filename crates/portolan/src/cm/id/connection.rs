//! Connects and accepts, with the parameters of both sides.

use std::sync::atomic::Ordering;

use portolan_provider::cm::{ConnParam, Ece, EventParam, EventType};
use portolan_provider::verbs::QpType;
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::cm::RejectReason;

use super::CmId;
use crate::cm::event_data::EventData;

/// As `responder_resources` or `initiator_depth`: the device's maximum and, when accepting, at most
/// the request's value (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
pub const RESOURCES_MAX: u8 = 0xff;

/// The resources that a connection request offers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    responder_resources: u8,
    initiator_depth: u8,
}

impl Offer {
    const UNLIMITED: Self = Self {
        responder_resources: u8::MAX,
        initiator_depth: u8::MAX,
    };
}

/// The result of a handshake after the peer's reply.
#[derive(Debug)]
pub(in crate::cm) enum Finished {
    /// The connection is established.
    Established,
    /// This side could not complete it; the peer received a reject.
    Failed(Error),
    /// The peer withdrew its reply or died meanwhile; a separate event reports that.
    Overtaken,
}

impl CmId {
    /// Sends a connection request (`rdma_connect(3)`).
    ///
    /// If the id has a queue pair, the request carries its number and its kind of receive queue,
    /// and the handshake ends in `Established`. Otherwise `param.qp_num` names an external queue
    /// pair, and `ConnectResponse` requires [`CmId::establish`].
    ///
    /// # Errors
    /// The route is not resolved, or the parameters are out of range.
    pub fn connect(&self, param: &ConnParam) -> Result<()> {
        let mut param = self.with_own_queue_pair(param);
        self.fit(Step::Connect, &mut param, Offer::UNLIMITED)?;
        let prefix = self.shared.connect_prefix.lock().clone();
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
                // A datagram service answered with a Q_Key that the id may not use.
                EventType::AddrError,
            ],
        )
    }

    /// Accepts the connection request that created this id (`rdma_accept(3)`): moves its queue pair
    /// to RTS and sends the reply; `Established` follows. For datagrams no event follows, and a
    /// synchronous id does not wait.
    ///
    /// # Errors
    /// The request was withdrawn, or the parameters are out of range.
    pub fn accept(&self, param: &ConnParam) -> Result<()> {
        let mut param = self.with_own_queue_pair(param);
        let offer = self.shared.request.lock().unwrap_or(Offer::UNLIMITED);
        self.fit(Step::Accept, &mut param, offer)?;
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
    /// There is no request or reply, or the private data exceeds the message's field.
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        self.reject_for(RejectReason::CONSUMER_DEFINED, private_data)
    }

    /// Rejects a connection request or reply with reason 35, because of the peer's vendor options
    /// (`rdma_reject_ece(3)`).
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

    /// Sets the vendor options to send with the request or its answer (`rdma_set_local_ece(3)`).
    /// They describe an external queue pair.
    ///
    /// # Errors
    /// `InvalidState` if the id has its own queue pair, on which no such options were set.
    pub fn set_local_ece(&self, ece: Ece) -> Result<()> {
        if self.has_queue_pair() {
            let (expected, found) = ("an id without queue pair", "one with a queue pair");
            let cause = Cause::InvalidState { expected, found };
            return Err(self.explain(Error::new(Step::SetOption, cause)));
        }
        self.shared.ece.lock().local = ece;
        Ok(())
    }

    /// The vendor options to send with the request or its answer.
    pub fn local_ece(&self) -> Ece {
        self.shared.ece.lock().local
    }

    /// The vendor options in the peer's request or answer (`rdma_get_remote_ece(3)`).
    pub fn remote_ece(&self) -> Ece {
        self.shared.ece.lock().remote
    }

    /// Disconnects (`rdma_disconnect(3)`): the queue pair enters ERR and its work is flushed. `Disconnected` follows,
    /// and later `TimewaitExit`.
    ///
    /// # Errors
    /// The id is not connected.
    pub fn disconnect(&self) -> Result<()> {
        self.fail_queue_pair();
        // Before the event can arrive.
        let was_noted = self.shared.ender.note_this_side();
        if let Err(error) = self.channel().disconnect(self.number()) {
            if was_noted {
                self.shared.ender.take_back();
            }
            return Err(error);
        }
        if self.is_datagram() {
            return Ok(());
        }
        let ends = [EventType::Disconnected, EventType::TimewaitExit];
        self.complete(Step::Disconnect, &ends)
    }

    /// Handles the peer's reply: moves the queue pair to RTS and completes the handshake.
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
        // The peer sends nothing after a rejection, so the order does not matter.
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
        self.shared.ece.lock().remote = ece;
    }

    /// Stores the offer of the request that created this id.
    pub(in crate::cm) fn note_request(&self, request: &EventData) {
        self.note_remote_ece(request.ece());
        *self.shared.request.lock() = request.conn().map(|conn| Offer {
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

    /// Replaces [`RESOURCES_MAX`] with the device's limit or the offer, whichever is less, and rejects values above the
    /// limit.
    fn fit(&self, step: Step, param: &mut ConnParam, offer: Offer) -> Result<()> {
        let is_exempt = matches!(self.shared.service.qp_type, QpType::Uc | QpType::Ud)
            || (param.responder_resources, param.initiator_depth) == (0, 0);
        let limits = match is_exempt {
            true => None,
            // Without a device the provider fails with a specific error.
            false => self.device().ok().map(|device| device.attr()).transpose()?,
        };
        let limits = limits.map_or((u8::MAX, u8::MAX), |limits| {
            (limits.max_qp_rd_atom, limits.max_qp_init_rd_atom)
        });
        let asked = [
            (
                "responder resources",
                &mut param.responder_resources,
                offer.responder_resources,
                limits.0,
            ),
            (
                "initiator depth",
                &mut param.initiator_depth,
                offer.initiator_depth,
                limits.1,
            ),
        ];
        for (what, asked, offered, limit) in asked {
            if *asked == RESOURCES_MAX {
                *asked = limit.min(offered);
            }
            if *asked > limit {
                let expected = format_args!("0 to {limit}");
                return Err(self.explain(Error::invalid(step, what, expected, *asked)));
            }
        }
        Ok(())
    }
}
