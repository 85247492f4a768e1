//! Receives that become free: of a connection, or of a shared receive queue.

use portolan_provider::verbs::{WcStatus, WorkCompletion};

use super::pieces::Gather;
use super::shared_receives::Pool;
use super::slot::{Kind, Slot};
use super::table::{TableState, Work};
use crate::sys::Buffer;

impl Work {
    /// Posts one of the connection's own or shared receives again.
    pub(crate) fn repost(&self, buffer: Buffer) {
        // Posting fails if the queue pair is in error, and then nothing more is received. It also fails if another
        // receive was posted in place of this one; this one is then freed.
        let _ = match &self.pool {
            Some(pool) => pool.post(Gather::from(buffer)).is_ok(),
            None => self.post_receive(buffer, true).is_ok(),
        };
    }

    /// Returns the shared receives of unread messages. Nothing more may complete.
    pub(crate) fn return_shared(&self) {
        let mut state = self.state.lock();
        let keys = std::mem::take(&mut state.arrived);
        let unread = keys
            .into_iter()
            .filter_map(|key| state.slots.try_remove(key));
        let unread: Vec<Slot> = unread.collect();
        drop(state);
        for slot in unread {
            self.repost(slot.pieces.split().0);
        }
    }
}

impl TableState {
    /// Records the completion of a shared receive.
    pub(super) fn finish_shared(&mut self, completion: &WorkCompletion, pool: &Pool) {
        let Some(pieces) = pool.take(completion.wr_id) else {
            return;
        };
        if completion.status == WcStatus::Success {
            let done = Some(*completion);
            let slot = Slot {
                done,
                ..Slot::new(pieces, Kind::Ring, 0, 0)
            };
            let key = self.slots.insert(slot);
            self.arrived.push_back(key);
            return;
        }
        self.unused.push(pieces);
        if !(self.survives_long && completion.status == WcStatus::LocLenErr) {
            self.note_failure(completion);
            self.is_own_receive_short |= completion.status == WcStatus::LocLenErr;
        }
    }
}
