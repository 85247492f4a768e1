//! What tasks of tokio need: they are woken by calls, and poll again without a reason.

use std::task::Waker;

use super::{Core, Direction, Readiness, Ready, State, Wait};
use crate::stream::queues::Drive;

/// The result of [`Core::look_for_tasks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A task was woken.
    ForTasks,
    /// Nothing for the tasks that wait. Nobody rings for what arrives, until the next look or
    /// [`Core::rest_after_looks`].
    Nothing,
    /// No task waits, or this stream does not wait for the device. It has not looked.
    NoTasks,
}

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

    /// Whether the task of this waker waits already, and will be woken for whatever happens next.
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
        // The task of the other direction may have taken a signal that was for this one, too. Nothing signals again until it is
        // lowered.
        let is_raised =
            matches!(&self.readiness, Readiness::Called { signal, .. } if signal.is_raised());
        let waits = state.is_prepared[direction as usize]
            && !is_raised
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
        self.rest(&mut state, direction == Direction::Write);
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

    /// Drives the device once, and wakes the tasks for which something has arrived.
    pub(crate) fn look_for_tasks(&self) -> Found {
        let mut state = self.lock();
        let Some((signal, own)) = self.own_wait().filter(|_| state.has_tasks()) else {
            return Found::NoTasks;
        };
        let has_events = self.drive_quietly(&state, signal, own);
        let any = self.collect(&mut state, Drive::No);
        self.handled(&mut state, any, has_events);
        if (any || has_events) && state.has_tasks() {
            // If the caller does not come back, the device's own thread must find the notifications requested.
            self.rest_for_tasks(&mut state);
        }
        match state.woken.iter().any(Option::is_some) {
            true => Found::ForTasks,
            false => Found::Nothing,
        }
    }

    /// Ends the looks of [`Core::look_for_tasks`].
    pub(crate) fn rest_after_looks(&self) {
        let mut state = self.lock();
        if state.has_tasks() {
            self.rest_for_tasks(&mut state);
        } else if let Some((_, own)) = self.own_wait() {
            self.rest_waiting(own);
        }
    }

    fn rest_for_tasks(&self, state: &mut State) {
        self.rest(state, false);
        self.check(state);
    }
}

impl State {
    fn has_tasks(&self) -> bool {
        self.wakers.iter().any(Option::is_some)
    }
}
