//! Sets of the program that a fork has given to another process.
//!
//! The kernel's instance is then one for both processes. What this library added to it, each of them would be told of, and only
//! one could take it away. So each process waits for the program's set and for its own second set, and the former contains
//! nothing of this library, except for threads of the program that wait in the kernel for it alone.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, epoll_event, sigset_t};
use portolan_abi_layout::guard::Result;
use rustix::event::epoll;
use rustix::io::Errno;

use super::waiting::{kernel_wait, without_marks};
use super::{DEVICE, Interest, MARK, Set, borrowed};
use crate::descriptors::lookup;
use crate::socket::Watch;
use crate::wait::{ask_kernel, readable};

/// How long a thread leaves the program's set alone after that has reported only what another process has yet to take.
const PAUSE: Duration = Duration::from_millis(10);

/// What the program's set contains of this library.
#[derive(Default)]
pub(super) struct Marks {
    /// The second set.
    has_second: bool,
    /// What other processes ring.
    device: Option<RawFd>,
}

impl Set {
    pub(super) fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::SeqCst)
    }

    /// Whether the program's set must contain the second one.
    fn needs_mark(&self) -> bool {
        !self.is_shared()
            || self.early.load(Ordering::SeqCst) > 0
            || self.in_first.load(Ordering::SeqCst) > 0
            || self.has_outsiders.load(Ordering::SeqCst)
    }

    /// Adds the second set to the program's, or removes it.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub(super) fn settle(&self) -> Result<()> {
        self.settle_with(&mut self.marks.lock())
    }

    fn settle_with(&self, marks: &mut Marks) -> Result<()> {
        let needs_mark = self.needs_mark();
        if needs_mark && !marks.has_second {
            let data = epoll::EventData::new_u64(MARK);
            epoll::add(&self.kernels, &self.streams, data, epoll::EventFlags::IN)?;
        } else if !needs_mark && marks.has_second {
            epoll::delete(&self.kernels, &self.streams)?;
        }
        marks.has_second = needs_mark;
        if !needs_mark && let Some(device) = marks.device.take() {
            let event = epoll_event {
                events: 0,
                u64: DEVICE,
            };
            // Of the sets, one has it at each moment.
            self.add_device(borrowed(device))?;
            self.kernel(EPOLL_CTL_DEL, device, &event)?;
        }
        Ok(())
    }

    /// Before a fork: threads that sleep in the program's set alone begin again.
    pub(super) fn share(&self) {
        // A handler may have interrupted the thread that holds it. Then the next wait does so.
        if let Some(mut marks) = self.marks.try_lock() {
            let _ = self.settle_with(&mut marks);
        }
        self.wake();
    }

    /// Begins to wait for what other processes ring.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub(super) fn mark_device(&self, bell: BorrowedFd<'_>) -> Result<()> {
        let mut marks = self.marks.lock();
        if self.is_shared() {
            return self.add_device(bell);
        }
        let event = epoll_event {
            events: libc::EPOLLIN as u32,
            u64: DEVICE,
        };
        // In the first set: the kernel takes longer to wake a thread through the second one.
        self.kernel(EPOLL_CTL_ADD, bell.as_raw_fd(), &event)?;
        marks.device = Some(bell.as_raw_fd());
        Ok(())
    }

    fn add_device(&self, bell: BorrowedFd<'_>) -> Result<()> {
        let data = epoll::EventData::new_u64(DEVICE);
        epoll::add(&self.streams, bell, data, epoll::EventFlags::IN)
    }

    /// Waits for both sets. Returns the kernel's events, and whether there was anything else.
    ///
    /// # Errors
    /// As for ppoll(2).
    pub(super) fn ask_both(
        &self,
        events: &mut [epoll_event],
        sleep: Option<Duration>,
        mask: *const sigset_t,
    ) -> Result<(usize, bool)> {
        self.settle()?;
        let second = readable(self.streams.as_fd());
        let mut both = [readable(self.kernels.as_fd()), second];
        // SAFETY: the mask is the program's or null.
        unsafe { ask_kernel(&mut both, sleep, mask) }?;
        let has_news = both[1].revents != 0;
        if has_news {
            self.drain();
        }
        if both[0].revents == 0 {
            return Ok((0, has_news));
        }
        let first = self.kernels.as_raw_fd();
        let found = kernel_wait(first, events, Some(Duration::ZERO), std::ptr::null())?;
        let (kept, _) = without_marks(&mut events[..found]);
        if kept == 0 && found > 0 && !has_news {
            let pause = sleep.map_or(PAUSE, |sleep| sleep.min(PAUSE));
            // SAFETY: as above.
            unsafe { ask_kernel(&mut [second], Some(pause), mask) }?;
        }
        Ok((kept, has_news || kept < found))
    }

    /// Takes over what a parent's set waits for and this process can use: listeners, and sockets that are not connected.
    pub(super) fn inherit(&self, parents: &Set) {
        // If another thread of the parent held the lock at the fork, they may be half changed.
        let Some(theirs) = parents.interests.try_lock() else {
            return;
        };
        for (number, its) in &theirs.by_number {
            let placed = its.placed;
            let set = match placed.number {
                true => &parents.streams,
                false => &self.kernels,
            };
            if !placed.kernel && !placed.number {
                continue;
            }
            let event = epoll_event {
                events: its.events,
                u64: its.data,
            };
            let Some(socket) = lookup(*number) else {
                continue;
            };
            if !contains(set, *number) {
                // It is not that of the same socket any more.
                continue;
            }
            let interest = Interest {
                placed: Watch {
                    kernel: placed.kernel,
                    ..Watch::default()
                },
                is_disabled: its.is_disabled,
                ..Interest::new(&socket, event)
            };
            let _ = self.enter(*number, &socket, interest);
        }
    }
}

/// Whether the kernel's instance contains the descriptor. A trial, because there is no call for it.
fn contains(set: &OwnedFd, number: c_int) -> bool {
    let (data, events) = (epoll::EventData::new_u64(0), epoll::EventFlags::empty());
    let tried = epoll::add(set, borrowed(number), data, events);
    if tried.is_ok() {
        let _ = epoll::delete(set, borrowed(number));
    }
    tried == Err(Errno::EXIST)
}
