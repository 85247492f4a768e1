//! Which of a set's descriptors the kernel's sets contain.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, epoll_event};
use portolan_abi_layout::guard::{Result, last_errno};
use rustix::event::epoll;
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::{Interest, Set};
use crate::background::make_aside;
use crate::real;
use crate::socket::Watch;

impl Set {
    /// The kernel's `epoll_ctl` on the program's set.
    pub(super) fn kernel(
        &self,
        operation: c_int,
        number: c_int,
        event: &epoll_event,
    ) -> Result<()> {
        let mut event = *event;
        // SAFETY: the event is a valid local variable.
        match unsafe { real::epoll_ctl(self.kernels.as_raw_fd(), operation, number, &mut event) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }

    /// Moves an interest's descriptors into the sets that `watch` requires.
    pub(super) fn place(&self, number: c_int, interest: &mut Interest, watch: Watch) -> Result<()> {
        let former = std::mem::replace(&mut interest.placed, watch);
        let event = epoll_event {
            events: interest.events,
            u64: interest.data,
        };
        match (former.kernel, watch.kernel) {
            (false, true) => self.kernel(EPOLL_CTL_ADD, number, &event)?,
            (true, false) => {
                let _ = self.kernel(EPOLL_CTL_DEL, number, &event);
            }
            _ => {}
        }
        let data = epoll::EventData::new_u64(number as u64);
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        match (former.number, watch.number) {
            (false, true) => epoll::add(&self.streams, borrowed(number), data, edges)?,
            (true, false) => {
                let _ = epoll::delete(&self.streams, borrowed(number));
            }
            _ => {}
        }
        if former.own == watch.own {
            return Ok(());
        }
        if let Some(own) = former.own {
            let duplicate = interest.duplicate.take();
            let own = duplicate.as_ref().map_or(borrowed(own), AsFd::as_fd);
            let _ = epoll::delete(&self.streams, own);
        }
        if let Some(own) = watch.own {
            // A listener's is readable while connections wait, also after they were reported. Each new one is an edge.
            let flags = match watch.kernel || watch.number {
                true => edges,
                false => epoll::EventFlags::IN,
            };
            match epoll::add(&self.streams, borrowed(own), data, flags) {
                Err(Errno::EXIST) => {
                    let duplicate = interest.duplicate.insert(duplicate(own)?);
                    epoll::add(&self.streams, duplicate, data, flags)?;
                }
                added => added?,
            }
        }
        Ok(())
    }
}

/// Duplicates a descriptor, aside.
pub(super) fn duplicate(number: c_int) -> Result<OwnedFd> {
    make_aside(|| fcntl_dupfd_cloexec(borrowed(number), 0))
}

/// Borrows a descriptor for a system call. If it is not open, the kernel refuses it.
pub(super) fn borrowed(fd: RawFd) -> BorrowedFd<'static> {
    // -1 cannot be borrowed. The kernel refuses the replacement as well.
    let fd = if fd < 0 { RawFd::MAX } else { fd };
    // SAFETY: it is passed only to epoll_ctl(2) and fcntl(2), which check it.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
