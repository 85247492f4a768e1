//! Work whose owner has stopped waiting: dropped, or kept for a later request.

use super::slot::{Abandoned, Kind, Owner, Slot};
use super::table::{TableState, Work};

impl Work {
    /// Whether the work `key` is a send that has not completed.
    pub(crate) fn is_sending(&self, key: usize) -> bool {
        let state = self.state.lock();
        let slot = state.slots.get(key);
        slot.is_some_and(|slot| slot.kind == Kind::Send && slot.done.is_none())
    }

    /// Gives up the work `key`; its completion frees the buffer.
    pub(crate) fn give_up(&self, key: usize) {
        let mut state = self.state.lock();
        let Some(slot) = state.slots.get_mut(key) else {
            return;
        };
        slot.owner = Owner::Nobody;
        let ended = slot.done.is_some().then(|| state.slots.remove(key));
        // Free the buffer after unlocking, because freeing calls the device.
        drop(state);
        drop(ended);
    }

    /// Keeps the work `key` and its tag for [`Work::take_abandoned`].
    pub(crate) fn keep(&self, key: usize, tag: Option<u64>) {
        let mut state = self.state.lock();
        if let Some(slot) = state.slots.get_mut(key) {
            slot.owner = Owner::Abandoned;
            state.abandoned.push_back(Abandoned { key, tag });
        }
        let freed = state.free_abandoned(self.depths.abandoned());
        // Free the buffer after unlocking, because freeing calls the device.
        drop(state);
        drop(freed);
    }

    /// Takes over the oldest abandoned work that is `wanted`.
    pub(crate) fn take_abandoned(
        &self,
        wanted: impl FnMut(&Abandoned) -> bool,
    ) -> Option<Abandoned> {
        let mut state = self.state.lock();
        let at = state.abandoned.iter().position(wanted)?;
        let work = state.abandoned.remove(at)?;
        state.slots.get_mut(work.key)?.owner = Owner::Handle;
        Some(work)
    }
}

impl TableState {
    /// Frees the oldest abandoned work that has completed, if there is more than `limit`. At most `limit` is posted.
    fn free_abandoned(&mut self, limit: usize) -> Option<Slot> {
        if self.abandoned.len() <= limit {
            return None;
        }
        let slots = &self.slots;
        let is_done = |work: &Abandoned| {
            let slot = slots.get(work.key);
            slot.is_none_or(|slot| slot.done.is_some())
        };
        let at = self.abandoned.iter().position(is_done)?;
        let work = self.abandoned.remove(at)?;
        self.slots.try_remove(work.key)
    }
}
