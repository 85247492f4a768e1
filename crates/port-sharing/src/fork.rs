//! Descriptors that a forked child does not keep.
//!
//! The group relies on the kernel closing a dead process's descriptors: then the name becomes free, the others read an
//! end of file, and the port is released with its last holder. A forked child would hold copies of all of them and make
//! a dead parent look alive. (`CLOEXEC` only covers exec.) So the child replaces every such descriptor at once by a
//! placeholder: the number stays in use, but the open file is released.
//!
//! A descriptor exists for a moment before it is registered here. [`Window`] closes that gap: a fork waits while a
//! window is open.
//! one is open, a fork waits.

#![allow(
    unsafe_code,
    reason = "pthread_atfork(3), and descriptors replaced in a child"
)]

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use once_cell::race::OnceBox;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Maximum number of descriptors of all groups of this process.
const DESCRIPTORS_MAX: usize = 4096;
/// Attempts before a fork proceeds although a window is open. Windows last microseconds. But a fork may come from a
/// signal handler that interrupted the thread with the window.
const FORK_SPINS_MAX: u32 = 1_000_000;

const FREE: RawFd = -1;

static DESCRIPTORS: [AtomicI32; DESCRIPTORS_MAX] =
    [const { AtomicI32::new(FREE) }; DESCRIPTORS_MAX];
/// Set by a thread with an open window, and by a fork.
static WINDOW: AtomicBool = AtomicBool::new(false);
/// Whether the current fork set [`WINDOW`].
static FORK_HAS_WINDOW: AtomicBool = AtomicBool::new(false);
/// Number of forks between this process and the first that used a group.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Replaces the descriptors in a child: an event counter that is never read.
static PLACEHOLDER: AtomicI32 = AtomicI32::new(FREE);

/// Delays forks while it lives. Open it only around calls that do not block.
#[derive(Debug)]
pub(super) struct Window(());

impl Window {
    /// Opens a window. The first call installs the fork handlers.
    pub(super) fn open() -> Result<Self, Errno> {
        // Two threads that race both install; the handlers bear that. A lock might stay locked in a child.
        static INSTALLED: OnceBox<Result<(), Errno>> = OnceBox::new();
        (*INSTALLED.get_or_init(|| Box::new(install())))?;
        Ok(Self::wait())
    }

    fn wait() -> Self {
        while !try_take_window() {
            std::thread::yield_now();
        }
        Self(())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        WINDOW.store(false, Ordering::Release);
    }
}

