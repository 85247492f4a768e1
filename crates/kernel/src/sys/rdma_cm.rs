//! Commands on an open rdma_cm device: written to it as bytes, with the address where the kernel is
//! to put its answer among them. The device may be a library's instead of the kernel's: see [`RdmaCmTable`].

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

/// Room for any command with its header, and for any answer but one.
const BYTES_MAX: usize = 512;
/// Room for the answer that is longer: records of services.
const BYTES_LONG: usize = 1088;
const BYTES_TOO_LONG: usize = BYTES_MAX + 1;
/// Room for most of them. Each is zeroed first, so short ones take the smaller buffer.
const BYTES_SHORT: usize = 160;

/// A command without addresses in it.
pub trait Command: Fields {
    /// Its number in `enum rdma_ucm_cmd`.
    const NUMBER: u32;
}

/// A command that the kernel answers.
pub trait Question: Fields {
    /// Names the address where the kernel is to write.
    fn set_response(&mut self, address: u64);
}

/// The rdma_cm device of a library, as the library hands it out: Portolan's `libibverbs.so.1` has one for its software
/// devices. Commands are written to it by these functions as they are to the kernel's device by open(2), write(2)
/// and close(2), in the same bytes.
#[derive(Debug)]
#[repr(C)]
pub struct RdmaCmTable {
    /// Of this table: [`RdmaCmTable::VERSION`].
    pub version: u32,
    /// Opens an event channel: its place is filled in, and 0 given, or else an errno.
    pub open: unsafe extern "C" fn(channel: *mut RdmaCmChannel) -> c_int,
    /// Carries out a command: the number of its bytes, or a negative errno. Addresses within it are the caller's.
    pub write:
        unsafe extern "C" fn(handle: *mut c_void, command: *const c_void, length: usize) -> isize,
    /// Closes a channel, and with it its descriptor, which must not be closed otherwise; its ids are destroyed. Who
    /// waits in it is not woken; commands are refused with `EBADF` from now on.
    pub close: unsafe extern "C" fn(handle: *mut c_void),
}

/// An event channel of a library's device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RdmaCmChannel {
    /// The library's.
    pub handle: *mut c_void,
    /// A socket, readable while an event waits, and non-blocking if its owner makes it so.
    pub fd: c_int,
}

impl RdmaCmTable {
    /// The version that is spoken here.
    pub const VERSION: u32 = 2;
    /// What a library exports: a function without arguments that gives the table, which stays as long as the
    /// library.
    pub const SYMBOL: &str = "portolan_rdma_cm";
    /// The symbol's version.
    pub const SYMBOL_VERSION: &str = "PORTOLAN_1";
}

/// An open rdma_cm device: an event channel.
#[derive(Debug)]
pub struct Channel {
    way: Way,
}

/// How commands get there.
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

// SAFETY: a library's channel may be used by any thread, as the kernel's may: it is part of what the table promises.
unsafe impl Send for Way {}
// SAFETY: as above.
unsafe impl Sync for Way {}

impl Channel {
    /// Of a descriptor of the device.
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
        // SAFETY: a table of this version has this function, which writes to the place.
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

    /// Whether it is the kernel's device, and not a library's.
    pub fn is_kernels(&self) -> bool {
        matches!(self.way, Way::Kernel(_))
    }

    /// Closes a library's channel though others may still use it: they are refused with `EBADF`, except a thread
    /// that waits in [`Channel::get_event`], which is not woken. The kernel's is closed when it is dropped.
    pub fn close(&self) {
        self.way.close();
    }

    /// Carries out a command that has no answer.
    ///
    /// # Errors
    /// The kernel's.
    pub fn command<C: Command>(&self, command: &C) -> Result<(), Errno> {
        // SAFETY: a `Command` has no addresses.
        unsafe { self.write(C::NUMBER, command, 0) }
    }

    /// Carries out a command and gives its answer. What the kernel does not write, because it is older
    /// than the field, stays as `prefilled` has it.
    ///
    /// # Errors
    /// The kernel's.
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
        // SAFETY: the address is that of `answer`, which is at least as long as announced and outlives the
        // call; the kernel writes plain bytes to it, at most as many as announced.
        unsafe { self.write(number, &question, A::SIZE)? };
        Ok(A::from_bytes(&answer))
    }

    /// GET_EVENT, which waits unless the descriptor is non-blocking.
    ///
    /// # Errors
    /// `EAGAIN`, and `EINTR`: a thread that waits without limit must hear of signals.
    pub fn get_event(&self) -> Result<EventResp, Errno> {
        let mut answer = [0; EventResp::SIZE];
        let get = GetEvent {
            response: answer.as_mut_ptr().expose_provenance() as u64,
        };
        // SAFETY: as in `ask`.
        unsafe { self.write_once(number::GET_EVENT, &get, EventResp::SIZE)? };
        Ok(EventResp::from_bytes(&answer))
    }

    /// SET_OPTION with a value.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_option(&self, mut option: SetOption, value: &[u8]) -> Result<(), Errno> {
        option.optval = value.as_ptr().expose_provenance() as u64;
        option.optlen = value.len() as u32;
        // SAFETY: the address is that of `value`, from which the kernel reads as many bytes as it has.
        unsafe { self.write(number::SET_OPTION, &option, 0) }
    }

    /// # Safety
    /// Every address within the command is good for what the kernel does with it during the call.
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
                // Not by the write of rustix, which promises the compiler that the call changes no memory; nor by
                // libc's, where a thread may be cancelled, which must not be among frames that have something to drop.
                // SAFETY: `bytes` are readable; of the addresses in them see above.
                let written = unsafe { libc::syscall(libc::SYS_write, fd, command, length) };
                usize::try_from(written).map_err(|_| last_errno())?
            }
            Way::Library { table, handle, .. } => {
                // SAFETY: as above; a closed channel is refused.
                let written = unsafe { (table.write)(handle.as_ptr(), command, length) };
                usize::try_from(written).map_err(|_| negative_errno(written))?
            }
        };
        // The kernel takes a command whole or not at all.
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

/// A negative number is an errno; one that can be none is `EIO`.
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
            // SAFETY: the library's descriptor is open for as long as the channel.
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
            // SAFETY: it is open.
            unsafe { (table.close)(handle.as_ptr()) };
        }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.close();
    }
}
