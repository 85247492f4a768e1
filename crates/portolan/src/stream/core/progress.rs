//! Handles a stream's completions and events, and wakes the waiters that they concern.

use std::time::{Duration, Instant};

use portolan_provider::cm::EventType;
use portolan_provider::traits::Cq;
use portolan_provider::verbs::{WcStatus, WorkCompletion};
use portolan_provider::{Cause, Error, Step};
use portolan_rsocket::{Phase, Post, WhichBuffer};

use super::{Core, Direction, Readiness, Ready, State};
use crate::bell::ring;
use crate::connection::ends_connection;
use crate::stream::queues::{BATCH, Drive, Reaped};

/// Interval between looks at a stream whose owner has shut it down and may not call again.
const CONTROL_LOOK: Duration = Duration::from_millis(10);

impl Core {
    /// Tells the peer of a shutdown as soon as possible, and sends a keepalive if one is due. Returns when to call again, or
    /// `None` once there is nothing to do, the stream is over or no clock reaches that time.
    pub(crate) fn look_after(&self, now: Instant) -> Option<Instant> {
        let interval = *self.keepalive.lock();
        let mut state = self.lock();
        self.check(&mut state);
        if state.has_control_waiting() {
            return Some(now + CONTROL_LOOK);
        }
        let interval = interval?;
        if matches!(state.endpoint.phase(), Phase::Disconnected | Phase::Failed) {
            return None;
        }
        let due = state.last_message.checked_add(interval)?;
        if now < due {
            return Some(due);
        }
        state.last_message = now;
        if state.is_established
            && let Some(post) = state.endpoint.keepalive()
        {
            self.post(&mut state, &post, &[]);
        }
        now.checked_add(interval)
    }

    /// Handles completions, and events if requested. Returns whether there were any.
    pub(super) fn advance(&self, state: &mut State, with_events: bool) -> bool {
        let any = self.collect(state, Drive::Briefly);
        self.handled(state, any, with_events)
    }

    /// Handles completions and events, without driving the device. A caller that has armed the queues and is about to
    /// sleep must not drive it: the device would leave what arrives next to the caller.
    pub(super) fn check(&self, state: &mut State) -> bool {
        let any = self.collect(state, Drive::No);
        self.handled(state, any, true)
    }

    /// After completions were handled: handles events if requested, and posts and announces what follows.
    pub(super) fn handled(&self, state: &mut State, mut any: bool, with_events: bool) -> bool {
        if with_events || state.failure.is_some() {
            any |= self.take_events(state);
        }
        if any {
            self.settle(state);
            self.announce(state);
        }
        any
    }

    /// Handles completions. Returns whether there were any.
    pub(super) fn collect(&self, state: &mut State, drives: Drive) -> bool {
        let mut any = match self.own_wait() {
            Some((signal, own)) if drives == Drive::Briefly => {
                self.collect_waiting(state, signal, own)
            }
            _ => self.collect_from(state, &*self.queues.receives_cq, drives),
        };
        // What was sent completes without a need of the program, so it is not asked for at each turn.
        any |= self.collect_from(state, &*self.queues.sends_cq, Drive::No);
        if any || drives != Drive::No {
            state.is_prepared = [false; 2];
        }
        any
    }

    pub(super) fn collect_from(&self, state: &mut State, cq: &dyn Cq, mut drives: Drive) -> bool {
        // Most looks find nothing, and need no room for completions.
        if !cq.may_have_completions() {
            match drives {
                Drive::No => {}
                Drive::Briefly => cq.drive(),
                Drive::Polling => cq.drive_polling(state.expects_answer),
            }
            if drives == Drive::No || !cq.may_have_completions() {
                return false;
            }
            drives = Drive::No;
        }
        let mut completions = [WorkCompletion::EMPTY; BATCH];
        let mut any = false;
        loop {
            let count = match self.queues.reap(cq, &mut completions, drives) {
                Ok(count) => count,
                Err(error) => {
                    self.fail(state, error);
                    return any;
                }
            };
            for completion in &completions[..count] {
                self.take_completion(state, completion);
            }
            any |= count > 0;
            drives = Drive::No;
            if count < BATCH {
                return any;
            }
        }
    }

