//! A descriptor that is readable while something is queued.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use portolan_port_sharing::room::with_room;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Result;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// Readable exactly while it is raised. For poll, epoll, and recv(2) with `MSG_PEEK` (it is a socket).
///
/// recv(2) waits like read(2), and restarts after a signal whose handler has `SA_RESTART`. poll(2) never restarts.
///
/// The owner serializes raising and lowering.
#[derive(Debug)]
pub struct Readiness {
    seen: OwnedFd,
    raiser: OwnedFd,
}

impl Readiness {
    /// Creates it lowered. A thread that waits on it blocks, unless the descriptor's flags are changed.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE`: it needs two descriptors.
    pub fn new() -> Result<Self> {
        let kind = (AddressFamily::UNIX, SocketType::STREAM);
        let make = || socketpair(kind.0, kind.1, SocketFlags::CLOEXEC, None);
        let (seen, raiser) = with_room(make)?;
        Ok(Self { seen, raiser })
    }

    /// Makes it readable. The caller knows that it is not.
    pub fn raise(&self) {
        // One byte always fits. A program that has closed the descriptor gets no wake-up.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _ = send(&self.raiser, &[1], flags);
    }

    /// Makes it unreadable. Does nothing if it is.
    pub fn lower(&self) {
        let _ = recv(&self.seen, &mut [0], RecvFlags::DONTWAIT);
    }

    /// Waits without a timeout until it is readable. Another thread may have lowered it when this returns.
    ///
    /// # Errors
    /// `EINTR` as for read(2); `EAGAIN` if the descriptor is non-blocking.
    pub fn wait(&self) -> Result<()> {
        recv(&self.seen, &mut [0], RecvFlags::PEEK).map(drop)
    }
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.seen.as_fd()
    }
}

/// A [`Readiness`] that is created when its descriptor is first used.
#[derive(Debug)]
pub struct LazyReadiness {
    made: OnceLock<Readiness>,
    nonblocking: bool,
    /// Readable for ever: stands in for a descriptor that cannot be created.
    stand_in: &'static OwnedFd,
}

impl LazyReadiness {
    /// `nonblocking` sets `O_NONBLOCK` on the descriptor.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE`: the first of a process needs one descriptor.
    pub fn new(nonblocking: bool) -> Result<Self> {
        Ok(Self {
            made: OnceLock::new(),
            nonblocking,
            stand_in: stand_in()?,
        })
    }

    /// Its descriptor. The owner serializes this with raising, and says whether it is raised.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE`: it needs two descriptors.
    pub fn descriptor(&self, is_raised: bool) -> Result<BorrowedFd<'_>> {
        if let Some(made) = self.made.get() {
            return Ok(made.as_fd());
        }
        let made = Readiness::new()?;
        if self.nonblocking {
            fcntl_getfl(&made).and_then(|flags| fcntl_setfl(&made, flags | OFlags::NONBLOCK))?;
        }
        let made = self.made.get_or_init(|| made);
        if is_raised {
            made.raise();
        }
        Ok(made.as_fd())
    }

    /// As [`descriptor`](Self::descriptor). If the process has no descriptor left, one that is always readable: a
    /// waiting program then polls.
    pub fn descriptor_or_stand_in(&self, is_raised: bool) -> BorrowedFd<'_> {
        self.descriptor(is_raised).unwrap_or_else(|errno| {
            tracing::warn!(%errno, "a program polls, because there is no descriptor to wait for");
            self.stand_in.as_fd()
        })
    }

    /// The readiness, if its descriptor has been used.
    pub fn made(&self) -> Option<&Readiness> {
        self.made.get()
    }

    /// As [`Readiness::raise`].
    pub fn raise(&self) {
        if let Some(made) = self.made.get() {
            made.raise();
        }
    }

    /// As [`Readiness::lower`].
    pub fn lower(&self) {
        if let Some(made) = self.made.get() {
            made.lower();
        }
    }
}

fn stand_in() -> Result<&'static OwnedFd> {
    static STAND_IN: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(made) = STAND_IN.get() {
        return Ok(made);
    }
    let made = with_room(|| eventfd(1, EventfdFlags::CLOEXEC))?;
    Ok(STAND_IN.get_or_init(|| made))
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(readiness: &Readiness) -> bool {
        let mut fds = [PollFd::new(readiness, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn it_is_readable_exactly_while_it_is_raised_and_waiting_does_not_clear_it() {
        let readiness = Readiness::new().unwrap();
        assert!(!is_readable(&readiness));
        readiness.lower();
        readiness.raise();
        readiness.wait().unwrap();
        readiness.wait().unwrap();
        assert!(is_readable(&readiness));
        readiness.lower();
        assert!(!is_readable(&readiness));
    }

    #[test]
    fn a_lazy_one_is_created_at_its_first_use_and_reports_what_was_raised_before() {
        let lazy = LazyReadiness::new(true).unwrap();
        lazy.raise();
        assert!(lazy.made().is_none());
        let fd = lazy.descriptor(true).unwrap();
        assert!(fcntl_getfl(fd).unwrap().contains(OFlags::NONBLOCK));
        let made = lazy.made().unwrap();
        assert!(is_readable(made));
        lazy.lower();
        assert!(!is_readable(made));
        lazy.raise();
        assert!(is_readable(made));
    }

    #[test]
    fn all_waiting_threads_are_woken() {
        let readiness = Readiness::new().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| readiness.wait().unwrap());
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            readiness.raise();
        });
    }
}