fn try_take_window() -> bool {
    WINDOW
        .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

fn install() -> Result<(), Errno> {
    // Never closed, because a child may be forked at any time.
    let placeholder = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?.into_raw_fd();
    PLACEHOLDER.store(placeholder, Ordering::Release);
    // SAFETY: the handlers are functions of this library, which is never unloaded. They only use atomics and system
    // calls that are safe between fork and exec.
    let status =
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    if status == 0 {
        Ok(())
    } else {
        Err(Errno::from_raw_os_error(status))
    }
}

extern "C" fn before_fork() {
    if FORK_HAS_WINDOW.load(Ordering::Relaxed) {
        return;
    }
    let taken = (0..FORK_SPINS_MAX).any(|_| {
        let taken = try_take_window();
        if !taken {
            std::hint::spin_loop();
        }
        taken
    });
    FORK_HAS_WINDOW.store(taken, Ordering::Relaxed);
}

extern "C" fn in_parent() {
    if FORK_HAS_WINDOW.swap(false, Ordering::Relaxed) {
        WINDOW.store(false, Ordering::Release);
    }
}

extern "C" fn in_child() {
    let placeholder = PLACEHOLDER.load(Ordering::Acquire);
    for descriptor in &DESCRIPTORS {
        let fd = descriptor.swap(FREE, Ordering::Relaxed);
        if fd != FREE {
            // SAFETY: `fd` is this process's copy of a descriptor that a `PrivateFd` owns, and `dup3` is
            // async-signal-safe. If it failed, the descriptor would stay, as it would without this call.
            let _ = unsafe { libc::dup3(placeholder, fd, libc::O_CLOEXEC) };
        }
    }
    GENERATION.fetch_add(1, Ordering::Relaxed);
    FORK_HAS_WINDOW.store(false, Ordering::Relaxed);
    // The child has only the forking thread; the thread that opened a window cannot close it.
    WINDOW.store(false, Ordering::Release);
}

/// An owned descriptor that a forked child does not keep.
#[derive(Debug)]
pub struct PrivateFd {
    fd: ManuallyDrop<OwnedFd>,
    place: usize,
    generation: u32,
}

impl PrivateFd {
    /// Registers a descriptor created while the window was open.
    ///
    /// # Errors
    /// `NFILE` if [`DESCRIPTORS_MAX`] are registered; `fd` is closed.
    pub(super) fn adopt(_window: &Window, fd: OwnedFd) -> Result<Self, Errno> {
        let raw = fd.as_raw_fd();
        let place = DESCRIPTORS.iter().position(|place| {
            place
                .compare_exchange(FREE, raw, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        });
        let place = place.ok_or(Errno::NFILE)?;
        let generation = GENERATION.load(Ordering::Relaxed);
        Ok(Self {
            fd: ManuallyDrop::new(fd),
            place,
            generation,
        })
    }

    /// Creates and registers a descriptor. `make` must not block.
    ///
    /// # Errors
    /// Errors of `make`; `NFILE` if too many are registered.
    pub fn make(make: impl FnOnce() -> Result<OwnedFd, Errno>) -> Result<Self, Errno> {
        let window = Window::open()?;
        Self::adopt(&window, make()?)
    }

    /// Releases the open file, as a forked child does. The number stays in use until this is dropped, because other
    /// threads may still use it.
    pub(super) fn vacate(&self) {
        let _window = Window::wait();
        if self.generation != GENERATION.load(Ordering::Relaxed) {
            return;
        }
        let placeholder = PLACEHOLDER.load(Ordering::Acquire);
        // SAFETY: this value owns the number, which stays open; `dup3` atomically changes the file it refers to. It can
        // fail only without a placeholder, and then no `self` exists.
        let _ = unsafe { libc::dup3(placeholder, self.fd.as_raw_fd(), libc::O_CLOEXEC) };
    }
}

impl AsFd for PrivateFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for PrivateFd {
    fn drop(&mut self) {
        let _window = Window::wait();
        if self.generation != GENERATION.load(Ordering::Relaxed) {
            // This is a child's copy. The application may have closed and reused the number, so leave it alone.
            return;
        }
        if let Some(place) = DESCRIPTORS.get(self.place) {
            place.store(FREE, Ordering::Relaxed);
        }
        // SAFETY: `fd` is not used again, because this drops its only owner.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `check` in a forked child and returns its result.
    fn in_a_forked_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child only makes system calls and ends with `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let code = i32::from(!check());
            // SAFETY: ends the child at once, without running the parent's exit handlers.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the child created above; `status` is valid for the write.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        status == 0
    }

    #[test]
    fn a_vacated_descriptor_closes_its_file_and_keeps_its_number() {
        let (kept, vacated) = pair();
        vacated.vacate();
        await_end(&kept);
        assert!(rustix::io::fcntl_getfd(&vacated).is_ok());
    }

    fn pair() -> (PrivateFd, PrivateFd) {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let window = Window::open().unwrap();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        (
            PrivateFd::adopt(&window, a).unwrap(),
            PrivateFd::adopt(&window, b).unwrap(),
        )
    }

    /// Reads the end of file. A child of any test drops its copy when it first runs.
    fn await_end(connection: &PrivateFd) {
        let started = std::time::Instant::now();
        loop {
            match rustix::net::recv(connection, &mut [0u8; 1], rustix::net::RecvFlags::empty()) {
                Ok((bytes, _)) => return assert_eq!(bytes, 0),
                Err(errno) => assert_eq!(errno, Errno::AGAIN),
            }
            assert!(
                started.elapsed() < CHILD_LIFE / 2,
                "no end of file while the child lives"
            );
            std::thread::yield_now();
        }
    }

    const CHILD_LIFE: std::time::Duration = std::time::Duration::from_secs(2);

    #[test]
    fn a_surviving_child_does_not_keep_a_connection_open() {
        let (ours, theirs) = pair();
        // SAFETY: the child only sleeps and ends with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            std::thread::sleep(CHILD_LIFE);
            // SAFETY: ends the child at once, without running the parent's exit handlers.
            unsafe { libc::_exit(0) };
        }
        drop(theirs);
        await_end(&ours);
        // SAFETY: waits for the child created above.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }

    #[test]
    fn descriptor_numbers_stay_used_in_the_child_and_drop_ignores_them() {
        let (ours, theirs) = pair();
        let raw = ours.as_fd().as_raw_fd();
        assert!(in_a_forked_child(move || {
            drop(ours);
            // SAFETY: queries the flags of a descriptor number.
            unsafe { libc::fcntl(raw, libc::F_GETFD) >= 0 }
        }));
        drop(theirs);
    }

    #[test]
    fn dropping_closes_in_the_process_that_made_it() {
        let (ours, theirs) = pair();
        drop(ours);
        await_end(&theirs);
    }
}
