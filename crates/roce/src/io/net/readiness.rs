//! A descriptor that is readable while something is queued.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use portolan_port_sharing::room::with_room;
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
