//! Waiting: one caller of a stream sleeps for all waiters.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use portolan_provider::Step;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::locked::Locked;
use super::own_wait::SocketSleep;
use super::{Core, Direction, Readiness, Ready, State, Wait, is_past};
use crate::bell::{make_bell, silence};
use crate::deadline;
use crate::stream::error::io_error;
use crate::stream::queues::Drive;

/// Maximum of descriptors that a thread sleeps at.
const SLEEPS_AT: usize = 8;

impl Core {
    /// Waits until `ready` returns a value.
    pub(super) fn wait_until<T>(
        &self,
        direction: Direction,
        wait: Wait,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> io::Result<T> {
        let mut state = self.lock();
        state.wanted[direction as usize] = false;
        state.waits.forget_wanted();
        // A call that need not wait does not drive the device: the device would leave what arrives next to a poller,
        // and such a caller may not come again.
        let any = self.collect(&mut state, Drive::No);
        self.handled(&mut state, any, false);
        if let Some(found) = ready(&mut state) {
            if state.waiters > 0 {
                self.advanced.notify_all();
            }
            return Ok(found);
        }
        if let Wait::Look = wait {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut polling = None;
        // Without a descriptor no event loop waits, and such a caller calls again and again.
        let polls = match &self.readiness {
            Readiness::Called { signal, .. } => matches!(wait, Wait::No) && !signal.has_bell(),
            Readiness::Watched { .. } => false,
        };
        loop {
            let drives = match polls {
                true => Drive::Polling,
                false => Drive::Briefly,
            };
            let any = self.collect(&mut state, drives);
            self.handled(&mut state, any, false);
            if let Some(found) = ready(&mut state) {
                if state.waiters > 0 {
                    self.advanced.notify_all();
                }
                return Ok(found);
            }
            let deadline = match wait {
                Wait::No if polls => {
                    if self.take_events(&mut state) {
                        self.handled(&mut state, true, false);
                        continue;
                    }
                    state.wanted[direction as usize] = true;
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Wait::No if direction == Direction::Read && state.expects_answer => {
                    // It costs less to wait here for an answer that is under way than to come again for it.
                    let polling = polling.get_or_insert_with(|| self.spin.start());
                    if !self.spin.goes_on(polling) {
                        state.expects_answer = false;
                        continue;
                    }
                    drop(state);
                    std::hint::spin_loop();
                    state = self.lock();
                    continue;
                }
                Wait::Glance | Wait::Look => return Err(io::ErrorKind::WouldBlock.into()),
                Wait::No => {
                    state.wanted[direction as usize] = true;
                    self.rest(&mut state, direction == Direction::Write);
                    if self.check(&mut state) {
                        continue;
                    }
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Wait::Until(deadline) => deadline,
            };
            if state.is_driven {
                if direction == Direction::Write {
                    // The sleeping caller may wait for data only.
                    self.arm(&mut state, true, true);
                    // Devices of the kernel signal only what comes later.
                    if self.check(&mut state) {
                        continue;
                    }
                }
                state = self.wait_for_driver(state, deadline);
                if is_past(deadline) && state.is_driven {
                    self.advance(&mut state, true);
                    return ready(&mut state).ok_or_else(|| io::ErrorKind::WouldBlock.into());
                }
                continue;
            }
            let polling = polling.get_or_insert_with(|| self.spin.start());
            if self.spin.goes_on(polling) {
                drop(state);
                std::hint::spin_loop();
                state = self.lock();
                continue;
            }
            state = self.sleep(state, direction, deadline)?;
            if is_past(deadline) {
                self.advance(&mut state, true);
                return ready(&mut state).ok_or_else(|| io::ErrorKind::WouldBlock.into());
            }
        }
    }

    pub(super) fn wait_for_driver<'a>(
        &'a self,
        mut state: Locked<'a>,
        deadline: Option<Instant>,
    ) -> Locked<'a> {
        state.waiters += 1;
        let mut state = state.wait(&self.state, &self.advanced, deadline.map(deadline::left));
        state.waiters -= 1;
        state
    }

    /// Sleeps for all waiters until an event may have happened.
    pub(super) fn sleep<'a>(
        &'a self,
        mut state: Locked<'a>,
        direction: Direction,
        deadline: Option<Instant>,
    ) -> io::Result<Locked<'a>> {
        let rouser = match &self.readiness {
            Readiness::Called { .. } => None,
            Readiness::Watched { rouser, .. } => Some(match rouser.get() {
                Some(rouser) => rouser,
                None => {
                    let made =
                        make_bell(Step::Event).map_err(|error| io_error(self.explain(error)))?;
                    rouser.get_or_init(|| made)
                }
            }),
        };
        self.rest(&mut state, direction == Direction::Write);
        if self.check(&mut state) {
            return Ok(state);
        }
        state.is_driven = true;
        drop(state);
        let slept = self.poll(rouser, deadline);
        let mut state = self.lock();
        state.is_driven = false;
        if let Some(rouser) = rouser {
            silence(rouser);
        }
        if state.waiters > 0 {
            self.advanced.notify_all();
        }
        slept.map(|()| state)
    }

