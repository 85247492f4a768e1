//! Outgoing messages: encoding, addressing, retransmission.

use core::time::Duration;

use portolan_provider::cm::IdNumber;
use portolan_wire::cm::{
    AdditionalInfo, AttributeId, CmMessage, MraMessage, MraRepr, RejMessage, RejRepr, RejectReason,
};
use portolan_wire::mad::{MAD_LEN, MadPacket};

use crate::engine::Cm;
use crate::id::Connection;
use crate::retry::Request;
use crate::types::{MadPath, Transmit};

/// Hop limit of answers to messages that belong to no id.
const ANSWER_HOP_LIMIT: u8 = 64;

impl Cm {
    /// Sends a message to an id's peer and retransmits it until it is answered.
    pub(crate) fn send_request(
        &mut self,
        now: Duration,
        number: IdNumber,
        tid: u64,
        message: impl Into<CmMessage>,
    ) {
        let Some(mad) = self.encode(tid, &message.into()) else {
            return;
        };
        let backoff_shift = self.config.retry_backoff_shift;
        let Some(id) = self.ids.get_mut(number) else {
            return;
        };
        let patience = id.patience();
        let (Some((timeout, retries)), Some(slot)) = (patience, id.request_mut()) else {
            return;
        };
        let request = Request::sent(mad, now, timeout, retries, backoff_shift);
        let due_at = request.due_at();
        *slot = Some(request);
        self.set_deadline(number, Some(due_at));
        self.transmit_for(number, mad);
    }

    /// Retransmits the message that awaits an answer.
    pub(crate) fn send_request_again(&mut self, number: IdNumber) {
        let Some(request) = self.ids.get(number).and_then(|id| id.request()) else {
            return;
        };
        let mad = *request.mad;
        if let Some(kind) = kind_of(&mad) {
            self.counters.sent[kind] += 1;
            self.counters.retried[kind] += 1;
        }
        self.transmit_for(number, mad);
    }

    /// Sends a message of an id's connection once. Returns it as a datagram.
    pub(crate) fn send(
        &mut self,
        number: IdNumber,
        message: impl FnOnce(&Connection) -> (u64, CmMessage),
    ) -> Option<[u8; MAD_LEN]> {
        let connection = self.ids.get(number)?.connection.as_deref()?;
        let (tid, message) = message(connection);
        let mad = self.encode(tid, &message)?;
        self.transmit_for(number, mad);
        Some(mad)
    }

    /// Acknowledges a repeated message that the owner has not answered yet.
    pub(crate) fn send_mra(&mut self, number: IdNumber, message: MraMessage) {
        let service_timeout = self.config.mra_timeout_exp;
        self.send(number, |connection| {
            let mra = MraRepr {
                local_comm_id: connection.local_comm_id,
                remote_comm_id: connection.remote_comm_id.unwrap_or(0),
                message,
                service_timeout,
                ..MraRepr::default()
            };
            (connection.tid, mra.into())
        });
    }

    /// Refuses a message that belongs to no id, on the path it came from. `ids` are ours, which may be 0, and the
    /// peer's.
    pub(crate) fn refuse(
        &mut self,
        path: &MadPath,
        tid: u64,
        (local_comm_id, remote_comm_id): (u32, u32),
        message: RejMessage,
        reason: RejectReason,
        info: &[u8],
    ) {
        let rej = RejRepr {
            local_comm_id,
            remote_comm_id,
            message,
            reason,
            additional_info: AdditionalInfo::from_slice(info).unwrap_or_default(),
            ..RejRepr::default()
        };
        self.answer(path, tid, rej);
    }

    /// Answers a message that belongs to no id, on the path it came from.
    pub(crate) fn answer(&mut self, path: &MadPath, tid: u64, message: impl Into<CmMessage>) {
        if let Some(mad) = self.encode(tid, &message.into()) {
            self.transmit_back(path, mad);
        }
    }

    /// Retransmits an answer.
    pub(crate) fn answer_again(&mut self, path: &MadPath, mad: [u8; MAD_LEN]) {
        if let Some(kind) = kind_of(&mad) {
            self.counters.sent[kind] += 1;
        }
        self.transmit_back(path, mad);
    }

    /// Queues a datagram for the path that a message came from.
    pub(crate) fn transmit_back(&mut self, path: &MadPath, mad: [u8; MAD_LEN]) {
        let hop_limit = ANSWER_HOP_LIMIT;
        self.transmit(Transmit {
            path: *path,
            traffic_class: 0,
            flow_label: 0,
            hop_limit,
            sl: 0,
            mad,
        });
    }

    /// The message as a datagram, counted as sent. Values are checked on input, so each fits its field.
    pub(crate) fn encode(&mut self, tid: u64, message: &CmMessage) -> Option<[u8; MAD_LEN]> {
        let mut mad = [0; MAD_LEN];
        let emitted = message.emit(tid, &mut mad);
        debug_assert!(emitted.is_ok(), "{emitted:?}");
        emitted.ok()?;
        self.counters.sent[message.attribute_id()] += 1;
        Some(mad)
    }

    /// Queues a datagram to an id's peer.
    fn transmit_for(&mut self, number: IdNumber, mad: [u8; MAD_LEN]) {
        let Some(id) = self.ids.get(number) else {
            return;
        };
        let (Some(mad_path), Some(path)) = (id.mad_path(), &id.path) else {
            return;
        };
        self.transmit(Transmit {
            path: *mad_path,
            traffic_class: path.traffic_class,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            sl: path.sl,
            mad,
        });
    }
}

/// The type of the message in a datagram that we built.
fn kind_of(mad: &[u8; MAD_LEN]) -> Option<AttributeId> {
    let header = MadPacket::new_checked(mad).ok()?.header();
    AttributeId::from_value(header.attribute_id)
}
