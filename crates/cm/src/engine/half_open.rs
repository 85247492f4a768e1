//! Half-open connections: a request was taken in, and nothing says yet that its sender is there.
//!
//! An attacker who sends requests from other hosts' addresses receives no REP and sends no RTU, so
//! each of its requests stays half-open until timers end it. As with TCP's queue of SYNs, half-open
//! connections have a bound of their own, for each listener and for all together, and beyond it a new
//! one displaces an old one, which an honest peer would have confirmed by now. Nothing is said to the
//! peer of the displaced: as in TCP (and as Linux's rdma_cm does at a full backlog), a peer that is
//! there and still asks sends its REQ again, and that makes a new connection. If it confirms after all,
//! a REJ answers the RTU.

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
    /// Makes room at a listener for one more request of `source`, or says why there is none.
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

    /// A full backlog is shared among the sources: one that has more than another gives up its oldest
    /// request for it. Among equals the new one is dropped, as Linux does.
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

    /// Which half-open connection goes for a new one of `source`, if one must.
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
        // A source that has more than half of all places must give way to others at once.
        let hog = heaviest.filter(|heavy| heavy.source != source && heavy.weight > limit / 2);
        // The peer of a young one may be about to confirm, and no source displaces those of another that
        // has less than its own.
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

    /// Gives up a half-open connection for a new one. A child whose event was not taken goes without a
    /// trace; an owner that has taken one and not answered finds it closed; an owner that has accepted one is told
    /// `Unreachable` with -ECONNABORTED.
    fn displace(&mut self, now: Duration, number: IdNumber) {
        self.counters.drop(DropReason::Displaced);
        let Some(id) = self.ids.get(number) else {
            return;
        };
        let connection = id.connection.as_deref();
        let state = id.state;
        // Who was asked for patience (MRA) would not ask again for long.
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

    /// Takes the next child that was displaced before its `ConnectRequest` was taken
    /// ([`Cm::request_taken`]): the event, if it still waits somewhere, is to be forgotten.
    pub fn poll_displaced(&mut self) -> Option<IdNumber> {
        self.displaced.pop_front()
    }
}
