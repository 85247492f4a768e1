//! Packets on the wire: PSNs in sequence, and acknowledgements only of what arrived.

use std::time::Duration;

use portolan_wire::Psn;
use portolan_wire::bth::Opcode;
use portolan_wire::eth::{AethRepr, Syndrome};
use portolan_wire::rocev2::Packet;
use portolan_wire::timer::rnr_timer_us;

use super::{EndpointIndex, Oracle};
use crate::simulator::failure::{Violation, ensure, violation};

/// Packets that an endpoint has sent.
#[derive(Debug, Default)]
pub(in crate::simulator) struct Wire {
    /// First PSN of its requests, and the one after the last.
    requests: Option<(Psn, Psn)>,
    /// First PSN of its requests that no response covers.
    unanswered: Option<Psn>,
    /// The peer asked it to wait until this time.
    waits_until: Duration,
    /// It is waiting and has sent nothing since.
    is_silent: bool,
}

/// Properties of the path of an endpoint's packets.
#[derive(Clone, Copy, Debug)]
pub(in crate::simulator) struct Path {
    pub(in crate::simulator) mtu: u32,
    /// Bytes that may be in flight. Each packet counts as a full one.
    pub(in crate::simulator) window_bytes_max: u32,
}

impl Oracle {
    /// A packet that the endpoint's queue pair sends.
    pub(in crate::simulator) fn transmitted(
        &mut self,
        index: EndpointIndex,
        now: Duration,
        packet: &Packet<'_>,
        path: Path,
    ) -> Result<(), Violation> {
        let bth = packet.bth();
        let peer = self.peer(index).map(|peer| peer.qpn);
        ensure!(
            peer == Some(bth.dest_qp),
            "endpoint {index} sends to {}, which is not its peer",
            bth.dest_qp
        );
        match packet.aeth() {
            _ if bth.opcode.is_request() => self.requests(index, now, packet, path),
            Some(aeth) if bth.opcode == Opcode::RcAck => self.acknowledges(index, bth.psn, &aeth),
            _ => Ok(()),
        }
    }

    /// A sent request must be the next one or a retransmission.
    fn requests(
        &mut self,
        index: EndpointIndex,
        now: Duration,
        packet: &Packet<'_>,
        path: Path,
    ) -> Result<(), Violation> {
        let psn = packet.bth().psn;
        let first = match self.peer(index) {
            // A reused queue pair number: the peer still talks to the endpoint that had it before
            // the crash.
            Some(peer) if peer.peer.is_some_and(|known| known != index) => {
                self.endpoints[index].sq_psn
            }
            peer => peer.and_then(|peer| peer.rq_psn),
        };
        let first = first
            .ok_or_else(|| violation!("endpoint {index} sends before its peer can receive"))?;
        let endpoint = &mut self.endpoints[index];
        let (first, next) = *endpoint.wire.requests.get_or_insert((first, first));
        ensure!(
            psn.diff(first) >= 0 && next.diff(psn) >= 0,
            "endpoint {index} sends request {psn}, but began at {first} and is at {next}"
        );
        let packets = match packet.reth() {
            Some(reth) if packet.bth().opcode == Opcode::RcReadRequest => {
                packets(reth.dma_len, path.mtu)
            }
            _ => 1,
        };
        self.check_fence(index, psn.diff(first).unsigned_abs())?;
        let endpoint = &mut self.endpoints[index];
        let end = psn.add(packets);
        ensure!(
            now >= endpoint.wire.waits_until,
            "endpoint {index} sends at {now:?}, but the peer asked it to wait until {:?}",
            endpoint.wire.waits_until
        );
        endpoint.wire.is_silent = false;
        if end.diff(next) > 0 {
            endpoint.wire.requests = Some((first, end));
            endpoint.silence.sent(now);
            let unanswered = endpoint.wire.unanswered.unwrap_or(first);
            let bytes = u64::from(end.diff(unanswered).unsigned_abs()) * u64::from(path.mtu);
            let limit = path.window_bytes_max.max(path.mtu);
            ensure!(
                bytes <= limit.into(),
                "endpoint {index} has {bytes} bytes in flight; its window is at most {limit}"
            );
        }
        Ok(())
    }

