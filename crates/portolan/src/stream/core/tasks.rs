//! What tasks of tokio need: they are woken by calls, and poll again without a reason.

use std::task::Waker;

use super::{Core, Direction, Readiness, Ready, State, Wait};
use crate::stream::queues::Drive;

impl Core {
    /// The task of a waker has come: what it finds itself need not wake it.
    pub(crate) fn come(&self, direction: Direction, waker: &Waker) {
        let mut state = self.lock();
        let place = &mut state.wakers[direction as usize];
        let former = place.take_if(|known| known.will_wake(waker));
        drop(state);
        // It may do anything when it is dropped.
        drop(former);
    }

    /// Whether nothing has happened since the task of this waker began to wait: it waits on.
    pub(crate) fn still_waits(&self, direction: Direction, waker: &Waker) -> bool {
        let Readiness::Called { signal, .. } = &self.readiness else {
            return false;
        };
        let state = self.lock();
        let known = state.wakers[direction as usize].as_ref();
        known.is_some_and(|known| known.will_wake(waker))
            && state.is_prepared[direction as usize]
            && !signal.is_raised()
            && !self.may_have_arrived()
    }

    /// As [`Core::prepare_flush`], for a task, which waits for the descriptor if this returns false.
    pub(crate) fn is_flushed_or_wakes(&self, waker: &Waker) -> bool {
        let former = self.lock().wakers[Direction::Write as usize].replace(waker.clone());
        drop(former);
        let is_flushed = self.prepare_flush();
        if is_flushed {
            self.come(Direction::Write, waker);
        }
        is_flushed
    }

    /// Makes a task wait, if nothing has changed since [`Core::prepare_for`]. Returns whether it waits. `has_looked`: the
    /// task has looked since then, so what has arrived for others does not matter.
    pub(crate) fn waits(&self, direction: Direction, waker: &Waker, has_looked: bool) -> bool {
        let mut state = self.lock();
        let waits = state.is_prepared[direction as usize]
            && (has_looked || !self.may_have_arrived())
            && !Ready::of(&state).is(direction);
        let former = match waits {
            true => state.wakers[direction as usize].replace(waker.clone()),
            false => None,
        };
        drop(state);
        drop(former);
        waits
    }

    /// Prepares the descriptor for the wait of a task that has [come](Core::come).
    pub(crate) fn prepare_for(&self, direction: Direction) {
        let mut state = self.lock();
        let other = state.wakers[Direction::Write as usize].is_some();
        self.rest(&mut state, direction == Direction::Write || other);
        self.check(&mut state);
    }

    /// Whether a direction is ready. Drives the device unless `wait` excludes it.
    pub(crate) fn is_ready(&self, direction: Direction, wait: Wait) -> bool {
        let mut state = self.lock();
        match wait {
            Wait::Look => {
                let any = self.collect(&mut state, Drive::No);
                self.handled(&mut state, any, false);
            }
            _ => {
                self.advance(&mut state, true);
            }
        }
        Ready::of(&state).is(direction)
    }

    /// Drives the device once, and wakes the tasks for which something has arrived. Returns whether nothing has, and tasks
    /// wait for the device by this stream. Then the caller must look again soon, or call [`Core::rest_for_tasks`]: meanwhile
    /// nobody rings for what arrives.
    pub(crate) fn look_for_tasks(&self) -> bool {
        let mut state = self.lock();
        let waits = state.wakers.iter().any(Option::is_some);
        let Some((signal, own)) = self.own_wait().filter(|_| waits) else {
            return false;
        };
        let has_events = self.drive_quietly(&state, signal, own);
        let any = self.collect(&mut state, Drive::No);
        self.handled(&mut state, any, has_events);
        let is_fruitless = state.woken.iter().all(Option::is_none);
        if any || has_events {
            // If the caller does not come back, the device's own thread must find the notifications requested.
            self.rest_for_remaining(&mut state);
        }
        is_fruitless
    }

    /// Ends the looks of [`Core::look_for_tasks`]: the tasks wait for the descriptor.
    pub(crate) fn rest_for_tasks(&self) {
        self.rest_for_remaining(&mut self.lock());
    }

    fn rest_for_remaining(&self, state: &mut State) {
        let [reads, writes] = [0, 1].map(|at| state.wakers[at].is_some());
        if reads || writes {
            self.rest(state, writes);
            self.check(state);
        }
    }
}
