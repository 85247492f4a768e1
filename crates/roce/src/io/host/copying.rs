//! Long requests are copied in turns, between which other threads get the queue pair's lock and the device is driven.
//! Responses to long reads are sent in the same turns.
//!
//! A thread that polls takes the turns, otherwise the progress thread. Each turn checks everything again, so a right that is
//! withdrawn ends the copy. Packets then transfer the whole request, and the peer decides. Between turns the engine
//! starts no request, so the one that is copied stays the next.

use portolan_wire::Qpn;

use crate::io::host::Host;
use crate::io::host::direct::{CHUNK, TURN_MAX};
use crate::io::host::queue_pair::{LockedQp, QpCore};
use crate::io::polling::noted::Noted;
use crate::io::polling::progress::LOOK_INTERVAL;

/// Queue pairs that get a turn at a time, each of at least a chunk.
const TURNS_MAX: u32 = TURN_MAX / CHUNK;

/// Queue pairs that wait for their turn. Those that got none, as after a panic, are noted again when this is dropped.
struct Waiting<'a> {
    noted: &'a Noted,
    qpns: Vec<Qpn>,
}

impl<'a> Waiting<'a> {
    fn take(noted: &'a Noted) -> Self {
        let qpns = std::iter::from_fn(|| noted.take()).collect();
        Self { noted, qpns }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.qpns.drain(..).for_each(|qpn| self.noted.note(qpn));
    }
}

impl Host {
    /// The next request goes on after `done` bytes, in a later turn.
    pub(super) fn continue_soon(&self, state: &mut LockedQp, done: u32) {
        state.engine.hold_requests();
        state.copied = Some(done);
        self.take_turn_soon(state);
    }

    /// More responses to reads follow in a later turn.
    pub(super) fn respond_soon(&self, state: &mut LockedQp) {
        state.responds = true;
        self.take_turn_soon(state);
    }

    fn take_turn_soon(&self, state: &LockedQp) {
        self.copying.note(state.engine.qpn());
        let now = self.clock.recent();
        let due = match self.progress.is_polled(now) {
            true => now + LOOK_INTERVAL,
            false => now,
        };
        self.progress.wake_before(due);
    }

    /// Gives up a copy in turns. Packets transfer the request.
    pub(super) fn end_copy(&self, state: &mut LockedQp) {
        if state.copied.take().is_some() {
            state.engine.release_requests();
        }
    }

    /// Takes one turn for each queue pair that copies or responds. Returns whether there was any. The caller holds no lock.
    #[inline]
    pub(crate) fn continue_copies(&self) -> bool {
        let any = self.copying.any();
        if any {
            self.take_turns();
        }
        any
    }

    #[cold]
    fn take_turns(&self) {
        // Those that go on are noted again, so take each once. Many turns together take about as long as one.
        let mut copying = Waiting::take(&self.copying);
        let share = TURN_MAX / u32::try_from(copying.qpns.len()).unwrap_or(u32::MAX).max(1);
        for _ in 0..TURNS_MAX {
            let Some(qpn) = copying.qpns.pop() else {
                return;
            };
            let Some(qp) = self.qps.find(qpn) else {
                continue;
            };
            let mut state = qp.lock();
            // It may be noted for both, and then twice.
            let (copied, responds) = (state.copied.take(), state.responds);
            state.responds = false;
            if state.closed || (copied.is_none() && !responds) {
                continue;
            }
            let share = share.max(CHUNK);
            if let Some(done) = copied
                && state.engine.release_requests()
            {
                self.take_turn(&qp, &mut state, done, share);
            }
            self.settle_within(&qp, &mut state, self.clock.recent(), share);
        }
        if !copying.qpns.is_empty() {
            self.progress.wake_before(self.clock.recent());
        }
    }

    /// Copies more of the next request, of which `done` bytes are copied.
    fn take_turn(&self, qp: &QpCore, state: &mut LockedQp, done: u32, mut left: u32) {
        if !state.engine.is_write_next() {
            self.go_direct_from(qp, state, done, left);
        } else if !self.monitor.tap.is_plugged() {
            self.place_write(state, done, &mut left);
        }
    }
}