    /// A response arrives at the endpoint's queue pair.
    pub(in crate::simulator) fn answered(
        &mut self,
        index: EndpointIndex,
        now: Duration,
        packet: &Packet<'_>,
    ) {
        let psn = packet.bth().psn;
        let Some((first, next)) = self.endpoints[index].wire.requests else {
            return;
        };
        let wire = &self.endpoints[index].wire;
        let unanswered = wire.unanswered.unwrap_or(first);
        if psn.diff(unanswered) < 0 || psn.diff(next) >= 0 {
            return;
        }
        let (told, wait) = match packet.aeth().map(|aeth| aeth.syndrome) {
            Some(Syndrome::RnrNak { timer }) => (psn, Some(rnr_timer_us(timer))),
            Some(Syndrome::Nak(_)) => (psn, None),
            _ => (psn.next(), None),
        };
        // Missing read data are requested first.
        let before = psn.diff(first).unsigned_abs();
        let sends = self.endpoints[index].sends.iter().enumerate();
        let mut reads =
            sends.filter(|(_, posted)| posted.is_read() && posted.packets.start < before);
        let is_complete = reads.all(|(at, posted)| posted.len() > 0 && self.has_arrived(index, at));
        let wire = &mut self.endpoints[index].wire;
        wire.unanswered = Some(told);
        // A copy of the RNR NAK that caused the wait does not extend it.
        if let Some(wait) = wait.filter(|_| is_complete && !wire.is_silent) {
            wire.waits_until = now + Duration::from_micros(wait.into());
            wire.is_silent = true;
        }
    }

    /// A fenced message must not begin before all earlier reads are complete.
    fn check_fence(&self, index: EndpointIndex, number: u32) -> Result<(), Violation> {
        let sends = &self.endpoints[index].sends;
        let at = sends.partition_point(|posted| posted.packets.end <= number);
        let begins = at
            .checked_sub(1)
            .map_or(0, |before| sends[before].packets.end)
            == number;
        if begins && sends.get(at).is_some_and(|posted| posted.plan.is_fenced) {
            let mut reads = (0..at).filter(|read| sends[*read].is_read());
            let missing = reads.find(|read| !self.has_arrived(index, *read));
            ensure!(
                missing.is_none(),
                "endpoint {index} sends fenced message {at} before read {missing:?} is complete"
            );
        }
        Ok(())
    }

    /// An acknowledgement must be of sent requests, and those must have arrived.
    fn acknowledges(
        &self,
        index: EndpointIndex,
        psn: Psn,
        aeth: &AethRepr,
    ) -> Result<(), Violation> {
        let peer = self.peer(index);
        let peer = peer.ok_or_else(|| violation!("endpoint {index} answers but has no peer"))?;
        // A queue pair that reuses a number from before a crash also gets the requests of the old
        // one's peer. It accepts them if the same connection request made both. Otherwise it
        // answers as to a retransmission of its own peer.
        let rq_psn = self.endpoints[index].rq_psn;
        let nothing = rq_psn.map(|first| (first, first));
        let (first, next) = peer
            .wire
            .requests
            .filter(|(first, _)| peer.peer == Some(index) || rq_psn == Some(*first))
            .or(nothing)
            .ok_or_else(|| violation!("endpoint {index} answers before it can receive"))?;
        ensure!(
            psn.diff(first) >= -1 && next.diff(psn) >= 0,
            "endpoint {index} answers {psn}, of requests from {first} to {next}"
        );
        let arrived = match aeth.syndrome {
            Syndrome::Ack { .. } => psn.next(),
            _ => psn,
        };
        let count = arrived.diff(first).unsigned_abs();
        let mut messages = 0;
        for (at, posted) in peer.sends.iter().enumerate() {
            if posted.packets.end > count || arrived.diff(first) <= 0 {
                break;
            }
            messages += 1;
            ensure!(
                posted.is_read() || self.has_arrived_at(&self.endpoints[index], peer.index, at),
                "endpoint {index} acknowledges {psn}, but message {at} of {} has not arrived",
                peer.index
            );
        }
        // A read may be split into several requests; each takes at least one packet.
        let sent = next.diff(first).unsigned_abs();
        ensure!(
            (messages..=sent).contains(&aeth.msn),
            "endpoint {index} acknowledges {messages} messages in {count} of {sent} packets, but says {}",
            aeth.msn
        );
        Ok(())
    }
}

/// Packets of a message of `len` bytes. For a read: packets of its response.
pub(in crate::simulator) fn packets(len: u32, mtu: u32) -> u32 {
    len.div_ceil(mtu).max(1)
}
