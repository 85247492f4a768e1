//! The functions that replace libc's. Each looks up the descriptor first. Most descriptors have no stream, and their
//! calls go to libc.

#![allow(unsafe_code, reason = "pointers of the program, and calls of libc")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "one reason for all: the arguments are the program's, which vouches for them as the function's manual page says, \
              and go on unchanged to libc's function of that name or to one with the same demands"
)]

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use libc::{
    FILE, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, off64_t, pid_t, pollfd,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};
use portolan::Stream;
use portolan_abi_layout::exports;
use portolan_abi_layout::guard::{failed, null};
use rustix::io::Errno;
use socket2::SockAddr;

use crate::calls::{
    SOCKET_BYTES_MAX, accept_from, carried, closed, controlled, file, ms, number, poll_all,
    read_into, receive_from, select_all, start_connect, time, vector, wait_set, write_from,
};
use crate::descriptors::{
    self, control, duplicate, duplicate_to, has_object, lookup, release, release_range, used,
};
use crate::epoll;
use crate::settings::settings;
use crate::wait::timespec_of;
use crate::{copy, listen, messages, names, options, real, stdio};

unsafe extern "C" fn file_read(cookie: *mut c_void, into: *mut c_char, length: size_t) -> ssize_t {
    // SAFETY: the file's buffer.
    unsafe { read(stdio::number(cookie), into.cast(), length) }
}

unsafe extern "C" fn file_write(
    cookie: *mut c_void,
    from: *const c_char,
    length: size_t,
) -> ssize_t {
    let mut done = 0;
    // glibc takes a short write for an error, and drops what is buffered.
    while done < length {
        // SAFETY: the file's buffer.
        match unsafe { write(stdio::number(cookie), from.add(done).cast(), length - done) } {
            written @ 1.. => done += written as size_t,
            // A file's write fails with less, never with -1 (fopencookie(3)).
            _ => break,
        }
    }
    done as ssize_t
}

/// As for every socket.
unsafe extern "C" fn file_seek(_: *mut c_void, _: *mut off64_t, _: c_int) -> c_int {
    failed(Errno::SPIPE)
}

unsafe extern "C" fn file_close(cookie: *mut c_void) -> c_int {
    stdio::closing(stdio::number(cookie));
    // SAFETY: the file's descriptor.
    unsafe { closed(stdio::number(cookie)) }
}

/// An address of the stream, in the family of the program's socket, or of the kernel's socket.
unsafe fn name_of(
    fd: c_int,
    of_stream: impl FnOnce(&Stream) -> io::Result<SocketAddr>,
    of_kernel: names::Ask,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    let own = used(fd).and_then(|socket| {
        let address = of_stream(socket.stream()?).ok()?;
        Some(SockAddr::from(names::of_family(address, socket.family)))
    });
    match own {
        // SAFETY: the program passes what libc's function takes.
        Some(own) => number(|| unsafe { names::write(&own, addr, length) }.map(|()| 0)),
        None => unsafe { names::of_kernel(of_kernel, fd, addr, length) },
    }
}

/// Functions whose calls on a stream are carried out here: `None` leaves the call to libc's function.
macro_rules! replaces {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty = $own:expr;)*) => {
        exports! { $(
            fn $name($($arg: $type),*) -> $result {
                // SAFETY: the program passes what libc's function takes.
                match unsafe { $own } {
                    Some(answer) => answer,
                    None => unsafe { real::$name($($arg),*) },
                }
            }
        )* }
    };
}

