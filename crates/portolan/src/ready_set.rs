//! One descriptor for several: readable while any of them is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use portolan_port_sharing::room::{self, with_room};
use portolan_provider::{Error, Result, Step};
use rustix::event::epoll;
use rustix::io::Errno;

/// An epoll set. A descriptor leaves it when it is closed.
#[derive(Debug)]
pub(crate) struct ReadySet(OwnedFd);

impl ReadySet {
    /// Creates a set without members.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn new(step: Step) -> Result<Self> {
        let set = with_room(|| epoll::create(epoll::CreateFlags::CLOEXEC));
        set.map(Self).map_err(|errno| failed(step, errno))
    }

    /// Adds a descriptor.
    ///
    /// # Errors
    /// The user has as many watches as the system allows.
    pub(crate) fn add(&self, descriptor: impl AsFd, step: Step) -> Result<()> {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.0, descriptor, data, epoll::EventFlags::IN)
            .map_err(|errno| failed(step, errno))
    }
}

impl AsFd for ReadySet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn failed(step: Step, errno: Errno) -> Error {
    Error::new(step, room::cause("epoll", errno))
}
