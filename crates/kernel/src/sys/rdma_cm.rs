//! Commands on an open rdma_cm device: bytes written to it, including the address for the kernel's answer. The device
//! may be a library's instead of the kernel's: see [`RdmaCmTable`].

#![allow(
    unsafe_code,
    reason = "the kernel writes to addresses within the bytes"
)]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use crate::rdma_cm::abi::{EventResp, GetEvent, Header, SetOption, number};
use crate::rdma_cm::fields::Fields;

/// Size that fits any command with its header, and any answer except one.
const BYTES_MAX: usize = 512;
/// Size that fits the longest answer: service records.
const BYTES_LONG: usize = 1088;
const BYTES_TOO_LONG: usize = BYTES_MAX + 1;
/// Size that fits most of them. Buffers are zeroed before use, so short commands use the smaller one.
const BYTES_SHORT: usize = 160;

/// A command without embedded addresses.
pub trait Command: Fields {
    /// Its number in `enum rdma_ucm_cmd`.
    const NUMBER: u32;
}

/// A command that the kernel answers.
pub trait Question: Fields {
    /// Sets the address of the answer.
    fn set_response(&mut self, address: u64);
}

/// A library's rdma_cm device: Portolan's `libibverbs.so.1` exports one for its software devices. These functions
/// correspond to open(2), write(2) and close(2) on the kernel's device, with the same bytes.
#[derive(Debug)]
#[repr(C)]
pub struct RdmaCmTable {
    /// Version of this table: [`RdmaCmTable::VERSION`].
    pub version: u32,
    /// Opens an event channel and stores it. Returns 0 or an errno.
    pub open: unsafe extern "C" fn(channel: *mut RdmaCmChannel) -> c_int,
    /// Executes a command. Returns the number of its bytes or a negative errno. Addresses in it are the caller's.
    pub write:
        unsafe extern "C" fn(handle: *mut c_void, command: *const c_void, length: usize) -> isize,
    /// Closes a channel and its descriptor, which must not be closed otherwise; its ids are destroyed. Threads waiting
    /// in it are not woken. Later commands fail with `EBADF`.
    pub close: unsafe extern "C" fn(handle: *mut c_void),
}

/// An event channel of a library's device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RdmaCmChannel {
    /// The library's.
    pub handle: *mut c_void,
    /// A socket, readable while an event is queued, and non-blocking if its owner makes it so.
    pub fd: c_int,
}

impl RdmaCmTable {
    /// The version of this library.
    pub const VERSION: u32 = 3;
    /// The exported function: it takes no arguments and returns the table, which is valid as long as the library.
    pub const SYMBOL: &str = "portolan_rdma_cm";
    /// The symbol's version.
    pub const SYMBOL_VERSION: &str = "PORTOLAN_1";
}

/// An open rdma_cm device: an event channel.
#[derive(Debug)]
pub struct Channel {
    way: Way,
}

/// The way commands are passed.
#[derive(Debug)]
enum Way {
    Kernel(OwnedFd),
    Library {
        table: &'static RdmaCmTable,
        handle: NonNull<c_void>,
        fd: c_int,
        is_closed: AtomicBool,
    },
}

// SAFETY: the table promises that any thread may use a library's channel, as with the kernel's.
unsafe impl Send for Way {}
// SAFETY: as above.
unsafe impl Sync for Way {}

impl Channel {
    /// Wraps a descriptor of the device.
    pub fn new(fd: OwnedFd) -> Self {
        Self {
            way: Way::Kernel(fd),
        }
    }

    /// Opens a channel of a library's device.
    ///
    /// # Errors
    /// The library's; `EPROTO` for a table of another version.
    pub fn open_in_library(table: &'static RdmaCmTable) -> Result<Self, Errno> {
        if table.version != RdmaCmTable::VERSION {
            return Err(Errno::PROTO);
        }
        let mut opened = RdmaCmChannel {
            handle: std::ptr::null_mut(),
            fd: -1,
        };
        // SAFETY: a table of this version has this function, which writes to `opened`.
        let errno = unsafe { (table.open)(&mut opened) };
        match (errno, NonNull::new(opened.handle)) {
            (0, Some(handle)) => Ok(Self {
                way: Way::Library {
                    table,
                    handle,
                    fd: opened.fd,
                    is_closed: AtomicBool::new(false),
                },
            }),
            (0, None) => Err(Errno::IO),
            (errno, _) => Err(Errno::from_raw_os_error(errno)),
        }
    }

    /// Whether it is the kernel's device rather than a library's.
    pub fn is_kernels(&self) -> bool {
        matches!(self.way, Way::Kernel(_))
    }

    /// Closes a library's channel even if others still use it. Their commands fail with `EBADF`, except that a thread
    /// waiting in [`Channel::get_event`] is not woken. A kernel channel closes when dropped.
    pub fn close(&self) {
        self.way.close();
    }