replaces! {
    fn accept(fd: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int
        = accept_from(fd, addr, length, 0);
    fn accept4(fd: c_int, addr: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int
        = accept_from(fd, addr, length, flags);
    fn connect(fd: c_int, addr: *const sockaddr, length: socklen_t) -> c_int
        = start_connect(fd, addr, length);
    fn read(fd: c_int, into: *mut c_void, length: size_t) -> ssize_t
        = read_into(fd, into, length, 0);
    fn __read_chk(fd: c_int, into: *mut c_void, length: size_t, room: size_t) -> ssize_t
        = read_into(fd, into, length.min(room), 0);
    fn write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t
        = write_from(fd, from, length, 0);
    fn readv(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t
        = vector(fd, pieces, count, false);
    fn writev(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t
        = vector(fd, pieces, count, true);
    fn recv(fd: c_int, into: *mut c_void, length: size_t, flags: c_int) -> ssize_t
        = read_into(fd, into, length.min(SOCKET_BYTES_MAX), flags);
    fn __recv_chk(fd: c_int, into: *mut c_void, length: size_t, room: size_t, flags: c_int) -> ssize_t
        = read_into(fd, into, length.min(room).min(SOCKET_BYTES_MAX), flags);
    fn recvfrom(fd: c_int, into: *mut c_void, length: size_t, flags: c_int, addr: *mut sockaddr, size: *mut socklen_t) -> ssize_t
        = receive_from(fd, into, length.min(SOCKET_BYTES_MAX), flags, (addr, size));
    fn __recvfrom_chk(
        fd: c_int,
        into: *mut c_void,
        length: size_t,
        room: size_t,
        flags: c_int,
        addr: *mut sockaddr,
        size: *mut socklen_t
    ) -> ssize_t
        = receive_from(fd, into, length.min(room).min(SOCKET_BYTES_MAX), flags, (addr, size));
    fn send(fd: c_int, from: *const c_void, length: size_t, flags: c_int) -> ssize_t
        = write_from(fd, from, length.min(SOCKET_BYTES_MAX), flags);
    fn sendto(fd: c_int, from: *const c_void, length: size_t, flags: c_int, addr: *const sockaddr, size: socklen_t) -> ssize_t
        = write_from(fd, from, length.min(SOCKET_BYTES_MAX), flags);
    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t
        = file(out, from, offset, count);
    fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int
        = poll_all(fds, count, || Ok(ms(timeout_ms)), std::ptr::null());
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int, room: size_t) -> c_int
        = poll_all(fds, count, || Ok(ms(timeout_ms)), std::ptr::null());
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int
        = poll_all(fds, count, || time(timeout), mask);
    fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int
        = poll_all(fds, count, || time(timeout), mask);
    fn pselect(
        count: c_int,
        reads: *mut fd_set,
        writes: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int
        = select_all(count, [reads, writes, except], || time(timeout), mask);
    fn epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout_ms: c_int) -> c_int
        = wait_set(set, events, most, || Ok(ms(timeout_ms)), std::ptr::null(), || real::epoll_wait(set, events, most, timeout_ms));
    fn epoll_pwait(set: c_int, events: *mut epoll_event, most: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int
        = wait_set(set, events, most, || Ok(ms(timeout_ms)), mask, || real::epoll_pwait(set, events, most, timeout_ms, mask));
    fn epoll_pwait2(set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int
        = wait_set(set, events, most, || time(timeout), mask, || real::epoll_pwait2(set, events, most, timeout, mask));
}

exports! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        descriptors::create(domain, kind, protocol)
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int {
        match used(fd) {
            Some(socket) => listen::listen(&socket, fd, backlog),
            // SAFETY: no pointers.
            None => unsafe { real::listen(fd, backlog) },
        }
    }

    fn __connect(fd: c_int, addr: *const sockaddr, length: socklen_t) -> c_int {
        // SAFETY: the program passes what libc's function takes.
        unsafe { connect(fd, addr, length) }
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        let socket = used(fd);
        if let Some(answer) = socket.as_ref().and_then(|socket| listen::shutdown(socket, fd, how)) {
            return answer;
        }
        let Some(stream) = socket.as_ref().and_then(|socket| socket.stream()) else {
            // SAFETY: no pointers.
            return unsafe { real::shutdown(fd, how) };
        };
        number(|| {
            let how = match how {
                libc::SHUT_RD => Shutdown::Read,
                libc::SHUT_WR => Shutdown::Write,
                libc::SHUT_RDWR => Shutdown::Both,
                _ => return Err(Errno::INVAL),
            };
            let ended = stream.shutdown(how).map(|()| 0).map_err(|_| Errno::NOTCONN);
            if how != Shutdown::Read && let Some(socket) = &socket {
                socket.note_write_over();
            }
            ended
        })
    }

    fn close(fd: c_int) -> c_int {
        // SAFETY: no pointers.
        unsafe { closed(fd) }
    }

    fn __close(fd: c_int) -> c_int {
        // SAFETY: no pointers.
        unsafe { closed(fd) }
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
            release_range(first, last);
        }
        // SAFETY: no pointers.
        unsafe { real::close_range(first, last, flags) }
    }

    fn closefrom(first: c_int) {
        release_range(c_uint::try_from(first).unwrap_or(0), c_uint::MAX);
        // SAFETY: no pointers.
        unsafe { real::closefrom(first) };
    }

    fn __read(fd: c_int, into: *mut c_void, length: size_t) -> ssize_t {
        // SAFETY: the program passes what libc's function takes.
        unsafe { read(fd, into, length) }
    }

    fn __write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t {
        // SAFETY: the program passes what libc's function takes.
        unsafe { write(fd, from, length) }
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        // SAFETY: the program passes what libc's function takes.
        let carried = used(fd)
            .and_then(|socket| carried(|| unsafe { messages::receive_message(fd, &socket, message, flags) }));
        match carried {
            Some(received) => received,
            // SAFETY: the program passes what libc's function takes.
            None => unsafe { real::recvmsg(fd, message, flags) },
        }
    }

    fn recvmmsg(fd: c_int, vector: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        if lookup(fd).is_none() || count == 0 {
            // SAFETY: the program passes what libc's function takes.
            return unsafe { real::recvmmsg(fd, vector, count, flags, timeout) };
        }
        // A stream has no message boundaries, so the first message takes all available data.
        // SAFETY: `vector` has a first message, because `count` is not 0.
        let received = unsafe { recvmsg(fd, &raw mut (*vector).msg_hdr, flags) };
        match received {
            0.. => {
                // SAFETY: `vector` has a first message, because `count` is not 0.
                unsafe { (*vector).msg_len = received as c_uint };
                1
            }
            _ => -1,
        }
    }

    fn __send(fd: c_int, from: *const c_void, length: size_t, flags: c_int) -> ssize_t {
        // SAFETY: the program passes what libc's function takes.
        unsafe { send(fd, from, length, flags) }
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        let carried = used(fd)
            // SAFETY: the program passes what libc's function takes.
            .and_then(|socket| carried(|| unsafe { messages::send_message(fd, &socket, message, flags) }));
        match carried {
            Some(sent) => sent,
            // SAFETY: the program passes what libc's function takes.
            None => unsafe {
                messages::give_streams(message);
                real::sendmsg(fd, message, flags)
            },
        }
    }

    fn sendmmsg(fd: c_int, vector: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        if lookup(fd).is_none() {
            // SAFETY: the program passes what libc's function takes. `vector` has `count` messages.
            return unsafe {
                if !vector.is_null() {
                    (0..count as usize).for_each(|at| messages::give_streams(&raw const (*vector.add(at)).msg_hdr));
                }
                real::sendmmsg(fd, vector, count, flags)
            };
        }
        for at in 0..count {
            // SAFETY: `vector` has `count` messages.
            let message = unsafe { &mut *vector.add(at as usize) };
            // SAFETY: `message` is one of them.
            let sent = unsafe { sendmsg(fd, &message.msg_hdr, flags) };
            match sent {
                0.. => message.msg_len = sent as c_uint,
                _ if at > 0 => return at as c_int,
                _ => return -1,
            }
            // The rest of the message is the program's to send, before the next one.
            // SAFETY: `message` was sent.
            if !unsafe { messages::is_whole(&message.msg_hdr, sent as usize) } {
                return at as c_int + 1;
            }
        }
        count as c_int
    }

    fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        // SAFETY: the program passes what libc's function takes.
        unsafe { sendfile(out, from, offset, count) }
    }

    fn splice(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, length: size_t, flags: c_uint) -> ssize_t {
        let sink = used(to).and_then(|sink| carried(|| copy::to_stream(from, &sink, length, flags)));
        let moved = sink.or_else(|| {
            used(from).and_then(|source| carried(|| copy::from_stream(&source, to, length, flags)))
        });
        match moved {
            Some(moved) => moved,
            // SAFETY: the program passes what libc's function takes.
            None => unsafe { real::splice(from, from_offset, to, to_offset, length, flags) },
        }
    }

    fn __poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
        // SAFETY: null, or the program's timeout.
        unsafe { poll(fds, count, timeout_ms) }
    }

    fn select(count: c_int, reads: *mut fd_set, writes: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int {
        let began = std::time::Instant::now();
        let of_timeval = || {
            // SAFETY: the program passes what libc's function takes.
            let Some(given) = (unsafe { timeout.as_ref() }) else {
                return Ok(None);
            };
            let us = given.tv_sec.saturating_mul(1_000_000).saturating_add(given.tv_usec);
            u64::try_from(us).map(|us| Some(Duration::from_micros(us))).map_err(|_| Errno::INVAL)
        };
        // SAFETY: null, or the program's timeout.
        match unsafe { select_all(count, [reads, writes, except], of_timeval, std::ptr::null()) } {
            Some(found) => {
                // Linux writes the remaining time.
                // SAFETY: the program passes what libc's function takes.
                if let (Ok(Some(given)), Some(place)) = (of_timeval(), unsafe { timeout.as_mut() }) {
                    let left = timespec_of(given.saturating_sub(began.elapsed()));
                    (place.tv_sec, place.tv_usec) = (left.tv_sec, left.tv_nsec / 1000);
                }
                found
            }
            // SAFETY: the program passes what libc's function takes.
            None => unsafe { real::select(count, reads, writes, except, timeout) },
        }
    }

    fn epoll_create(size: c_int) -> c_int {
        // SAFETY: no pointers.
        descriptors::created_instance(unsafe { real::epoll_create(size) })
    }

    fn epoll_create1(flags: c_int) -> c_int {
        // SAFETY: no pointers.
        descriptors::created_instance(unsafe { real::epoll_create1(flags) })
    }

    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        let Some(socket) = used(fd) else {
            epoll::note_member(fd);
            // SAFETY: the program passes what libc's function takes.
            return unsafe { real::epoll_ctl(set, operation, fd, event) };
        };
        number(|| {
            // SAFETY: the program passes what libc's function takes.
            let event = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
            epoll::control(set, operation, fd, &socket, event).map(|()| 0)
        })
    }

    fn dup(fd: c_int) -> c_int {
        // SAFETY: the program passes what libc's function takes.
        let new = unsafe { real::dup(fd) };
        if has_object(fd) {
            duplicate(fd, new);
        }
        new
    }

    fn dup2(fd: c_int, new: c_int) -> c_int {
        // SAFETY: the program passes what libc's function takes.
        duplicate_to(fd, new, || unsafe { real::dup2(fd, new) })
    }

    fn __dup2(fd: c_int, new: c_int) -> c_int {
        // SAFETY: the program passes what libc's function takes.
        duplicate_to(fd, new, || unsafe { real::dup2(fd, new) })
    }

    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
        // SAFETY: the program passes what libc's function takes.
        duplicate_to(fd, new, || unsafe { real::dup3(fd, new, flags) })
    }

    // In C these are variadic. Both supported calling conventions pass the variadic argument like a fixed one.
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        // SAFETY: the program passes what libc's function takes.
        unsafe { controlled(fd, command, argument) }
    }

    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        // SAFETY: the program passes what libc's function takes.
        unsafe { controlled(fd, command, argument) }
    }

    fn __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        // SAFETY: the program passes what libc's function takes.
        unsafe { controlled(fd, command, argument) }
    }

    fn ioctl(fd: c_int, request: usize, argument: usize) -> c_int {
        // SAFETY: the program passes what libc's function takes.
        let own = used(fd).and_then(|socket| unsafe { options::control(&socket, fd, request, argument) });
        match own {
            Some(answer) => answer,
            // SAFETY: the program passes what libc's function takes.
            None => unsafe { real::ioctl(fd, request, argument) },
        }
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int {
        match used(fd) {
            // SAFETY: the program passes what libc's function takes.
            Some(socket) => unsafe { options::get(&socket, fd, level, name, value, length) },
            None => unsafe { options::get_of_kernel(fd, level, name, value, length) },
        }
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int {
        match used(fd) {
            // SAFETY: the program passes what libc's function takes.
            Some(socket) => unsafe { options::set(&socket, fd, level, name, value, length) },
            None => unsafe { options::set_of_kernel(fd, level, name, value, length) },
        }
    }

    fn getsockname(fd: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int {
        // SAFETY: the program passes what libc's function takes.
        unsafe { name_of(fd, Stream::local_addr, real::getsockname, addr, length) }
    }

    fn getpeername(fd: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int {
        // SAFETY: the program passes what libc's function takes.
        unsafe { name_of(fd, Stream::peer_addr, real::getpeername, addr, length) }
    }

    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        if lookup(fd).is_none() {
            // SAFETY: the program passes what libc's function takes.
            return unsafe { real::fdopen(fd, mode) };
        }
        let calls = stdio::Calls {
            read: file_read,
            write: file_write,
            seek: file_seek,
            close: file_close,
        };
        // SAFETY: the program passes what libc's function takes.
        unsafe { stdio::open(fd, mode, calls) }
    }

    // glibc's function crashes with a file made by fopencookie(3).
    fn freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
        // SAFETY: the program passes what libc's function takes. The file is closed in any case.
        unsafe {
            match stdio::is_own(file) {
                true => {
                    libc::fclose(file);
                    null(Errno::OPNOTSUPP)
                }
                false => real::freopen(path, mode, file),
            }
        }
    }

    fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
        // SAFETY: the program passes what libc's function takes.
        unsafe { freopen(path, mode, file) }
    }

    // Variadic in C, as fcntl is. libuv closes descriptors this way, because libc's close is a cancellation point. io_uring
    // would carry out calls on descriptors that are streams, unseen: libuv adds sockets to its epoll instance that way.
    // Programs that find no io_uring make the calls themselves.
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        // SAFETY: the program passes what libc's function takes.
        let call = || unsafe { real::syscall(number, a, b, c, d, e, f) };
        // Descriptors and flags, and so are the results.
        let call_for_number = || call() as c_int;
        let (first, second) = (a as c_int, b as c_int);
        match number {
            libc::SYS_io_uring_setup if settings().takes_any() => failed(Errno::NOSYS).into(),
            libc::SYS_close => {
                release(first);
                call()
            }
            libc::SYS_close_range if c as c_uint & libc::CLOSE_RANGE_CLOEXEC == 0 => {
                release_range(a as c_uint, b as c_uint);
                call()
            }
            libc::SYS_dup => {
                let new = call_for_number();
                if has_object(first) {
                    duplicate(first, new);
                }
                new.into()
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => duplicate_to(first, second, call_for_number).into(),
            libc::SYS_dup3 => duplicate_to(first, second, call_for_number).into(),
            libc::SYS_fcntl if has_object(first) => control(first, second, c, call_for_number).into(),
            libc::SYS_accept | libc::SYS_accept4 => {
                let flags = if number == libc::SYS_accept { 0 } else { d as c_int };
                let (address, length) = (b as *mut sockaddr, c as *mut socklen_t);
                // SAFETY: the program passes what libc's function takes.
                let accepted = unsafe { accept_from(first, address, length, flags) };
                accepted.map_or_else(call, c_long::from)
            }
            _ => call(),
        }
    }

    fn posix_spawn(process: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int {
        descriptors::before_spawn(!actions.is_null());
        // SAFETY: the program passes what libc's function takes.
        unsafe { real::posix_spawn(process, path, actions, attributes, arguments, environment) }
    }

    fn posix_spawnp(process: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int {
        descriptors::before_spawn(!actions.is_null());
        // SAFETY: the program passes what libc's function takes.
        unsafe { real::posix_spawnp(process, file, actions, attributes, arguments, environment) }
    }

    fn execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        descriptors::before_exec();
        // SAFETY: the program passes what libc's function takes.
        unsafe { real::execve(path, arguments, environment) }
    }

    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int {
        descriptors::before_exec();
        // SAFETY: the program passes what libc's function takes.
        unsafe { real::execv(path, arguments) }
    }

    fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
        descriptors::before_exec();
        // SAFETY: the program passes what libc's function takes.
        unsafe { real::execvp(file, arguments) }
    }

    fn execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        descriptors::before_exec();
        // SAFETY: the program passes what libc's function takes.
        unsafe { real::execvpe(file, arguments, environment) }
    }

    fn fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        descriptors::before_exec();
        // SAFETY: the program passes what libc's function takes.
        unsafe { real::fexecve(fd, arguments, environment) }
    }
}