    pub(super) fn take_completion(&self, state: &mut State, completion: &WorkCompletion) {
        let is_success = completion.status == WcStatus::Success;
        match self.queues.read(completion, is_success) {
            Reaped::Sent(id) if is_success => state.endpoint.on_sent(id),
            Reaped::Sent(id) => {
                state.endpoint.on_lost(id);
                let cause = Cause::WorkFailed(completion.status);
                self.fail(state, Error::new(Step::Transfer, cause));
            }
            Reaped::Flushed if self.id.is_destroyed() => {
                // No event follows.
                state.is_hung_up = true;
                self.fail(state, Error::new(Step::Transfer, Cause::Closed));
            }
            // The event or the failed work that follows has the reason.
            Reaped::Flushed => state.has_flushed_receives = true,
            Reaped::Message { number, place } => {
                // Its data come from the peer's processor. Meanwhile the message is handled.
                self.queues.prefetch(state.endpoint.peek(u32::MAX, 0));
                // A peer that sends has confirmed the connection.
                state.is_established = true;
                let taken = state.endpoint.on_message(number, self.queues.table());
                let taken = taken.map_err(|violation| {
                    let (what, expected) = ("message", "one of the rsocket protocol");
                    Error::invalid(Step::Transfer, what, expected, violation)
                });
                let posted = taken.and_then(|_| self.queues.post_receive(place));
                if let Err(error) = posted {
                    self.fail(state, error);
                }
            }
        }
    }

    pub(super) fn take_events(&self, state: &mut State) -> bool {
        let mut any = false;
        loop {
            let event = match self.events.try_next_event() {
                Ok(Some(event)) => event,
                Ok(None) => return any,
                Err(error) => {
                    self.fail(state, error);
                    return any;
                }
            };
            any = true;
            if event.event_type() == EventType::Established {
                state.is_established = true;
            } else if ends_connection(event.event_type())
                || event.failure().is_some() && !state.is_established
            {
                // Handle what the peer sent before it disconnected.
                self.collect(state, Drive::Briefly);
                let gone = || Error::new(Step::Transfer, Cause::Disconnected);
                let error = event.failure().unwrap_or_else(gone);
                self.fail(state, error);
                if !state.is_hung_up {
                    state.is_hung_up = true;
                    // Answers the peer's request.
                    let _ = self.id.disconnect();
                }
            }
        }
    }

    /// Stores the first reason of a failure. A stream that has ended in order cannot fail any more, unless the peer lacks
    /// data of this side.
    pub(super) fn fail(&self, state: &mut State, error: Error) {
        state.endpoint.fail();
        if state.has_lost() && state.failure.is_none() {
            state.failure = Some(self.explain(error));
        }
    }

    /// Posts the endpoint's requests.
    pub(super) fn settle(&self, state: &mut State) {
        if !state.is_established {
            return;
        }
        while let Some((which, bytes)) = state.endpoint.wants_to_grow() {
            match (which, self.queues.grow(which, bytes)) {
                (_, None) => state.endpoint.stay(which),
                (WhichBuffer::Send, Some(_)) => state.endpoint.grow_send(),
                (WhichBuffer::Receive, Some((addr, key))) => state.endpoint.grow_receive(addr, key),
            }
        }
        while let Some(post) = state.endpoint.next_post() {
            self.post(state, &post, &[]);
        }
    }

    pub(super) fn post(&self, state: &mut State, post: &Post, data: &[u8]) {
        let posted = match post.takeable() {
            Some(length) => self.queues.post_taking(post, data).inspect(|taken| {
                if *taken {
                    state.endpoint.on_taken(length);
                }
            }),
            None => Ok(false),
        };
        let posted = posted.and_then(|taken| match taken {
            true => Ok(()),
            false => self.queues.post(post, data),
        });
        if let Err(error) = posted {
            state.endpoint.on_lost(post.id);
            self.fail(state, error);
        }
    }

    /// Wakes all waiters after the stream has advanced.
    pub(super) fn announce(&self, state: &mut State) {
        if state.waiters > 0 {
            self.advanced.notify_all();
        }
        let ready = Ready::of(state);
        if let Some(call) = self.on_found.get() {
            call(ready);
        }
        let mut is_news = state.waits.has_news(ready);
        for direction in [Direction::Read, Direction::Write] {
            if ready.is(direction) {
                let waker = state.wakers[direction as usize].take();
                state.woken[direction as usize] = waker.or(state.woken[direction as usize].take());
            }
            let at = direction as usize;
            let is_awaited = state.wanted[at] || state.waits.has_thread_for(direction);
            is_news |= is_awaited && ready.is(direction);
        }
        if !is_news {
            return;
        }
        match &self.readiness {
            Readiness::Called { signal, .. } => signal.raise(),
            Readiness::Watched { bell, .. } if !state.is_ringing => {
                ring(bell);
                state.is_ringing = true;
            }
            Readiness::Watched { .. } => {}
        }
    }
}
