//! Long requests are copied in turns, between which other threads get the queue pair's lock and the device is driven.
//!
//! A thread that polls takes the turns, otherwise the progress thread. Each turn checks everything again, so a right that is
//! withdrawn ends the copy. Packets then transfer the whole request, and the peer decides. Between turns the engine
//! starts no request, so the one that is copied stays the next.

use crate::io::host::Host;
use crate::io::host::direct::{CHUNK, TURN_MAX};
use crate::io::host::queue_pair::{LockedQp, QpCore};
use crate::io::polling::progress::LOOK_INTERVAL;

impl Host {
    /// The next request goes on after `done` bytes, in a later turn.
    pub(super) fn continue_soon(&self, state: &mut LockedQp, done: u32) {
        state.engine.hold_requests();
        state.copied = Some(done);
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

    /// Takes one turn for each queue pair that copies. Returns whether there was any. The caller holds no lock.
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
        // Those that go on are noted again, so take each once.
        let copying: Vec<_> = std::iter::from_fn(|| self.copying.take()).collect();
        // Many turns together do not take much longer than one.
        let share = TURN_MAX / u32::try_from(copying.len()).unwrap_or(u32::MAX).max(1);
        for qp in copying.into_iter().filter_map(|qpn| self.qps.find(qpn)) {
            let mut state = qp.lock();
            let Some(done) = state.copied.take().filter(|_| !state.closed) else {
                continue;
            };
            if state.engine.release_requests() {
                self.take_turn(&qp, &mut state, done, share.max(CHUNK));
            }
            self.settle(&qp, &mut state, self.clock.recent());
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
