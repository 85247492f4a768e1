//! Waiting: one caller of a stream sleeps for all waiters.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use portolan_threads::lock::MutexGuard;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{Core, Direction, State, Wait, is_past, make_bell, silence};
use crate::deadline;
use crate::stream::error::io_error;

impl Core {
    /// Waits until `ready` returns a value.
    pub(super) fn wait_until<T>(
        &self,
        direction: Direction,
        wait: Wait,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> io::Result<T> {
        let mut state = self.state.lock();
        state.wanted[direction as usize] = false;
        let mut turns = None;
        loop {
            self.advance(&mut state, false);
            if let Some(found) = ready(&mut state) {
                if state.waiters > 0 {
                    self.advanced.notify_all();
                }
                return Ok(found);
            }
            let deadline = match wait {
                Wait::No => {
                    state.wanted[direction as usize] = true;
                    self.rest(&mut state);
                    if self.advance(&mut state, true) {
                        continue;
                    }
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Wait::Until(deadline) => deadline,
            };
            if state.is_driven {
                state = self.wait_for_driver(state, deadline);
                if is_past(deadline) && state.is_driven {
                    return ready(&mut state).ok_or_else(|| io::ErrorKind::WouldBlock.into());
                }
                continue;
            }
            if turns.get_or_insert_with(|| self.spin.start()).goes_on() {
                drop(state);
                std::hint::spin_loop();
                state = self.state.lock();
                continue;
            }
            state = self.sleep(state, deadline)?;
            if is_past(deadline) {
                self.advance(&mut state, true);
                return ready(&mut state).ok_or_else(|| io::ErrorKind::WouldBlock.into());
            }
        }
    }

    pub(super) fn wait_for_driver<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        deadline: Option<Instant>,
    ) -> MutexGuard<'a, State> {
        state.waiters += 1;
        let mut state = match deadline {
            None => self.advanced.wait(state),
            Some(deadline) => {
                self.advanced
                    .wait_timeout(state, deadline::left(deadline))
                    .0
            }
        };
        state.waiters -= 1;
        state
    }

    /// Sleeps for all waiters until an event may have happened.
    pub(super) fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        deadline: Option<Instant>,
    ) -> io::Result<MutexGuard<'a, State>> {
        let rouser = match self.rouser.get() {
            Some(rouser) => rouser,
            None => {
                let made = make_bell().map_err(|error| io_error(self.explain(error)))?;
                self.rouser.get_or_init(|| made)
            }
        };
        self.rest(&mut state);
        if self.advance(&mut state, true) {
            return Ok(state);
        }
        state.is_driven = true;
        drop(state);
        let slept = self.poll(rouser, deadline);
        let mut state = self.state.lock();
        state.is_driven = false;
        silence(rouser);
        if state.waiters > 0 {
            self.advanced.notify_all();
        }
        slept.map(|()| state)
    }

    pub(super) fn poll(&self, rouser: &OwnedFd, deadline: Option<Instant>) -> io::Result<()> {
        let completions: BorrowedFd<'_> = self.queues.channel.as_fd();
        let mut fds = [
            PollFd::new(&completions, PollFlags::IN),
            PollFd::new(&self.events, PollFlags::IN),
            PollFd::new(rouser, PollFlags::IN),
        ];
        let left = deadline.map(|at| Timespec::try_from(deadline::left(at)).unwrap_or_default());
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Takes the notifications so far, and requests the next one, before a wait.
    pub(super) fn rest(&self, state: &mut State) {
        // A sleeping caller needs the notification to wake up.
        if !state.is_driven {
            while let Ok(Some(_)) = self.queues.channel.take_event() {}
        }
        if let Err(error) = self.queues.cq.arm(false) {
            self.fail(state, error);
        }
        if state.is_ringing {
            silence(&self.readiness.bell);
            state.is_ringing = false;
            // An event loop may also wait for the other direction, which may still be ready.
            self.announce(state);
        }
    }
}
