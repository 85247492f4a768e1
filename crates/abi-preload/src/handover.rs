//! Gives streams to other processes. A stream works only in its own process: its device does not survive a fork or an
//! exec.
//!
//! Before a fork, each stream's descriptor is replaced by one end of a socket pair. This process continues to use the
//! stream. When a child uses the descriptor, or this process closes it while a child still has it, [`crate::pump`]
//! starts to copy data between the stream and the pair's other end. So children and the programs they run have an
//! ordinary socket.

#![allow(
    unsafe_code,
    reason = "calls of libc, and what is called around a fork"
)]

use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use portolan::Stream;
use portolan::stream::Direction;
use portolan_port_sharing::room::aside;
use portolan_threads::{ProcessCell, with_signals_blocked};
use rustix::fs::FileType;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::listen::release_unused;
use crate::socket::{Kind, SOCKETS, Socket};
use crate::{names, real};

/// The write end of the pipe through which children ask for streams, or -1.
static QUESTIONS: AtomicI32 = AtomicI32::new(-1);
/// The pipe's inode, 0 before: a child may have closed the descriptor and have another file there.
static QUESTIONS_FILE: AtomicU64 = AtomicU64::new(0);
/// Whether this process has a thread that reads these requests.
static LISTENS: ProcessCell<bool> = ProcessCell::new();

/// Before a fork: prepares all streams for use by a child.
pub(crate) fn before_fork() {
    let prepare = || {
        let mut streams: Vec<Arc<Socket>> = Vec::new();
        for number in SOCKETS.numbers(0, usize::MAX) {
            let socket = SOCKETS.get(number);
            let Some(socket) = socket.filter(|socket| socket.owner.is_owner()) else {
                continue;
            };
            match socket.kind() {
                Kind::Listening => release_unused(&socket),
                Kind::Connected if !socket.is_shared() => streams.push(socket),
                _ => {}
            }
        }
        streams.dedup_by(|one, other| Arc::ptr_eq(one, other));
        if streams.is_empty() || !*LISTENS.get_or_make(listen) {
            return;
        }
        for socket in streams.iter().filter(|socket| !socket.is_shared()) {
            share(socket);
        }
    };
    // A fork must not fail because of this. The panic hook has printed the message.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(prepare));
}

/// Replaces a stream's descriptors with one end of a socket pair, unless another thread has done so.
pub(crate) fn share(socket: &Socket) {
    socket.share(|stream, numbers| {
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (ours, theirs) = pair.ok()?;
        let ours = aside(ours);
        name(stream, socket, &ours, &theirs);
        if socket.is_nonblocking() {
            let _ = rustix::io::ioctl_fionbio(&theirs, true);
        }
        let _ = rustix::io::ioctl_fionbio(&ours, true);
        for (direction, timeout) in [
            (Direction::Read, Timeout::Recv),
            (Direction::Write, Timeout::Send),
        ] {
            let _ = set_socket_timeout(&theirs, timeout, socket.timeout(direction));
        }
        let file = QUESTIONS_FILE.load(Ordering::Acquire);
        socket.questions_file.store(file, Ordering::Release);
        let questions = QUESTIONS.load(Ordering::Acquire);
        socket.questions.store(questions, Ordering::Release);
        for number in numbers {
            // SAFETY: neither call takes a pointer. The number keeps its close-on-exec flag.
            unsafe {
                let flag = real::fcntl(*number, libc::F_GETFD, 0);
                let cloexec = match flag & libc::FD_CLOEXEC {
                    0 => 0,
                    _ => libc::O_CLOEXEC,
                };
                real::dup3(theirs.as_raw_fd(), *number, cloexec);
            }
        }
        Some(ours)
    });
}

/// Binds each end to a name that contains an address of the stream, so that any process can look up the addresses.
fn name(stream: &Stream, socket: &Socket, ours: &OwnedFd, theirs: &OwnedFd) {
    let known = |address: std::io::Result<std::net::SocketAddr>| {
        let address = address.unwrap_or_else(|_| names::wildcard(socket.family));
        names::of_family(address, socket.family)
    };
    let (local, peer) = (known(stream.local_addr()), known(stream.peer_addr()));
    for (end, address, side) in [(theirs, local, "local"), (ours, peer, "peer")] {
        let name = names::pair_name(address, socket.id, side);
        if let Ok(name) = rustix::net::SocketAddrUnix::new_abstract_name(&name) {
            // If bind fails, the pair works but has no addresses.
            let _ = rustix::net::bind(end, &name);
        }
    }
}

