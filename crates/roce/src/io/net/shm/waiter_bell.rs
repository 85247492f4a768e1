//! A bell for a thread of the program that waits for the rings itself, instead of the progress thread.
//!
//! It is a datagram socket. Each writer gets a socket that is connected to it, so no writer can disturb what another one
//! uses. A flag on the head page tells the writer whether to ring. So the thread waits for one descriptor, however many
//! processes there are, and it is no epoll instance: the kernel would take longer to wake a thread through one, and on
//! another processor.
//!
//! The socket has a name that the kernel has chosen. Other processes that send to it wake the thread in vain.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use portolan_port_sharing::room::with_room;
use portolan_port_sharing::{PrivateFd, refuse_descriptors};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    getsockname, recv, send, sendto, socket_with,
};

/// The bell of this process.
#[derive(Debug)]
pub(crate) struct WaiterBell {
    own: PrivateFd,
    name: SocketAddrUnix,
}

/// Rings that [`WaiterBell::reset_all`] takes: more than other processes leave by default (`net.unix.max_dgram_qlen`).
const RINGS_MAX: usize = 64;

impl WaiterBell {
    pub(super) fn new() -> Result<Self, Errno> {
        let own = with_room(|| {
            PrivateFd::make(|| {
                let own = datagrams()?;
                // Its name is visible to all, and closing a stranger's descriptor could block the thread.
                refuse_descriptors(own.as_fd())?;
                bind(&own, &SocketAddrUnix::new_unnamed())?;
                Ok(own)
            })
        })?;
        let name = getsockname(&own)?.try_into()?;
        Ok(Self { own, name })
    }

    /// A writer's end.
    pub(super) fn end(&self) -> Result<OwnedFd, Errno> {
        let end = with_room(datagrams)?;
        connect(&end, &self.name)?;
        Ok(end)
    }

    /// Rings it in its own process.
    pub(crate) fn ring(&self) {
        // Fails if there is no room. Then the bell rings already.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _ = sendto(&self.own, &[1], flags, &self.name);
    }

    /// Takes one ring. The caller looks for packets after this. It is woken again if there are more rings.
    pub(crate) fn reset(&self) {
        // Fails if nobody has rung.
        let _ = self.take();
    }

    /// Takes all rings. An edge-triggered epoll instance hears only of new rings, and a full queue takes none.
    pub(crate) fn reset_all(&self) {
        for _ in 0..RINGS_MAX {
            if self.take().is_err() {
                return;
            }
        }
    }

    fn take(&self) -> Result<(), Errno> {
        recv(&self.own, &mut [0; 1], RecvFlags::DONTWAIT).map(drop)
    }
}

fn datagrams() -> Result<OwnedFd, Errno> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
    socket_with(family, kind, SocketFlags::CLOEXEC, None)
}

/// Readable while the bell rings.
impl AsFd for WaiterBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}

/// Rings the bell of another process. Never waits.
pub(super) fn ring(end: &PrivateFd) {
    // Fails if many rings wait there, or if that process is gone.
    let _ = send(end, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{Shutdown, shutdown};

    use super::*;

    fn is_readable(bell: &WaiterBell) -> bool {
        let mut fds = [PollFd::new(bell, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    fn end(bell: &WaiterBell) -> PrivateFd {
        PrivateFd::make(|| bell.end()).unwrap()
    }

    #[test]
    fn any_writer_makes_the_descriptor_readable_until_its_ring_is_taken() {
        let bell = WaiterBell::new().unwrap();
        let writers: Vec<_> = (0..3).map(|_| end(&bell)).collect();
        assert!(!is_readable(&bell));
        for writer in &writers {
            ring(writer);
            assert!(is_readable(&bell));
            bell.reset();
            assert!(!is_readable(&bell));
        }
        ring(&writers[0]);
        ring(&writers[1]);
        bell.reset();
        assert!(is_readable(&bell));
        bell.reset();
        assert!(!is_readable(&bell));
        bell.reset();
        writers.iter().for_each(ring);
        bell.reset_all();
        assert!(!is_readable(&bell));
    }

    #[test]
    fn a_writer_that_ends_its_end_or_fills_the_bell_disturbs_no_other() {
        let bell = WaiterBell::new().unwrap();
        let (first, second) = (end(&bell), end(&bell));
        shutdown(&first, Shutdown::Both).unwrap();
        ring(&first);
        assert!(!is_readable(&bell));
        (0..100_000).for_each(|_| ring(&second));
        for _ in 0..100_000 {
            bell.reset();
        }
        assert!(!is_readable(&bell));
        drop(first);
        ring(&second);
        assert!(is_readable(&bell));
    }
}