    fn poll(&self, rouser: Option<&OwnedFd>, deadline: Option<Instant>) -> io::Result<()> {
        let timespec = |left| Timespec::try_from(left).unwrap_or_default();
        let left = deadline.map(deadline::left);
        let polled = match (&self.readiness, rouser) {
            (Readiness::Watched { channel, .. }, Some(rouser)) => {
                let completions = channel.as_fd();
                let mut fds = [
                    PollFd::new(&completions, PollFlags::IN),
                    PollFd::new(&self.events, PollFlags::IN),
                    PollFd::new(rouser, PollFlags::IN),
                ];
                poll(&mut fds, left.map(timespec).as_ref())
            }
            _ => {
                let descriptors = self.descriptors();
                let left = descriptors.at_most(left);
                let sleep = self.sleep_at_sockets();
                let sockets = sleep.iter().flat_map(SocketSleep::sockets);
                let mut count = 0;
                let mut fds = [(); SLEEPS_AT].map(|()| PollFd::new(&self.events, PollFlags::IN));
                for (place, fd) in fds.iter_mut().zip(descriptors.all().chain(sockets)) {
                    *place = PollFd::from_borrowed_fd(fd, PollFlags::IN);
                    count += 1;
                }
                poll(&mut fds[..count], left.map(timespec).as_ref())
            }
        };
        match polled {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Takes the notifications so far, and requests the next one, before a wait. `sends`: the caller needs completions
    /// of what was sent, which make room.
    pub(super) fn rest(&self, state: &mut State, sends: bool) {
        match &self.readiness {
            // A sleeping caller needs the notification to wake up.
            _ if state.is_driven => {}
            Readiness::Called { signal, .. } => {
                if signal.lower() {
                    // An event loop may also wait for the other direction, which may still be ready.
                    self.announce(state);
                }
            }
            Readiness::Watched { channel, .. } => while let Ok(Some(_)) = channel.take_event() {},
        }
        let sends = match self.own_wait() {
            Some((_, own)) => {
                let sends = self.arm(state, sends, true);
                self.rest_waiting(own);
                sends
            }
            None => self.arm(state, sends, false),
        };
        if let Readiness::Watched { bell, .. } = &self.readiness
            && state.is_ringing
        {
            silence(bell);
            state.is_ringing = false;
            // As above.
            self.announce(state);
        }
        state.is_prepared = [true, sends];
    }

    /// Requests notifications. `polls`: the caller goes on polling. Returns whether completions of what was sent notify.
    pub(super) fn arm(&self, state: &mut State, sends: bool, polls: bool) -> bool {
        // The caller may have taken a notification that others wait for.
        let sends = sends || state.needs_sends();
        let armed = match sends {
            true => self.queues.sends_cq.arm_and_poll(),
            false => Ok(()),
        };
        let armed = armed.and_then(|()| match polls {
            true => self.queues.receives_cq.arm_and_poll(),
            false => self.queues.receives_cq.arm(false),
        });
        if let Err(error) = armed {
            self.fail(state, error);
        }
        sends
    }
}

impl State {
    /// Whether the stream itself or a waiting caller needs completions of what was sent.
    fn needs_sends(&self) -> bool {
        let write = Direction::Write as usize;
        self.has_flushed_receives
            || self.endpoint.waits_for_room()
            || self.waiters > 0
            // A task may wait for the flush.
            || self.wakers[write].is_some()
            || (self.wanted[write] || self.waits.has_thread_for(Direction::Write))
                && !Ready::of(self).writable
    }
}
