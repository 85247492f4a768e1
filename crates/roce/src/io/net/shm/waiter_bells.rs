//! Bells for a thread of the program that waits for the rings itself, instead of the progress thread.
//!
//! Each link has a socket pair: the reading process has one end, and passes the other one to the writer. A flag on the
//! head page tells the writer whether to ring. All ends of a process are in one epoll instance, so the thread waits for
//! one descriptor, however many processes there are.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use portolan_port_sharing::PrivateFd;
use portolan_port_sharing::room::with_room;
use portolan_threads::lock::Mutex;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// Rings taken from an end by one system call. A thread that finds more looks again.
const RINGS: usize = 256;

/// The ends of this process.
#[derive(Debug)]
pub(crate) struct WaiterBells {
    all: PrivateFd,
    /// With the place of the link on the head page.
    ends: Mutex<Vec<(u8, PrivateFd)>>,
}

impl WaiterBells {
    pub(super) fn new() -> Result<Self, Errno> {
        let all = with_room(|| PrivateFd::make(|| epoll::create(epoll::CreateFlags::CLOEXEC)))?;
        Ok(Self {
            all,
            ends: Mutex::default(),
        })
    }

    /// Makes the bell of a link. Returns the end for the writer.
    pub(super) fn add(&self, place: u8) -> Result<OwnedFd, Errno> {
        let mut writers = None;
        let own = with_room(|| {
            PrivateFd::make(|| {
                let kind = (AddressFamily::UNIX, SocketType::STREAM);
                let (own, other) = socketpair(kind.0, kind.1, SocketFlags::CLOEXEC, None)?;
                writers = Some(other);
                Ok(own)
            })
        })?;
        let data = epoll::EventData::new_u64(place.into());
        epoll::add(&self.all, &own, data, epoll::EventFlags::IN)?;
        let mut ends = self.ends.lock();
        ends.retain(|(known, _)| *known != place);
        ends.push((place, own));
        writers.ok_or(Errno::BADF)
    }

    /// Removes the bell of a link that has ended.
    pub(super) fn remove(&self, place: u8) {
        self.ends.lock().retain(|(known, _)| *known != place);
    }

    /// Resets all bells. The caller looks for packets after this.
    pub(crate) fn reset(&self) {
        // An end that its writer has closed would be readable for ever.
        self.ends.lock().retain(|(_, end)| is_open_after_reset(end));
    }
}

fn is_open_after_reset(end: &PrivateFd) -> bool {
    match recv(end, &mut [0; RINGS], RecvFlags::DONTWAIT) {
        Ok((rings, _)) => rings > 0,
        Err(errno) => errno == Errno::AGAIN,
    }
}

/// Readable while a bell rings.
impl AsFd for WaiterBells {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }
}

/// Rings a bell of another process. Never waits.
pub(super) fn ring(end: &PrivateFd) {
    // Fails if many rings wait there, or if that process is gone.
    let _ = send(end, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(bells: &WaiterBells) -> bool {
        let mut fds = [PollFd::new(bells, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    fn adopted(fd: OwnedFd) -> PrivateFd {
        PrivateFd::make(|| Ok(fd)).unwrap()
    }

    #[test]
    fn any_writers_bell_makes_the_descriptor_readable_until_it_is_reset() {
        let bells = WaiterBells::new().unwrap();
        let writers: Vec<_> = (0..3)
            .map(|place| adopted(bells.add(place).unwrap()))
            .collect();
        assert!(!is_readable(&bells));
        for writer in &writers {
            ring(writer);
            ring(writer);
            assert!(is_readable(&bells));
            bells.reset();
            assert!(!is_readable(&bells));
        }
        bells.remove(1);
        ring(&writers[1]);
        assert!(!is_readable(&bells));
        ring(&writers[2]);
        assert!(is_readable(&bells));
    }

    #[test]
    fn an_end_that_its_writer_closed_or_filled_does_not_ring_for_ever() {
        let bells = WaiterBells::new().unwrap();
        drop(bells.add(0).unwrap());
        assert!(is_readable(&bells));
        bells.reset();
        assert!(!is_readable(&bells));
        let writer = adopted(bells.add(1).unwrap());
        (0..100_000).for_each(|_| ring(&writer));
        for _ in 0..100_000 {
            bells.reset();
        }
        assert!(!is_readable(&bells));
        ring(&writer);
        assert!(is_readable(&bells));
    }
}