/// Starts the thread that answers requests of children.
fn listen() -> bool {
    let Ok((from, to)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) else {
        return false;
    };
    let from = aside(from);
    let thread = std::thread::Builder::new().name("portolan-forked".into());
    let spawned = with_signals_blocked(|| thread.spawn(move || answer(&from)));
    // Leaked on purpose: every child inherits it. Children close low numbers.
    let to = aside(to).into_raw_fd();
    QUESTIONS_FILE.store(file_of(to).unwrap_or(0), Ordering::Release);
    QUESTIONS.store(to, Ordering::Release);
    spawned.is_ok()
}

/// Which pipe a descriptor is of. `None` if it is not a pipe's.
fn file_of(number: RawFd) -> Option<u64> {
    // SAFETY: fstat(2) checks the number, which is not -1, and the borrow ends with this call.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    let status = rustix::fs::fstat(file).ok()?;
    (FileType::from_raw_mode(status.st_mode) == FileType::Fifo).then_some(status.st_ino)
}

fn answer(questions: &OwnedFd) {
    loop {
        let mut id = [0u8; 8];
        match rustix::io::read(questions, &mut id) {
            Ok(8) => give(u64::from_ne_bytes(id)),
            Ok(0) => return,
            _ => {}
        }
    }
}

/// Starts to relay a stream's data through the kernel.
fn give(id: u64) {
    let sockets = SOCKETS
        .numbers(0, usize::MAX)
        .filter_map(|number| SOCKETS.get(number));
    let mut sockets = sockets.filter(|socket| socket.id == id && socket.owner.is_owner());
    if let Some(socket) = sockets.next() {
        socket.hand_over();
    }
}

/// Asks the process that has a stream to relay it. Does nothing if it relays the stream already.
pub(crate) fn ask(socket: &Socket) {
    // Not this process's own pipe: it may have had children meanwhile.
    let questions: RawFd = socket.questions.load(Ordering::Acquire);
    let file = socket.questions_file.load(Ordering::Acquire);
    if questions >= 0 && file_of(questions) == Some(file) {
        let id = std::ptr::from_ref(&socket.id).cast();
        // SAFETY: the pointer and length describe the id. An error is harmless: the stream ends with its process.
        unsafe { real::write(questions, id, size_of::<u64>()) };
    }
}

/// Before an exec: asks the parent to relay the inherited streams that stay open for the new program. In a child of vfork(2),
/// tells the parent, whose memory it has, of the listeners that stay open.
pub(crate) fn before_exec(is_vfork_child: bool) {
    for number in SOCKETS.numbers(0, usize::MAX).collect::<Vec<_>>() {
        let Some(socket) = SOCKETS.get(number) else {
            continue;
        };
        // SAFETY: F_GETFD reads a descriptor's flags and takes no pointer.
        let flags = unsafe { real::fcntl(number, libc::F_GETFD, 0) };
        let stays = flags >= 0 && flags & libc::FD_CLOEXEC == 0;
        if socket.owner.is_owner() {
            if stays && is_vfork_child && socket.kind() == Kind::Listening {
                socket.is_passed_on.store(true, Ordering::Release);
            }
            // A child of vfork has the parent's memory, and an exec may fail. The socket must still end when it is closed.
            continue;
        }
        if stays && socket.kind() == Kind::Connected {
            ask(&socket);
        }
        std::mem::forget(socket);
    }
}

/// Before a child is made without a fork: releases listeners that the child may get and this process has not used.
/// `has_actions` if the child gets descriptors by other ways than their flags.
pub(crate) fn before_spawn(has_actions: bool) {
    let release = || {
        for number in SOCKETS.numbers(0, usize::MAX) {
            let socket = SOCKETS.get(number);
            let listener = socket.filter(|socket| socket.kind() == Kind::Listening);
            let Some(listener) = listener.filter(|socket| socket.owner.is_owner()) else {
                continue;
            };
            // SAFETY: F_GETFD reads a descriptor's flags and takes no pointer.
            let flags = unsafe { real::fcntl(number, libc::F_GETFD, 0) };
            if flags >= 0 && (has_actions || flags & libc::FD_CLOEXEC == 0) {
                release_unused(&listener);
            }
        }
    };
    // As before a fork.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(release));
}

/// Prepares a socket for `SCM_RIGHTS`: the data of a stream is relayed through the kernel from here on, and a listener that this
/// process has not used is the receiver's.
pub(crate) fn give_away(socket: &Socket) -> bool {
    if socket.kind() == Kind::Listening {
        release_unused(socket);
    }
    if socket.stream().is_none() {
        return false;
    }
    if !socket.is_shared() {
        share(socket);
    }
    socket.hand_over();
    true
}
