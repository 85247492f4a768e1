//! libc's own functions, which this library's exports hide.
//!
//! This crate calls them here by path. Code linked into the library (the standard library, streams, devices) calls them
//! by symbol name, and the linker redirects these symbols here as well (`build.rs`). So Portolan's own calls are never
//! intercepted.

#![allow(unsafe_code, reason = "functions of libc, found by name")]

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    FILE, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd, rlimit,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};
use portolan_abi_layout::jump;

/// Finds the next definition of a symbol after this library's.
fn find(name: &CStr) -> *mut c_void {
    // SAFETY: the name is NUL-terminated. RTLD_NEXT skips this library's definition.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    match found.is_null() {
        true => missing as *mut c_void,
        false => found,
    }
}

/// Replacement for a function that this libc lacks: fails with `ENOSYS`.
unsafe extern "C-unwind" fn missing() -> isize {
    // SAFETY: the address of this thread's `errno` is always valid.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

/// The function of a name, which is in `place` once it was found.
#[inline]
fn found(place: &AtomicPtr<c_void>, name: &'static str) -> *mut c_void {
    let known = place.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the macro ends each name with its only NUL.
    let found = find(unsafe { CStr::from_bytes_with_nul_unchecked(name.as_bytes()) });
    place.store(found, Ordering::Relaxed);
    found
}

macro_rules! real {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        /// Finds all functions, when the library is loaded: a signal handler may make the first call of one, and must not
        /// wait for the dynamic linker.
        pub(crate) fn find_all() {
            $( found(&$name::FOUND, $name::NAME); )*
        }

        $(
        mod $name {
            pub(super) static FOUND: super::AtomicPtr<super::c_void> =
                super::AtomicPtr::new(super::null_mut());
            pub(super) const NAME: &str = concat!(stringify!($name), "\0");
        }

        /// libc's function of this name.
        ///
        /// # Safety
        /// As for that function.
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),*) $(-> $result)? {
            // SAFETY: libc's function of this name has this type. Both supported calling conventions pass the variadic
            // argument of fcntl(2) and ioctl(2) like a fixed one.
            let function = unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) $(-> $result)?>(found(&$name::FOUND, $name::NAME))
            };
            // SAFETY: the caller's promise.
            unsafe { function($($arg),*) }
        }

        std::arch::global_asm!(
            concat!(".pushsection .text.__wrap_", stringify!($name), ",\"ax\",@progbits"),
            concat!(".globl __wrap_", stringify!($name)),
            concat!(".hidden __wrap_", stringify!($name)),
            concat!(".type __wrap_", stringify!($name), ", @function"),
            concat!("__wrap_", stringify!($name), ":"),
            jump!(),
            ".popsection",
            function = sym $name,
        );
    )* };
}

real! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn accept(fd: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn accept4(fd: c_int, addr: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    fn connect(fd: c_int, addr: *const sockaddr, length: socklen_t) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn closefrom(first: c_int);
    fn read(fd: c_int, into: *mut c_void, length: size_t) -> ssize_t;
    fn write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t;
    fn readv(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
    fn writev(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
    fn recv(fd: c_int, into: *mut c_void, length: size_t, flags: c_int) -> ssize_t;
    fn send(fd: c_int, from: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(fd: c_int, into: *mut c_void, length: size_t, flags: c_int, addr: *mut sockaddr, room: *mut socklen_t) -> ssize_t;
    fn sendto(fd: c_int, from: *const c_void, length: size_t, flags: c_int, addr: *const sockaddr, room: socklen_t) -> ssize_t;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    fn splice(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, length: size_t, flags: c_uint) -> ssize_t;
    fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout_ms: c_int) -> c_int;
    fn epoll_pwait(set: c_int, events: *mut epoll_event, most: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int;
    fn epoll_pwait2(set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(fd: c_int, new: c_int) -> c_int;
    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn ioctl(fd: c_int, request: usize, argument: usize) -> c_int;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    fn getsockname(fd: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn getpeername(fd: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fn freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE;
    fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE;
    fn execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int;
    fn execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fn fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fn getrlimit(resource: c_uint, limit: *mut rlimit) -> c_int;
    fn setrlimit(resource: c_uint, limit: *const rlimit) -> c_int;
    fn prlimit(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int;
    fn getrlimit64(resource: c_uint, limit: *mut rlimit) -> c_int;
    fn setrlimit64(resource: c_uint, limit: *const rlimit) -> c_int;
    fn prlimit64(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int;
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long;
    fn posix_spawn(process: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    fn posix_spawnp(process: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    fn __read_chk(fd: c_int, into: *mut c_void, length: size_t, room: size_t) -> ssize_t;
    fn __recv_chk(fd: c_int, into: *mut c_void, length: size_t, room: size_t, flags: c_int) -> ssize_t;
    fn __recvfrom_chk(fd: c_int, into: *mut c_void, length: size_t, room: size_t, flags: c_int, addr: *mut sockaddr, size: *mut socklen_t) -> ssize_t;
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int, room: size_t) -> c_int;
    fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int;
    fn __read(fd: c_int, into: *mut c_void, length: size_t) -> ssize_t;
    fn __write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t;
    fn __close(fd: c_int) -> c_int;
    fn __send(fd: c_int, from: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    fn __connect(fd: c_int, addr: *const sockaddr, length: socklen_t) -> c_int;
    fn __poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    fn __dup2(fd: c_int, new: c_int) -> c_int;
    fn __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
}
