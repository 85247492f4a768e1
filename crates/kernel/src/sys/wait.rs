//! Blocking waits in a program's call, like read(2): `EINTR` after a signal whose handler was installed without
//! `SA_RESTART`. A waiting thread may be cancelled (pthread_cancel(3)). It then unwinds like a panic that must not be
//! caught, through frames that must have nothing to drop.

#![allow(
    unsafe_code,
    reason = "libc's calls are cancellation points; rustix's are not"
)]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use rustix::io::Errno;

use crate::rdma_cm::abi::{EventResp, GetEvent, Header, number};
use crate::rdma_cm::fields::Fields;
use crate::sys::rdma_cm::last_errno;

// The libc crate declares these as functions that do not unwind.
unsafe extern "C-unwind" {
    fn recv(fd: c_int, place: *mut c_void, length: usize, flags: c_int) -> isize;
    fn sem_wait(semaphore: *mut libc::sem_t) -> c_int;
    fn write(fd: c_int, bytes: *const c_void, length: usize) -> isize;
    fn pthread_testcancel();
}

/// The thread may be cancelled here, as in [`readable`]: for a call that may end without a wait.
pub fn may_be_cancelled() {
    // SAFETY: it takes nothing.
    unsafe { pthread_testcancel() };
}

/// Waits without a timeout until a socket is readable, and reads nothing. The thread may be cancelled here: frames
/// above must have nothing to drop and must not catch panics.
///
/// # Errors
/// `EINTR`; `EAGAIN` if the descriptor is non-blocking; errors of recv(2).
pub fn readable(socket: RawFd) -> Result<(), Errno> {
    match peek(socket) {
        1.. => Ok(()),
        // The other end is closed, so nothing will ever arrive. Continue to wait, as on a kernel descriptor that is
        // closed during the call.
        0 => Err(signal()),
        _ => Err(last_errno()),
    }
}

/// As [`readable`], for a call on an object that another thread may destroy meanwhile.
///
/// # Errors
/// As for [`readable`]; `EINVAL` if the other end is closed.
pub fn readable_or_closed(socket: RawFd) -> Result<(), Errno> {
    match peek(socket) {
        1.. => Ok(()),
        0 => Err(Errno::INVAL),
        _ => Err(last_errno()),
    }
}

/// Waits for a signal whose handler was installed without `SA_RESTART`, which poll(2) and pause(2) do not regard. Returns
/// `EINTR`.
fn signal() -> Errno {
    let mut never_posted = MaybeUninit::<libc::sem_t>::uninit();
    // SAFETY: the semaphore is initialized before it is waited for, and outlives both calls.
    unsafe {
        libc::sem_init(never_posted.as_mut_ptr(), 0, 0);
        sem_wait(never_posted.as_mut_ptr());
    }
    last_errno()
}

/// As [`readable`], for a datagram socket: an empty datagram ends the wait, too. The thread may be cancelled here.
///
/// # Errors
/// As for [`readable`].
pub fn has_datagram(socket: RawFd) -> Result<(), Errno> {
    match peek(socket) {
        0.. => Ok(()),
        _ => Err(last_errno()),
    }
}

/// recv(2) of one byte, which stays.
fn peek(socket: RawFd) -> isize {
    let mut byte = 0u8;
    // SAFETY: `byte` has room for one byte and outlives the call.
    unsafe { recv(socket, (&raw mut byte).cast(), 1, libc::MSG_PEEK) }
}

const COMMAND: usize = Header::SIZE + GetEvent::SIZE;

/// GET_EVENT of the kernel's device; blocks unless the descriptor is non-blocking. The thread may be cancelled here, as
/// in [`readable`].
///
/// # Errors
/// `EINTR`, `EAGAIN`; errors of the descriptor.
pub fn wait_event(device: RawFd) -> Result<EventResp, Errno> {
    let mut answer = [0u8; EventResp::SIZE];
    let header = Header {
        cmd: number::GET_EVENT,
        in_len: GetEvent::SIZE as u16,
        out_len: EventResp::SIZE as u16,
    };
    let get = GetEvent {
        response: answer.as_mut_ptr().expose_provenance() as u64,
    };
    let mut command = [0u8; COMMAND];
    let mut place = &mut command[..];
    header.put(&mut place);
    get.put(&mut place);
    // SAFETY: the command is readable and contains the address and length of the answer; both outlive the call.
    let written = unsafe { write(device, command.as_ptr().cast(), COMMAND) };
    match usize::try_from(written) {
        Ok(COMMAND) => Ok(EventResp::from_bytes(&answer)),
        Ok(_) => Err(Errno::IO),
        Err(_) => Err(last_errno()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn an_empty_datagram_ends_the_wait_and_stays() {
        let (from, to) = UnixDatagram::pair().unwrap();
        from.send(&[]).unwrap();
        for _ in 0..2 {
            assert_eq!(has_datagram(to.as_raw_fd()), Ok(()));
        }
        assert_eq!(to.recv(&mut [0; 1]).unwrap(), 0);
    }
}
