//! Bells: event counters that wake another process's progress thread, or this one's.

use std::os::fd::{AsFd, BorrowedFd};

use portolan_port_sharing::PrivateFd;
use portolan_port_sharing::room::with_room;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::Errno;

/// An event counter. A forked child has none.
#[derive(Debug)]
pub(crate) struct Bell(PrivateFd);

impl Bell {
    pub(super) fn new() -> Result<Self, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        with_room(|| PrivateFd::make(|| eventfd(0, flags))).map(Self)
    }

    /// The bell of another process. `None` if it is none, or one whose ringing could wait: to write to a pipe or a
    /// socket may end this process (SIGPIPE).
    pub(super) fn of(fd: PrivateFd) -> Option<Self> {
        // Event counters have no file type.
        let has_type = FileType::from_raw_mode(fstat(&fd).ok()?.st_mode) != FileType::Unknown;
        let waits = !fcntl_getfl(&fd).ok()?.contains(OFlags::NONBLOCK);
        (!has_type && !waits).then_some(Self(fd))
    }

    pub(crate) fn ring(&self) {
        // It fails only if it was rung so often that it is heard anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// It is heard, and quiet. The caller looks at what it was rung for after this.
    pub(crate) fn heard(&self) {
        // It fails only if it was not rung.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn private(fd: impl Into<std::os::fd::OwnedFd>) -> PrivateFd {
        PrivateFd::make(|| Ok(fd.into())).unwrap()
    }

    #[test]
    fn only_an_event_counter_that_never_waits_is_a_bell() {
        let Bell(own) = Bell::new().unwrap();
        assert!(Bell::of(own).is_some());
        let waits = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert!(Bell::of(private(waits)).is_none());
        let (_reader, writer) = std::io::pipe().unwrap();
        assert!(Bell::of(private(writer)).is_none());
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        assert!(Bell::of(private(socket)).is_none());
    }
}
