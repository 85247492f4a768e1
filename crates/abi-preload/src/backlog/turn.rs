//! Listening sockets that several processes share. This process must not keep clients waiting that another could serve. So the
//! thread only wakes the program, and a call of the program that looks at the listener accepts a request, one at a time.
//! Without such a call, requests are soon rejected: their clients connect with TCP, which gives the connection to any of the
//! processes.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use portolan::Stream;
use portolan_port_sharing::room::aside;

use super::{BATCH, Backlog};
use crate::background::{DELAY, Place};
use crate::{pump, report};

/// How long a request waits for the program if other processes share the listening socket.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long requests do not wait at all after one has waited for nothing.
const AWAY: Duration = Duration::from_secs(1);

/// A request that waits for the program, if other processes share the listening socket.
#[derive(Default)]
pub(super) struct Turn {
    waits_since: Option<Instant>,
    /// The program did not look when a request waited.
    away_until: Option<Instant>,
    /// When the last stream was accepted, while its client has not confirmed it.
    pub(super) accepted_at: Option<Instant>,
    /// Looks again after a while.
    timer: Option<Place>,
    is_timing: bool,
}

impl Turn {
    /// Whether this is the timer's place.
    pub(super) fn is_timer(&self, place: u64) -> bool {
        self.timer
            .as_ref()
            .is_some_and(|timer| timer.number() == place)
    }
}

impl Backlog {
    /// Whether other processes accept from the same socket.
    pub(crate) fn set_shared(&self, is_shared: bool) {
        if self.is_shared.swap(is_shared, Ordering::AcqRel) == is_shared {
            return;
        }
        self.turn.lock().waits_since = None;
        // It may ring for a request.
        self.silence_if_empty(&self.waiting.lock());
        self.listen_again();
    }

    /// A call of the program looks at the listener.
    pub(crate) fn attend(&self) {
        self.is_attended.store(true, Ordering::Release);
        if !self.is_shared.load(Ordering::Acquire) {
            return;
        }
        let now = Instant::now();
        let mut turn = self.turn.lock();
        turn.away_until = None;
        let is_new = |at: Instant| now.saturating_duration_since(at) < DELAY;
        let may_accept = !turn.accepted_at.is_some_and(is_new);
        if may_accept && turn.waits_since.take().is_some() {
            turn.accepted_at = Some(now);
            drop(turn);
            if !self.accept_one() {
                self.turn.lock().accepted_at = None;
            }
            self.listen_again();
        }
        self.silence_if_empty(&self.waiting.lock());
    }

    /// A request waits for the program.
    pub(super) fn offer(&self) {
        let now = Instant::now();
        let mut turn = self.turn.lock();
        let is_away = turn.away_until.is_some_and(|until| now < until);
        if is_away || !self.look_later(&mut turn) {
            drop(turn);
            return self.reject();
        }
        turn.waits_since.get_or_insert(now);
        drop(turn);
        self.ring();
    }

    /// Wakes the program again, or rejects the request if it has waited too long.
    pub(super) fn remind(&self) {
        let now = Instant::now();
        let mut turn = self.turn.lock();
        turn.is_timing = false;
        let Some(since) = turn.waits_since else {
            return;
        };
        if now.saturating_duration_since(since) < PATIENCE && self.look_later(&mut turn) {
            drop(turn);
            return self.ring();
        }
        turn.waits_since = None;
        turn.away_until = Some(now + AWAY);
        drop(turn);
        self.silence_if_empty(&self.waiting.lock());
        self.reject();
    }

    /// Returns false if that is impossible.
    fn look_later(&self, turn: &mut Turn) -> bool {
        if turn.timer.is_none() {
            turn.timer = Place::new(self.this.clone()).ok();
        }
        let Some(timer) = &turn.timer else {
            return false;
        };
        if !std::mem::replace(&mut turn.is_timing, true) {
            timer.put_off();
        }
        true
    }

    /// Rejects the requests that are there. Their clients connect with TCP.
    pub(super) fn reject(&self) {
        for _ in 0..BATCH {
            match self.listener.reject_one() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    report::complain("a request was not rejected", &error);
                    break;
                }
            }
        }
        self.listen_again();
    }
}

impl Drop for Backlog {
    /// Other processes that share the listening socket serve the clients that the program has not accepted.
    fn drop(&mut self) {
        let mut unconfirmed = std::mem::take(&mut *self.unconfirmed.lock());
        let newest = unconfirmed.pop_last();
        let (newest, older) = match newest {
            Some((_, newest)) if newest.is_new() => (Some(newest.newcomer), None),
            other => (None, other),
        };
        for (_, forgotten) in unconfirmed.into_iter().chain(older) {
            forgotten.newcomer.stream.abandon();
        }
        if !self.is_shared.load(Ordering::Acquire) {
            return;
        }
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let until = Instant::now() + PATIENCE;
        for newcomer in waiting.into_iter().chain(newest) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.hand_on(newcomer.stream, left) {
                return;
            }
        }
    }
}

impl Backlog {
    /// Relays a stream to the process that accepts next from the kernel's socket. Without such a process, the stream ends,
    /// and this returns false.
    fn hand_on(&self, stream: Stream, timeout: Duration) -> bool {
        let Ok(mut address) = self.listener.local_addr() else {
            return false;
        };
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        let Ok(connected) = TcpStream::connect_timeout(&address, timeout) else {
            return false;
        };
        let _ = connected.set_nonblocking(true);
        pump::start(stream, aside(connected.into()));
        true
    }
}