    /// Executes a command without an answer.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn command<C: Command>(&self, command: &C) -> Result<(), Errno> {
        // SAFETY: a `Command` has no addresses.
        unsafe { self.write(C::NUMBER, command, 0) }
    }

    /// Executes a command and returns its answer. Fields that an older kernel does not write keep their values from
    /// `prefilled`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn ask<Q: Question, A: Fields>(
        &self,
        number: u32,
        question: Q,
        prefilled: &A,
    ) -> Result<A, Errno> {
        const { assert!(A::SIZE <= BYTES_LONG) };
        match const { A::SIZE } {
            ..=BYTES_SHORT => self.ask_within::<Q, A, BYTES_SHORT>(number, question, prefilled),
            BYTES_TOO_LONG.. => self.ask_within::<Q, A, BYTES_LONG>(number, question, prefilled),
            _ => self.ask_within::<Q, A, BYTES_MAX>(number, question, prefilled),
        }
    }

    fn ask_within<Q: Question, A: Fields, const ROOM: usize>(
        &self,
        number: u32,
        mut question: Q,
        prefilled: &A,
    ) -> Result<A, Errno> {
        let mut answer = [0; ROOM];
        prefilled.put(&mut &mut answer[..]);
        question.set_response(answer.as_mut_ptr().expose_provenance() as u64);
        // SAFETY: the address is that of `answer`, which outlives the call and is at least as long as announced. The
        // kernel writes at most that many plain bytes.
        unsafe { self.write(number, &question, A::SIZE)? };
        Ok(A::from_bytes(&answer))
    }

    /// GET_EVENT; blocks unless the descriptor is non-blocking.
    ///
    /// # Errors
    /// `EAGAIN`; `EINTR`, because a thread that waits without a limit must notice signals.
    pub fn get_event(&self) -> Result<EventResp, Errno> {
        self.event_by(number::GET_EVENT)
    }

    /// As [`get_event`](Self::get_event), but of a library's device it never waits.
    ///
    /// # Errors
    /// `EAGAIN`; of the kernel's device as for `get_event`.
    pub fn take_event(&self) -> Result<EventResp, Errno> {
        self.event_by(match self.is_kernels() {
            true => number::GET_EVENT,
            false => number::TAKE_EVENT,
        })
    }

    fn event_by(&self, number: u32) -> Result<EventResp, Errno> {
        let mut answer = [0; EventResp::SIZE];
        let get = GetEvent {
            response: answer.as_mut_ptr().expose_provenance() as u64,
        };
        // SAFETY: as in `ask`.
        unsafe { self.write_once(number, &get, EventResp::SIZE)? };
        Ok(EventResp::from_bytes(&answer))
    }

    /// SET_OPTION with a value.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_option(&self, mut option: SetOption, value: &[u8]) -> Result<(), Errno> {
        option.optval = value.as_ptr().expose_provenance() as u64;
        option.optlen = value.len() as u32;
        // SAFETY: the address is that of `value`, and the kernel reads at most its length.
        unsafe { self.write(number::SET_OPTION, &option, 0) }
    }

    /// # Safety
    /// Every address in the command is valid for the kernel's use during the call.
    unsafe fn write<C: Fields>(
        &self,
        number: u32,
        command: &C,
        answer: usize,
    ) -> Result<(), Errno> {
        // SAFETY: passed on.
        rustix::io::retry_on_intr(|| unsafe { self.write_once(number, command, answer) })
    }

    /// # Safety
    /// As for `write`.
    unsafe fn write_once<C: Fields>(
        &self,
        number: u32,
        command: &C,
        answer: usize,
    ) -> Result<(), Errno> {
        const { assert!(Header::SIZE + C::SIZE <= BYTES_MAX) };
        // SAFETY: passed on.
        unsafe {
            match const { Header::SIZE + C::SIZE <= BYTES_SHORT } {
                true => self.write_within::<C, BYTES_SHORT>(number, command, answer),
                false => self.write_within::<C, BYTES_MAX>(number, command, answer),
            }
        }
    }

    /// # Safety
    /// As for `write`.
    unsafe fn write_within<C: Fields, const ROOM: usize>(
        &self,
        number: u32,
        command: &C,
        answer: usize,
    ) -> Result<(), Errno> {
        const LENGTH: &str = "commands and answers are shorter than 64 KiB";
        let header = Header {
            cmd: number,
            in_len: u16::try_from(C::SIZE).expect(LENGTH),
            out_len: u16::try_from(answer).expect(LENGTH),
        };
        let mut bytes = [0; ROOM];
        let mut out = &mut bytes[..];
        header.put(&mut out);
        command.put(&mut out);
        let (command, length) = (bytes.as_ptr().cast(), Header::SIZE + C::SIZE);
        let written = match &self.way {
            Way::Kernel(fd) => {
                let fd = fd.as_raw_fd();
                // Not rustix's write, which tells the compiler that the call does not change memory. Not libc's write
                // either, which is a cancellation point: a thread must not be cancelled among frames with destructors.
                // SAFETY: `bytes` are readable; the caller vouches for the addresses in them.
                let written = unsafe { libc::syscall(libc::SYS_write, fd, command, length) };
                usize::try_from(written).map_err(|_| last_errno())?
            }
            Way::Library { table, handle, .. } => {
                // SAFETY: as above; the library refuses a closed channel.
                let written = unsafe { (table.write)(handle.as_ptr(), command, length) };
                usize::try_from(written).map_err(|_| negative_errno(written))?
            }
        };
        // The kernel accepts a command whole or not at all.
        if written == length {
            Ok(())
        } else {
            Err(Errno::IO)
        }
    }
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Converts a negative number to an errno; `EIO` if it is not a valid errno.
fn negative_errno(number: isize) -> Errno {
    let errno = number
        .checked_neg()
        .and_then(|errno| i32::try_from(errno).ok());
    let errno = errno.filter(|errno| (1..4096).contains(errno));
    errno.map_or(Errno::IO, Errno::from_raw_os_error)
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.way {
            Way::Kernel(fd) => fd.as_fd(),
            // SAFETY: the library's descriptor is open as long as the channel.
            Way::Library { fd, .. } => unsafe { BorrowedFd::borrow_raw(*fd) },
        }
    }
}

impl Way {
    fn close(&self) {
        if let Self::Library {
            table,
            handle,
            is_closed,
            ..
        } = self
            && !is_closed.swap(true, Ordering::AcqRel)
        {
            // SAFETY: the channel is open.
            unsafe { (table.close)(handle.as_ptr()) };
        }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.close();
    }
}
