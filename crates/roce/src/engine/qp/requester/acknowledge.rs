//! Responses: acknowledgements, refusals and read data.

use portolan_provider::verbs::WcStatus;
use portolan_wire::Psn;
use portolan_wire::bth::Opcode;
use portolan_wire::eth::{NakCode, Syndrome};
use portolan_wire::rocev2::Packet;

use super::{Broken, Exhausted, Requester};
use crate::engine::mutant::{Mutant, is_planted};
use crate::engine::qp::context::{Context, distance};
use crate::engine::qp::outbox::Outbox;
use crate::engine::qp::segment::SgeCursor;
use crate::engine::{DropReason, PlacementSource};

impl Requester {
    /// Handles a response packet.
    pub(in crate::engine::qp) fn handle_response(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        let number = match self.number_of(packet.bth().psn) {
            Ok(number) => number,
            Err(reason) => {
                out.counters.count_drop(reason);
                return Ok(());
            }
        };
        if packet.bth().opcode.is_read_response() {
            return self.on_read_response(cx, number, packet, out);
        }
        if packet.bth().opcode.as_rc() == Opcode::RcAtomicAck {
            return self.on_atomic_answer(cx, number, packet, out);
        }
        match packet.aeth().map(|aeth| aeth.syndrome) {
            // Credits are ignored: a message without a receive gets an RNR NAK.
            Some(Syndrome::Ack { .. }) if packet.bth().opcode.as_rc() == Opcode::RcAck => {
                self.on_ack(cx, number, out);
                Ok(())
            }
            Some(Syndrome::RnrNak { timer }) => self.on_rnr_nak(cx, number, timer, out),
            Some(Syndrome::Nak(code)) => self.on_nak(cx, number, code, out),
            _ => {
                out.counters.count_drop(DropReason::Malformed);
                Ok(())
            }
        }
    }

    /// Handles a positive acknowledgement.
    #[inline]
    pub(in crate::engine::qp) fn take_acknowledgement(
        &mut self,
        cx: &Context<'_>,
        psn: Psn,
        out: &mut Outbox,
    ) {
        match self.number_of(psn) {
            Ok(number) => self.on_ack(cx, number, out),
            Err(reason) => out.counters.count_drop(reason),
        }
    }

    /// The number of the packet in flight with this PSN. Half of the PSN space before the first unacknowledged packet
    /// is past; the rest was never sent.
    #[inline]
    pub(super) fn number_of(&self, psn: Psn) -> Result<u64, DropReason> {
        let distance = distance(psn, self.psn(self.una));
        let distance = u64::try_from(distance).map_err(|_| DropReason::StaleAck)?;
        let number = self.una + distance;
        if number < self.frontier {
            Ok(number)
        } else {
            Err(DropReason::GhostAck)
        }
    }

    /// Acknowledges everything up to and including packet `number`, except for reads and atomics. Their data
    /// acknowledge them, and missing data are requested again (IBTA 9.7.6.1, implied NAK).
    #[inline]
    fn on_ack(&mut self, cx: &Context<'_>, number: u64, out: &mut Outbox) {
        let mut end = number + 1;
        if is_planted(Mutant::AcknowledgesTooMuch) {
            end = (end + 1).min(self.frontier);
        }
        if !self.acknowledge_up_to(cx, end, out) {
            self.repair_gap(out);
        }
    }

    /// Handles read data, which acknowledge the requests before the read.
    fn on_read_response(
        &mut self,
        cx: &Context<'_>,
        number: u64,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        if !self.acknowledge_to(cx, number, out) {
            self.repair_gap(out);
            return Ok(());
        }
        let read = self.reads.oldest().filter(|read| read.first <= number);
        let entry = self.queue.front().filter(|entry| entry.is_read());
        let (Some(read), Some(entry)) = (read, entry) else {
            return Err(self.fail(number, WcStatus::BadRespErr, cx.qpn, out));
        };
        let mtu = u64::from(cx.mtu());
        let offset = (number - entry.first) * mtu;
        let expected_len = (u64::from(entry.len) - offset).min(mtu);
        let is_end = packet.bth().opcode.ends_message();
        let is_ack = match packet.aeth() {
            Some(aeth) => matches!(aeth.syndrome, Syndrome::Ack { .. }),
            None => true,
        };
        if packet.payload().len() as u64 != expected_len
            || is_end != (number + 1 == read.end)
            || !is_ack
        {
            return Err(self.fail(number, WcStatus::BadRespErr, cx.qpn, out));
        }
        let (source, len) = (PlacementSource::Payload, packet.payload().len());
        let placed = self
            .scatter
            .scatter(entry.sges(), offset, source, len, cx, out);
        if placed.is_err() {
            return Err(self.fail(number, WcStatus::LocProtErr, cx.qpn, out));
        }
        self.progress_to(cx, number + 1, out);
        Ok(())
    }

