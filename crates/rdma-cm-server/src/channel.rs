//! The device and its open descriptors, which accept commands and deliver events.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use portolan_kernel::raw::{Fields, Header};
use portolan_provider::cm::IdNumber;
use portolan_provider::traits::{CmChannel, Provider};
use portolan_threads::fork::ForkGuard;
use portolan_threads::lock::{Mutex, MutexGuard};
use rustix::io::Errno;

use crate::ids::Ids;
use crate::memory::Memory;

/// The rdma_cm device of a provider.
pub struct RdmaCm {
    provider: Arc<dyn Provider>,
    /// In a forked child the locks may stay locked.
    fork: ForkGuard,
    /// Open channels by their descriptors, which MIGRATE_ID names.
    channels: Mutex<HashMap<RawFd, Weak<Channel>>>,
    channels_opened: AtomicU64,
    ids: Ids,
}

impl RdmaCm {
    /// Creates a device that executes its commands with the provider.
    pub fn new(provider: Arc<dyn Provider>) -> Arc<Self> {
        Arc::new(Self {
            provider,
            fork: ForkGuard::new(),
            channels: Mutex::default(),
            channels_opened: AtomicU64::new(0),
            ids: Ids::default(),
        })
    }

    /// # Errors
    /// `EOPNOTSUPP` in a forked child of the process that created it.
    fn check_process(&self) -> Result<(), Errno> {
        match self.fork.is_owner() {
            true => Ok(()),
            false => Err(Errno::OPNOTSUPP),
        }
    }

    pub(crate) fn provider(&self) -> &dyn Provider {
        &*self.provider
    }

    pub(crate) fn ids(&self) -> &Ids {
        &self.ids
    }

    /// Opens an event channel, as opening `/dev/infiniband/rdma_cm` does.
    ///
    /// # Errors
    /// The provider's error.
    pub fn open(self: &Arc<Self>) -> portolan_provider::Result<Arc<Channel>> {
        let commands = self.provider.open_channel()?;
        let fd = commands.descriptor()?.as_raw_fd();
        let channel = Arc::new(Channel {
            device: self.clone(),
            commands,
            number: self.channels_opened.fetch_add(1, Ordering::Relaxed),
            taking: Mutex::default(),
            is_closed: AtomicBool::new(false),
        });
        self.channels.lock().insert(fd, Arc::downgrade(&channel));
        Ok(channel)
    }

    /// The channel of a descriptor.
    pub(crate) fn channel(&self, fd: RawFd) -> Option<Arc<Channel>> {
        self.channels.lock().get(&fd)?.upgrade()
    }
}

/// Short, because it appears in the output of every channel.
impl fmt::Debug for RdmaCm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaCm")
            .field("provider", &self.provider)
            .finish_non_exhaustive()
    }
}

/// An event channel. [`Channel::close`], or dropping it, destroys its ids, as closing the kernel's descriptor does.
#[derive(Debug)]
pub struct Channel {
    device: Arc<RdmaCm>,
    commands: Arc<dyn CmChannel>,
    number: u64,
    /// Locked while an event is taken and counted, and while the count is read: destroying an id waits until that many
    /// events are acknowledged.
    taking: Mutex<()>,
    is_closed: AtomicBool,
}

/// A command, without its header.
pub(crate) struct Command<'a> {
    bytes: &'a [u8],
    /// Space for the answer, in bytes.
    out_len: usize,
    memory: &'a dyn Memory,
}

impl Channel {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn device(&self) -> &RdmaCm {
        &self.device
    }

    pub(crate) fn commands(&self) -> &dyn CmChannel {
        &*self.commands
    }

    pub(crate) fn taking(&self) -> MutexGuard<'_, ()> {
        self.taking.lock()
    }

    /// # Errors
    /// `EBADF` once it is closed; `EOPNOTSUPP` in a forked child of the process that created the device.
    pub(crate) fn check_open(&self) -> Result<(), Errno> {
        self.device.check_process()?;
        match self.is_closed.load(Ordering::Acquire) {
            true => Err(Errno::BADF),
            false => Ok(()),
        }
    }

    /// Closes it: destroys its ids and refuses later commands. A thread waiting in GET_EVENT is not woken and keeps the
    /// descriptor open, but no events arrive.
    pub fn close(&self) {
        // A forked child's copy belongs to its parent, and locks may have been held at the fork.
        if self.device.check_process().is_err() || self.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        // Its descriptor is still open, so the entry cannot be another channel's.
        self.device
            .channels
            .lock()
            .remove(&self.as_fd().as_raw_fd());
        for id in self.device.ids.close(self.number) {
            // Fails if destroying a listener already destroyed this child.
            let _ = self.commands.destroy_id(id);
        }
    }

    /// The id with this number, if it belongs to this channel.
    ///
    /// # Errors
    /// `ENOENT`, `EINVAL`.
    pub(crate) fn own(&self, id: u32) -> Result<IdNumber, Errno> {
        let id = IdNumber(id);
        self.device.ids.check_owner(id, self.number)?;
        Ok(id)
    }

    /// Executes a command, like a write to the device: a header, followed by the command's structure. Bytes after that
    /// are ignored. Returns the number of bytes written, which is all of them.
    ///
    /// # Errors
    /// Errors of the kernel's device; `EFAULT` from the memory; `EBADF` once the channel is closed. GET_EVENT waits
    /// without a limit unless the descriptor is non-blocking (`EAGAIN`) or a signal handler installed without
    /// `SA_RESTART` runs (`EINTR`).
    pub fn write(&self, bytes: &[u8], memory: &dyn Memory) -> Result<usize, Errno> {
        self.check_open()?;
        if bytes.len() < Header::SIZE {
            return Err(Errno::INVAL);
        }
        let (header, rest) = bytes.split_at(Header::SIZE);
        let header = Header::from_bytes(header);
        let command = Command {
            bytes: rest.get(..usize::from(header.in_len)).ok_or(Errno::INVAL)?,
            out_len: header.out_len.into(),
            memory,
        };
        self.run(header.cmd, &command)?;
        Ok(bytes.len())
    }
}

impl AsFd for Channel {
    /// Readable while an event is queued; may be polled and made non-blocking.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.commands.as_fd()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.close();
    }
}

impl Command<'_> {
    /// Reads the command's structure.
    ///
    /// # Errors
    /// `EINVAL` if it is incomplete.
    pub(crate) fn read<T: Fields>(&self) -> Result<T, Errno> {
        if self.bytes.len() < T::SIZE {
            return Err(Errno::INVAL);
        }
        Ok(T::from_bytes(self.bytes))
    }

    /// Checks the space for the answer before anything is done.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(crate) fn expect_room<T: Fields>(&self) -> Result<(), Errno> {
        match self.out_len < T::SIZE {
            true => Err(Errno::NOSPC),
            false => Ok(()),
        }
    }

    /// Writes the answer.
    ///
    /// # Errors
    /// `EFAULT`.
    pub(crate) fn answer<T: Fields>(&self, address: u64, answer: &T) -> Result<(), Errno> {
        self.memory.write(address, &answer.to_bytes())
    }

    /// Reads the value at an address in a command.
    ///
    /// # Errors
    /// `EFAULT`.
    pub(crate) fn value(&self, address: u64, length: u32) -> Result<Vec<u8>, Errno> {
        self.memory.read(address, length as usize)
    }
}
