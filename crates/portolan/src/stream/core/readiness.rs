//! How waiting threads and event loops learn that a stream may have advanced.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use portolan_port_sharing::room::{self, with_room};
use portolan_provider::traits::{CompChannel, Notify};
use portolan_provider::{Error, Result, Step};
use rustix::event::epoll;

use super::own_wait::{Descriptors, OwnWait};
use super::{Core, Ready, Signal};
use crate::bell::{make_bell, ring};

#[derive(Debug)]
pub(super) enum Readiness {
    /// The device calls.
    Called {
        signal: Arc<Signal>,
        /// Set once a thread or an event loop waits for the stream, if nobody else waits for the device.
        own: OnceLock<OwnWait>,
    },
    /// The device has descriptors.
    Watched {
        channel: Arc<dyn CompChannel>,
        /// Readable while there are completions or events, or the bell rings.
        all: OwnedFd,
        /// Rings if another caller has advanced a direction that an event loop waits for.
        bell: OwnedFd,
        /// Wakes the thread that sleeps for all waiters.
        rouser: OnceLock<OwnedFd>,
    },
}

impl Readiness {
    pub(super) fn called(signal: Arc<Signal>) -> Self {
        Self::Called {
            signal,
            own: OnceLock::new(),
        }
    }

    pub(super) fn of(channel: Arc<dyn CompChannel>, events: BorrowedFd<'_>) -> Result<Self> {
        let failed = |errno| Error::new(Step::Event, room::cause("epoll", errno));
        let all = with_room(|| epoll::create(epoll::CreateFlags::CLOEXEC)).map_err(failed)?;
        let bell = make_bell(Step::Event)?;
        let data = epoll::EventData::new_u64(0);
        for fd in [channel.descriptor()?, events, bell.as_fd()] {
            epoll::add(&all, fd, data, epoll::EventFlags::IN).map_err(failed)?;
        }
        Ok(Self::Watched {
            channel,
            all,
            bell,
            rouser: OnceLock::new(),
        })
    }

    /// Wakes the thread that sleeps for all waiters.
    pub(super) fn rouse(&self) {
        match self {
            Self::Called { signal, .. } => signal.raise(),
            Self::Watched { rouser, .. } => rouser.get().into_iter().for_each(ring),
        }
    }
}

impl Core {
    /// A descriptor that is readable when another direction may have become ready.
    pub(crate) fn readiness(&self) -> BorrowedFd<'_> {
        match &self.readiness {
            Readiness::Called { signal, own } => {
                if !signal.has_bell() {
                    self.wait_for_device();
                }
                let fd = self.signal();
                match own.get() {
                    Some(own) => own.descriptor(signal),
                    None => fd,
                }
            }
            Readiness::Watched { all, .. } => all.as_fd(),
        }
    }

    /// As [`Core::readiness`], without what only [`Core::wait_for_device`] returns.
    pub(crate) fn signal(&self) -> BorrowedFd<'_> {
        match &self.readiness {
            Readiness::Called { signal, .. } => {
                if !signal.has_bell() {
                    // Calls that failed with `WouldBlock` before did not prepare it.
                    let fd = signal.as_fd();
                    let mut state = self.lock();
                    self.rest(&mut state, true);
                    self.check(&mut state);
                    // Once, for a program that has not called anything yet: it may wait for either direction.
                    let ready = Ready::of(&state);
                    if ready.readable || ready.writable {
                        signal.raise();
                    }
                    return fd;
                }
                signal.as_fd()
            }
            Readiness::Watched { all, .. } => all.as_fd(),
        }
    }

    /// As [`Core::signal`], but fails if no descriptor is left.
    #[cfg(feature = "tokio")]
    pub(crate) fn made_signal(&self) -> Result<BorrowedFd<'_>> {
        let fd = self.signal();
        match &self.readiness {
            Readiness::Called { signal, .. } => signal.descriptor(),
            Readiness::Watched { .. } => Ok(fd),
        }
    }

    /// What a thread waits for that calls poll(2) itself, in the place of [`Core::readiness`]: the kernel takes longer to
    /// wake a thread through an epoll instance.
    pub(crate) fn descriptors(&self) -> Descriptors<'_> {
        let only = self.readiness();
        let (signal, device) = match (self.own_wait(), &self.readiness) {
            (Some((signal, own)), _) => (signal.descriptor(), Some(own.bell())),
            // If that is missing, the other one is always readable.
            (None, Readiness::Called { signal, .. }) => (signal.descriptor().map(|_| only), None),
            (None, Readiness::Watched { .. }) => (Ok(only), None),
        };
        Descriptors {
            signal: signal.ok(),
            device,
        }
    }

    /// Makes the stream wait for the device, unless another one does. Returns what the other processes ring.
    pub(crate) fn wait_for_device(&self) -> Option<BorrowedFd<'_>> {
        let Readiness::Called { own, .. } = &self.readiness else {
            return None;
        };
        if own.get().is_none() {
            let device = self.queues.receives_cq.wait_for_device()?;
            own.get_or_init(|| OwnWait::new(device));
        }
        let (_, own) = self.own_wait()?;
        Some(own.bell())
    }

    pub(super) fn own_wait(&self) -> Option<(&Signal, &OwnWait)> {
        match &self.readiness {
            Readiness::Called { signal, own } => {
                let own = own.get().filter(|own| !own.is_given_up())?;
                Some((signal, own))
            }
            Readiness::Watched { .. } => None,
        }
    }
}
