//! Half-open connections: requests that were received and whose sender has not confirmed yet.
//!
//! An attacker that forges source addresses receives no REP and sends no RTU, so each of its requests stays half-open
//! until timers end it. As with TCP's SYN queue, the number of half-open connections is limited, per listener and in
//! total. Beyond the limit a new one displaces an old one, which an honest peer would have confirmed by now. The
//! displaced peer gets no message, as in TCP and as at a full backlog of Linux's rdma_cm. If it is still there, it
//! repeats its REQ, which makes a new connection. If it confirms after all, a REJ answers the RTU.

use core::time::Duration;

use portolan_provider::cm::{Ece, EventParam, EventType, IdNumber};
use portolan_provider::error::errno::ECONNABORTED;
use portolan_wire::cm::{PrivateData, RejectReason};

use crate::counters::DropReason;
use crate::engine::Cm;
use crate::half_open_requests::{Candidate, Requests};
use crate::mutant::{Mutant, is_planted};
use crate::state::{Event, State};
use crate::types::Host;

impl Cm {
    /// Makes room at a listener for one more request from `source`, or returns why it cannot.
    pub(crate) fn make_room(
        &mut self,
        now: Duration,
        listener: IdNumber,
        source: Host,
    ) -> Result<(), DropReason> {
        self.make_room_in_backlog(now, listener, source)?;
        if is_planted(Mutant::HalfOpenUnbounded) {
            return Ok(());
        }
        let at_listener = self.ids.get(listener).and_then(|id| id.listener.as_ref());
        let victim = match at_listener {
            Some(listener) => {
                self.victim(&listener.half_open, listener.max_half_open, now, source)?
            }
            None => None,
        };
        if let Some(victim) = victim {
            self.displace(now, victim);
        }
        let of_all = self.config.max_half_open;
        if let Some(victim) = self.victim(&self.half_open, of_all, now, source)? {
            self.displace(now, victim);
        }
        Ok(())
    }

    /// A full backlog is shared among the sources: the source with the most requests loses its oldest one to a source
    /// with fewer. Between equals the new request is dropped, as on Linux.
    fn make_room_in_backlog(
        &mut self,
        now: Duration,
        listener: IdNumber,
        source: Host,
    ) -> Result<(), DropReason> {
        let Some(listener) = self.ids.get(listener).and_then(|id| id.listener.as_ref()) else {
            return Ok(());
        };
        if (listener.waiting.len() as u64) < u64::from(listener.backlog) {
            return Ok(());
        }
        let own = listener.waiting.weight(source);
        let heavier = listener.waiting.oldest_of_heaviest();
        let victim = heavier.filter(|victim| victim.weight > own + 1);
        let victim = victim.ok_or(DropReason::BacklogFull)?;
        self.displace(now, victim.number);
        Ok(())
    }

    /// The half-open connection to displace for a new one from `source`, if any.
    fn victim(
        &self,
        requests: &Requests,
        limit: usize,
        now: Duration,
        source: Host,
    ) -> Result<Option<IdNumber>, DropReason> {
        if requests.len() < limit {
            return Ok(None);
        }
        let heaviest = requests.oldest_of_heaviest();
        let own = requests.weight(source);
        // A source with more than half of all places loses them to others at once.
        let hog = heaviest.filter(|heavy| heavy.source != source && heavy.weight > limit / 2);
        // A young connection may be about to be confirmed. A source cannot displace a connection of a source with
        // fewer.
        let grace = self.config.half_open_grace;
        let is_free = |one: &Candidate| one.weight >= own && now.saturating_sub(one.since) >= grace;
        let old = || {
            heaviest
                .filter(is_free)
                .or_else(|| requests.oldest().filter(is_free))
        };
        let victim = hog.or_else(old).ok_or(DropReason::HalfOpenFull)?;
        Ok(Some(victim.number))
    }

    /// Counts a child among the half-open connections of its listener and of all.
    pub(crate) fn begin_half_open(
        &mut self,
        now: Duration,
        listener: IdNumber,
        child: IdNumber,
        source: Host,
    ) {
        let listening = self.ids.get_mut(listener);
        if let Some(listening) = listening.and_then(|id| id.listener.as_mut()) {
            listening.waiting.insert(child, source, now);
            listening.half_open.insert(child, source, now);
        }
        self.half_open.insert(child, source, now);
        if let Some(child) = self.ids.get_mut(child) {
            child.half_open_at = Some(listener);
        }
    }

    /// A child is not half-open any more.
    pub(crate) fn end_half_open(&mut self, child: IdNumber) {
        let listener = self
            .ids
            .get_mut(child)
            .and_then(|id| id.half_open_at.take());
        let Some(listener) = listener else { return };
        self.half_open.remove(child);
        let listening = self.ids.get_mut(listener);
        if let Some(listening) = listening.and_then(|id| id.listener.as_mut()) {
            listening.half_open.remove(child);
        }
    }

    /// Displaces a half-open connection. If its event was not taken, the child vanishes. If the owner has taken it but
    /// not answered, the child becomes closed. If the owner has accepted, it gets `Unreachable` with -ECONNABORTED.
    fn displace(&mut self, now: Duration, number: IdNumber) {
        self.counters.drop(DropReason::Displaced);
        let Some(id) = self.ids.get(number) else {
            return;
        };
        let connection = id.connection.as_deref();
        let state = id.state;
        // After an MRA the peer would not repeat its request for long.
        let was_put_off = connection.is_some_and(|connection| connection.was_put_off);
        let waits_at = connection.and_then(|connection| connection.waits_at);
        let asked_at = id.asked.as_deref().and_then(|asked| asked.waits_at);
        let is_taken = waits_at.or(asked_at).is_none();
        if state == State::ReqRcvd && was_put_off {
            self.send_rej(number, RejectReason::NO_RESOURCES, PrivateData::EMPTY);
        }
        if !is_taken {
            self.request_taken(number);
            self.end_half_open(number);
            self.set_deadline(number, None);
            self.ids.remove(number);
            if !is_planted(Mutant::DisplacedStillQueued) {
                self.displaced.push_back(number);
            }
            return;
        }
        self.advance(now, number, Event::Displaced);
        self.ids.forget_remote_request(number);
        if matches!(state, State::RepSent | State::MraRepRcvd) {
            let (event, status) = (EventType::Unreachable, -ECONNABORTED);
            self.report(number, event, status, EventParam::None, Ece::default());
        }
    }

    /// Takes the next child that was displaced before its `ConnectRequest` was taken ([`Cm::request_taken`]). Discard
    /// the event if it is still queued.
    pub fn poll_displaced(&mut self) -> Option<IdNumber> {
        self.displaced.pop_front()
    }
}
