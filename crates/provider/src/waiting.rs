//! What threads that wait for a provider use.

use std::os::fd::BorrowedFd;

use crate::Result;
use crate::sealed::Sealed;

/// The result of [`CmChannel::attend`](crate::traits::CmChannel::attend).
pub trait Attendance: std::fmt::Debug {}

/// What completion queues and event channels without a descriptor call.
pub trait Notify: Send + Sync + std::fmt::Debug {
    /// Something has arrived. The caller holds locks of its device: this must neither wait nor call the device.
    fn notify(&self);
    /// A descriptor that is readable after [`Notify::notify`], until its owner resets it.
    fn as_fd(&self) -> BorrowedFd<'_>;
    /// As `as_fd`, for an owner that creates the descriptor at its first use.
    ///
    /// # Errors
    /// `Os` if the process has no descriptor left.
    fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.as_fd())
    }
}

/// The result of [`CompChannel::sleep_at`].
#[derive(Debug)]
pub enum SleepAt<'a> {
    /// The channel's descriptor.
    Descriptor(BorrowedFd<'a>),
    /// A datagram socket, until it has a datagram, which may be empty.
    Bell(BorrowedFd<'a>),
    /// Nothing: look again at once.
    Nothing,
    /// Nothing: an event has arrived and is taken. This is its cookie.
    Event(u64),
}

/// A completion channel: a descriptor that reports which queues have completions.
pub trait CompChannel: Sealed + Send + Sync + std::fmt::Debug {
    /// The descriptor, readable while an event is queued.
    fn as_fd(&self) -> BorrowedFd<'_>;
    /// As `as_fd`, for a provider that creates the descriptor at its first use.
    ///
    /// # Errors
    /// `Os` if the process has no descriptor left.
    fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.as_fd())
    }
    /// Takes the cookie of a queue with a completion since it was armed; `None` if there is none.
    fn take_event(&self) -> Result<Option<u64>>;
    /// For a call that waits for an event and has found none: what the calling thread waits for, and then calls
    /// [`take_event`](Self::take_event) again. It may find no event then. The caller serializes both calls.
    ///
    /// # Errors
    /// As for `descriptor`.
    fn sleep_at(&self) -> Result<SleepAt<'_>> {
        self.descriptor().map(SleepAt::Descriptor)
    }
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// The result of [`Cq::wait_for_device`](crate::traits::Cq::wait_for_device). Its owner waits for packets of the host's other processes in the place of the
/// device's own thread, until it gives this up or drops it.
pub trait DeviceWait: Send + Sync + std::fmt::Debug {
    /// A descriptor that is readable when packets have arrived since [`rest`](Self::rest), and sometimes without.
    fn as_fd(&self) -> BorrowedFd<'_>;
    /// Handles what has arrived, for all queues of the process.
    fn drive(&self);
    /// Whether something has arrived that [`drive`](Self::drive) would handle. Changes nothing, and takes little time.
    fn has_more(&self) -> bool;
    /// Called before a sleep until the descriptor is readable. Returns false if something has already arrived: drive,
    /// and call this again.
    fn rest(&self) -> bool;
    /// The calling thread is about to sleep, after [`rest`](Self::rest), and can wait for the device's
    /// [sockets](Self::socket), too. Returns false if it need not. Otherwise it calls
    /// [`return_sockets`](Self::return_sockets) when it is awake.
    fn take_sockets(&self) -> bool;
    /// The socket with this number, from 0 on.
    fn socket(&self, number: usize) -> Option<BorrowedFd<'_>>;
    /// Handles what has arrived, and leaves the sockets to the device's own thread, or, after much traffic, lets it check
    /// them at intervals.
    fn return_sockets(&self);
    /// Leaves the packets to the device's own thread again, or to another caller of
    /// [`Cq::wait_for_device`](crate::traits::Cq::wait_for_device). The descriptor belongs to that one then.
    /// Returns false if that is not this process's to do, because it was forked.
    fn give_up(&self) -> bool;
}
