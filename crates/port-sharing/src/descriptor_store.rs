//! The store of the group's UDP sockets: messages queued in a unix socket that every member holds.
//!
//! A descriptor in a queued message keeps its file open, so the sockets live as long as any member does. They close
//! together with the last member. No process ever removes a message: the coordinator only peeks at the one it needs. So
//! a death leaves nothing half done, and every socket keeps its index in the kernel's reuseport group. All messages
//! have the same length, so `SO_PEEK_OFF` (unix(7), socket(7)) finds the message of a block. The store holds only UDP
//! sockets: unix sockets in it could keep each other alive.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

use super::block::{BLOCK_COUNT, Block};
use super::fork::{PrivateFd, Window};
use super::packet::{self, Received};
use super::raw;
use super::sockets::{BlockSocket, Family};

/// Bytes of each message: the block, and the families of its sockets.
const ENTRY_BYTES: usize = 2;

const HAS_IPV4: u8 = 1;
const HAS_IPV6: u8 = 2;

/// Send buffer for parking: the kernel charges less than a kilobyte per message.
const PARKING_BUFFER_BYTES: usize = BLOCK_COUNT * 2048;

/// The receiving end of the descriptor store, the same open file in every member.
#[derive(Debug)]
pub(super) struct DescriptorStore {
    receiver: PrivateFd,
}

/// A descriptor store being filled, in the order of the blocks.
#[derive(Debug)]
pub(super) struct Parking {
    sender: PrivateFd,
    receiver: PrivateFd,
}

/// Why the descriptor store did not return a block's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum DescriptorStoreError {
    /// A system call failed.
    #[error("cannot read the descriptor store: {0}")]
    Os(Errno),
    /// The process has no free descriptor numbers.
    #[error("no room for the block's sockets: raise the limit of open files (RLIMIT_NOFILE)")]
    NoRoom,
    /// The descriptor store lacks a block.
    #[error("the descriptor store has no entry for block {0}")]
    Missing(Block),
}

impl From<Errno> for DescriptorStoreError {
    fn from(errno: Errno) -> Self {
        if errno == Errno::MFILE {
            Self::NoRoom
        } else {
            Self::Os(errno)
        }
    }
}

fn private_pair() -> Result<(PrivateFd, PrivateFd), Errno> {
    let window = Window::open()?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let one = PrivateFd::adopt(&window, one)?;
    let other = PrivateFd::adopt(&window, other);
    // If the second fails, dropping the first opens a window.
    drop(window);
    Ok((one, other?))
}

impl Parking {
    pub(super) fn new() -> Result<Self, Errno> {
        let (sender, receiver) = private_pair()?;
        // The queue of a socket pair is limited only by bytes, not by `max_dgram_qlen`. If the buffer cannot be
        // enlarged, it may still be large enough; otherwise parking fails.
        let _ = sockopt::set_socket_send_buffer_size(&sender, PARKING_BUFFER_BYTES);
        Ok(Self { sender, receiver })
    }

    /// Parks the next block's sockets: IPv4, and IPv6 if supported.
    pub(super) fn park(
        &mut self,
        block: Block,
        ipv4: BorrowedFd<'_>,
        ipv6: Option<BorrowedFd<'_>>,
    ) -> Result<(), Errno> {
        let families = HAS_IPV4 | if ipv6.is_some() { HAS_IPV6 } else { 0 };
        let entry: [u8; ENTRY_BYTES] = [block.index(), families];
        let sender = self.sender.as_fd();
        match ipv6 {
            Some(ipv6) => packet::send_with(sender, &entry, &[ipv4, ipv6]),
            None => packet::send_with(sender, &entry, &[ipv4]),
        }
    }

    /// Closes the sending end: the descriptor store is complete.
    ///
    /// # Errors
    /// [`Errno::TOOMANYREFS`]: the store uses up this user's limit of descriptors in flight, so no process could be
    /// welcomed.
    pub(super) fn seal(self) -> Result<DescriptorStore, Errno> {
        // Test with one more message, as large as a welcome.
        self.send_one_more()?;
        Ok(DescriptorStore {
            receiver: self.receiver,
        })
    }

    /// Sends the store through a socket pair. A child that is forked meanwhile does not keep it.
    fn send_one_more(&self) -> Result<(PrivateFd, PrivateFd), Errno> {
        let (probe, receiver) = private_pair()?;
        packet::send_with(probe.as_fd(), &[0], &[self.receiver.as_fd()])?;
        Ok((probe, receiver))
    }
}

impl DescriptorStore {
    /// Releases the sockets, which close if no other member holds them.
    pub(super) fn vacate(&self) {
        self.receiver.vacate();
    }

    /// The descriptor store received with a welcome.
    pub(super) fn from_descriptor(receiver: PrivateFd) -> Self {
        Self { receiver }
    }

    /// Copies of a block's sockets. Only the coordinator may call this, because all members share the peek offset.
    pub(super) fn peek(&self, block: Block) -> Result<Vec<BlockSocket>, DescriptorStoreError> {
        let offset = usize::from(block.index()) * ENTRY_BYTES;
        let receiver = self.receiver.as_fd();
        raw::set_option(receiver, libc::SOL_SOCKET, libc::SO_PEEK_OFF, offset as i32)?;
        let mut entry = [0; ENTRY_BYTES];
        let (received, descriptors) = packet::peek_descriptors(receiver, &mut entry)?;
        let [index, families] = entry;
        if received != Received::Record(ENTRY_BYTES) || index != block.index() {
            return Err(DescriptorStoreError::Missing(block));
        }
        let of = [(HAS_IPV4, Family::Ipv4), (HAS_IPV6, Family::Ipv6)];
        let families = of
            .into_iter()
            .filter(|(bit, _)| families & bit != 0)
            .map(|(_, f)| f);
        Ok(families
            .zip(descriptors)
            .map(|(family, fd)| BlockSocket::new(family, fd))
            .collect())
    }
}

impl AsFd for DescriptorStore {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "fork(2)")]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::net::{RecvFlags, recv};

    use super::*;

    const CHILD_LIFE: Duration = Duration::from_secs(10);

    #[test]
    fn a_child_that_is_forked_while_a_store_is_sealed_does_not_keep_it() {
        let parking = Parking::new().unwrap();
        let sent = parking.send_one_more().unwrap();
        // SAFETY: the child only sleeps and ends with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            std::thread::sleep(CHILD_LIFE);
            // SAFETY: ends the child at once, without running the parent's exit handlers.
            unsafe { libc::_exit(0) };
        }
        drop(sent);
        let Parking { sender, receiver } = parking;
        drop(receiver);
        let began = Instant::now();
        let closed = loop {
            match recv(&sender, &mut [0u8; 1], RecvFlags::empty()) {
                Ok((bytes, _)) => break bytes == 0,
                Err(errno) => assert_eq!(errno, Errno::AGAIN),
            }
            if began.elapsed() > CHILD_LIFE / 2 {
                break false;
            }
            std::thread::yield_now();
        };
        // SAFETY: ends and awaits the child created above.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert!(closed, "the child keeps the store");
    }
}
