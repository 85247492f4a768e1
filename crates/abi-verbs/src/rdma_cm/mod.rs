//! The rdma_cm device of the software devices, for our `librdmacm.so.1`: a table of functions that correspond to
//! open(2), write(2) and close(2) on the kernel's `/dev/infiniband/rdma_cm` ([`RdmaCmTable`]). So queue pairs and
//! connections use the same provider, which is in this library.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use portolan_threads::lock::Mutex;
use portolan_threads::{ProcessCell, fork};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use portolan_kernel::raw::{RdmaCmChannel, RdmaCmTable};
use portolan_rdma_cm_server::{Channel, Memory, RdmaCm};
use rustix::io::Errno;

use crate::guard::{Result, caught, errno_of};
use crate::provider::provider;

/// The table that `portolan_rdma_cm` returns.
static TABLE: RdmaCmTable = RdmaCmTable {
    version: RdmaCmTable::VERSION,
    open,
    write,
    close,
};

/// The table.
pub(crate) fn table() -> *const RdmaCmTable {
    &raw const TABLE
}

/// The device, created with the first channel.
///
/// # Errors
/// Errors of the provider.
fn device() -> Result<&'static Arc<RdmaCm>> {
    static DEVICE: ProcessCell<Arc<RdmaCm>> = ProcessCell::new();
    DEVICE.get_or_try_make(|| provider().map(RdmaCm::new))
}

/// # Safety
/// Null or good to write to.
unsafe extern "C" fn open(place: *mut RdmaCmChannel) -> c_int {
    let opened = caught(|| {
        let channel = device()?.open().map_err(|error| errno_of(&error))?;
        // SAFETY: `place` is null or whole.
        let place = unsafe { place.as_mut() }.ok_or(Errno::INVAL)?;
        place.fd = channel.as_fd().as_raw_fd();
        place.handle = std::ptr::without_provenance_mut(opened().add(channel));
        Ok(())
    });
    opened.map_or_else(Errno::raw_os_error, |()| 0)
}

/// # Safety
/// The command has that many bytes, and the addresses in it are valid for their purpose.
unsafe extern "C" fn write(handle: *mut c_void, command: *const c_void, length: usize) -> isize {
    let written = caught(|| {
        let channel = opened().get(handle.addr())?;
        if command.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: the command has `length` bytes, and is not null.
        let bytes = unsafe { std::slice::from_raw_parts(command.cast(), length) };
        channel.write(bytes, &Caller)
    });
    match written {
        Ok(length) => length.cast_signed(),
        Err(errno) => -(errno.raw_os_error() as isize),
    }
}

/// # Safety
/// None: a closed channel is recognized by its number.
unsafe extern "C" fn close(handle: *mut c_void) {
    let _ = caught(|| {
        // Destroy its ids now, because a thread may wait on it without a limit, as Debian's rping does.
        opened().remove(handle.addr())?.close();
        Ok(())
    });
}

/// Open channels by number. A thread that writes to one keeps it alive. A forked child has none of its parent's.
#[derive(Default)]
struct Open {
    channels: Mutex<HashMap<usize, Arc<Channel>>>,
}

fn opened() -> &'static Open {
    static OPEN: ProcessCell<Open> = ProcessCell::new();
    OPEN.get_or_make(Open::default)
}

impl Open {
    fn add(&self, channel: Arc<Channel>) -> usize {
        /// A child does not give its parent's numbers again.
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.channels.lock().insert(number, channel);
        number
    }

    /// # Errors
    /// `EBADF` if it is not open; `EOPNOTSUPP` in a forked child, whose parent's it may be.
    fn get(&self, number: usize) -> Result<Arc<Channel>> {
        let found = self.channels.lock().get(&number).cloned();
        found.ok_or_else(absent)
    }

    /// # Errors
    /// As for [`Open::get`].
    fn remove(&self, number: usize) -> Result<Arc<Channel>> {
        self.channels.lock().remove(&number).ok_or_else(absent)
    }
}

fn absent() -> Errno {
    match fork::is_child() {
        true => Errno::OPNOTSUPP,
        false => Errno::BADF,
    }
}

/// The memory of the command's writer, which is this process. Only null is recognized as invalid.
struct Caller;

impl Memory for Caller {
    fn read(&self, address: u64, length: usize) -> Result<Vec<u8>> {
        let from = pointer(address, length)?;
        let mut bytes = vec![0; length];
        // SAFETY: the caller of `write` promises that many bytes there.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), length) };
        Ok(bytes)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let to = pointer(address, bytes.len())?;
        // SAFETY: the caller of `write` promises room for that many bytes there.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }
}

fn pointer(address: u64, length: usize) -> Result<*mut u8> {
    let address = usize::try_from(address).map_err(|_| Errno::FAULT)?;
    match std::ptr::with_exposed_provenance_mut::<u8>(address) {
        null if null.is_null() && length > 0 => Err(Errno::FAULT),
        // Nothing is copied, but the pointer must not be null.
        _ if length == 0 => Ok(std::ptr::NonNull::dangling().as_ptr()),
        pointer => Ok(pointer),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use portolan_kernel::raw::{EventResp, Fields, GetEvent, Header, number};

    use super::*;

    fn opened_channel() -> RdmaCmChannel {
        let mut channel = RdmaCmChannel {
            handle: std::ptr::null_mut(),
            fd: -1,
        };
        // SAFETY: valid for writes.
        assert_eq!(unsafe { open(&mut channel) }, 0);
        channel
    }

    fn get_event(handle: usize) -> isize {
        let mut answer = EventResp::zeroed().to_bytes();
        let get = GetEvent {
            response: answer.as_mut_ptr().expose_provenance() as u64,
        };
        let header = Header {
            cmd: number::GET_EVENT,
            in_len: GetEvent::SIZE as u16,
            out_len: answer.len() as u16,
        };
        let bytes = [header.to_bytes(), get.to_bytes()].concat();
        let handle = std::ptr::without_provenance_mut(handle);
        // SAFETY: the length is right, and the answer has room.
        unsafe { write(handle, bytes.as_ptr().cast(), bytes.len()) }
    }

    #[test]
    fn a_closed_channel_is_not_a_descriptor() {
        let channel = opened_channel();
        // SAFETY: open; the second call is refused.
        unsafe {
            close(channel.handle);
            close(channel.handle);
        }
        let refused = -(Errno::BADF.raw_os_error() as isize);
        assert_eq!(get_event(channel.handle.addr()), refused);
        assert_eq!(get_event(0), refused);
    }

    #[test]
    fn a_thread_may_wait_on_a_channel_while_another_closes_it() {
        let channel = opened_channel();
        let number = channel.handle.addr();
        let kept = opened().get(number).unwrap();
        // It waits forever, as a thread of a program may; it ends with the process.
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            sender.send(rustix::thread::gettid()).unwrap();
            get_event(number)
        });
        let thread = receiver.recv().unwrap().as_raw_nonzero();
        let sleeps = || {
            let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
            stat.is_ok_and(|stat| stat.contains(") S "))
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        // The references of the table, this test and the sleeping thread.
        while Arc::strong_count(&kept) < 3 || !sleeps() {
            assert!(Instant::now() < deadline, "no thread waits");
            std::thread::yield_now();
        }
        // SAFETY: open.
        unsafe { close(channel.handle) };
        assert_eq!(Arc::strong_count(&kept), 2);
        assert_eq!(opened().get(number).err(), Some(Errno::BADF));
    }
}