    fn on_rnr_nak(
        &mut self,
        cx: &Context<'_>,
        number: u64,
        timer: u8,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        out.counters.rnr_naks_received += 1;
        if is_planted(Mutant::NotReadyIgnored) {
            return Ok(());
        }
        if is_planted(Mutant::NotReadyTakenForAck) {
            self.on_ack(cx, number, out);
            return Ok(());
        }
        if self.retransmit.is_rnr_waiting() {
            // A duplicate of the NAK that started the wait.
            return Ok(());
        }
        if !self.acknowledge_to(cx, number, out) {
            self.repair_gap(out);
            return Ok(());
        }
        match self.retransmit.on_rnr_nak(cx.now, timer) {
            Ok(()) => {
                self.rewind();
                Ok(())
            }
            Err(Exhausted) => Err(self.fail(number, WcStatus::RnrRetryExcErr, cx.qpn, out)),
        }
    }

    fn on_nak(
        &mut self,
        cx: &Context<'_>,
        number: u64,
        code: NakCode,
        out: &mut Outbox,
    ) -> Result<(), Broken> {
        out.counters.naks_received += 1;
        let arrived = self.acknowledge_to(cx, number, out);
        let status = match code {
            NakCode::PsnSequenceError if !arrived => {
                self.repair_gap(out);
                return Ok(());
            }
            NakCode::PsnSequenceError => {
                if self.retransmit.on_sequence_nak() == Err(Exhausted) {
                    return Err(self.fail(number, WcStatus::RetryExcErr, cx.qpn, out));
                }
                self.window.on_loss(number, self.frontier);
                self.rewind();
                return Ok(());
            }
            NakCode::InvalidRequest | NakCode::InvalidRdRequest => WcStatus::RemInvReqErr,
            NakCode::RemoteAccessError => WcStatus::RemAccessErr,
            NakCode::RemoteOperationalError => WcStatus::RemOpErr,
        };
        Err(self.fail(number, status, cx.qpn, out))
    }

    /// The responder has everything before packet `to`. Returns true if that is now acknowledged; false if earlier read
    /// data are missing.
    pub(super) fn acknowledge_to(&mut self, cx: &Context<'_>, to: u64, out: &mut Outbox) -> bool {
        self.acknowledge_up_to(cx, to, out)
    }

    /// As [`acknowledge_to`](Self::acknowledge_to), for the usual case.
    #[inline(always)]
    fn acknowledge_up_to(&mut self, cx: &Context<'_>, to: u64, out: &mut Outbox) -> bool {
        let missing_from = self.reads.oldest().map(|read| read.first.max(self.una));
        let limit = missing_from.map_or(to, |missing| missing.min(to));
        if limit > self.una {
            self.progress_to(cx, limit, out);
        }
        limit == to
    }

    /// Everything before packet `una` is complete.
    #[inline(always)]
    pub(super) fn progress_to(&mut self, cx: &Context<'_>, una: u64, out: &mut Outbox) {
        let mtu = cx.mtu();
        let in_flight = self.in_flight(mtu);
        self.window
            .on_ack((una - self.una) * u64::from(mtu), in_flight, mtu);
        self.una = una;
        self.is_answered = true;
        self.reads.complete_to(una);
        self.complete_finished(cx.qpn, out);
        if self.next < una {
            // The first transmission did arrive, so less must be sent again.
            self.next = una;
            self.entry = 0;
            self.gather = SgeCursor::default();
        }
        self.retransmit
            .on_progress(cx.now, una, self.una < self.frontier);
    }

    /// Data of the read at `una` are missing although later packets arrived: requests them again, once per gap. If that
    /// is lost too, the timer repairs it.
    pub(super) fn repair_gap(&mut self, out: &mut Outbox) {
        if self.gap_repaired_at == Some(self.una) {
            out.counters.count_drop(DropReason::OutOfSequence);
            return;
        }
        self.gap_repaired_at = Some(self.una);
        self.window.on_loss(self.una, self.frontier);
        self.rewind();
    }
}
