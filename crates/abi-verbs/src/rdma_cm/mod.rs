//! The rdma_cm device of the software devices, for our `librdmacm.so.1`: a table of functions that stand for open(2),
//! write(2) and close(2) of the kernel's `/dev/infiniband/rdma_cm` ([`RdmaCmTable`]). Queue pairs and connections so
//! are of one provider, which this library has.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use portolan_kernel::raw::{RdmaCmChannel, RdmaCmTable};
use portolan_ucma::{Channel, Memory, RdmaCm};
use rustix::io::Errno;

use crate::guard::{Result, errno_of};
use crate::provider::provider;

/// What `portolan_rdma_cm` gives.
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

/// The device, made with the first channel.
///
/// # Errors
/// Those of the provider, which is another process's after a fork.
fn device() -> Result<&'static Arc<RdmaCm>> {
    static DEVICE: OnceLock<Arc<RdmaCm>> = OnceLock::new();
    let provider = provider()?;
    Ok(DEVICE.get_or_init(|| RdmaCm::new(provider)))
}

/// # Safety
/// Null or good to write to.
unsafe extern "C" fn open(place: *mut RdmaCmChannel) -> c_int {
    let opened = caught(|| {
        let channel = device()?.open().map_err(|error| errno_of(&error))?;
        // SAFETY: as the caller promises.
        let place = unsafe { place.as_mut() }.ok_or(Errno::INVAL)?;
        place.fd = channel.as_fd().as_raw_fd();
        place.handle = Arc::into_raw(channel).cast_mut().cast();
        Ok(())
    });
    opened.map_or_else(Errno::raw_os_error, |()| 0)
}

/// # Safety
/// The channel is open; the command has as many bytes, and addresses within it are good for what it says.
unsafe extern "C" fn write(handle: *mut c_void, command: *const c_void, length: usize) -> isize {
    let written = caught(|| {
        // SAFETY: `open` made it, and it is not closed yet.
        let channel = unsafe { &*handle.cast_const().cast::<Channel>() };
        if command.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: as the caller promises.
        let bytes = unsafe { std::slice::from_raw_parts(command.cast(), length) };
        channel.write(bytes, &Caller)
    });
    match written {
        Ok(length) => length.cast_signed(),
        Err(errno) => -(errno.raw_os_error() as isize),
    }
}

/// # Safety
/// The channel is open, and nobody uses it any more.
unsafe extern "C" fn close(handle: *mut c_void) {
    let _ = caught(|| {
        // SAFETY: `open` gave it away, and takes it back once.
        drop(unsafe { Arc::from_raw(handle.cast_const().cast::<Channel>()) });
        Ok(())
    });
}

/// A defect of the library's own is told as `EIO`; its text has been printed.
fn caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Errno::IO))
}

/// The memory of whoever writes a command: this process's. Null is the only address that is seen to be wrong.
struct Caller;

impl Memory for Caller {
    fn read(&self, address: u64, length: usize) -> Result<Vec<u8>> {
        let from = pointer(address, length)?;
        let mut bytes = vec![0; length];
        // SAFETY: the caller of `write` promises as many bytes there.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), length) };
        Ok(bytes)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let to = pointer(address, bytes.len())?;
        // SAFETY: the caller of `write` promises room for as many bytes there.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }
}

fn pointer(address: u64, length: usize) -> Result<*mut u8> {
    let address = usize::try_from(address).map_err(|_| Errno::FAULT)?;
    match std::ptr::with_exposed_provenance_mut::<u8>(address) {
        null if null.is_null() && length > 0 => Err(Errno::FAULT),
        // Nothing is copied; the place for it may not be null.
        _ if length == 0 => Ok(std::ptr::NonNull::dangling().as_ptr()),
        pointer => Ok(pointer),
    }
}
