//! Streams and other processes. A stream is this process's alone: its device does not survive a fork or an exec.
//!
//! Before a fork, the number of each stream becomes one end of a pair of the kernel's sockets. This process goes on with the
//! stream. Once it closes the number and a child still has it, or once a child uses it, the service of [`crate::pump`] moves
//! the data between the stream and the other end. So children, and the programs they run, have an ordinary socket.

#![allow(
    unsafe_code,
    reason = "calls of libc, and what is called around a fork"
)]

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use portolan::Stream;
use portolan_threads::{ProcessCell, with_signals_blocked};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::listen::release_unused;
use crate::socket::{Kind, SOCKETS, Socket};
use crate::{names, real};

/// Where a child asks its parent for a stream: the writing end of a pipe, or -1.
static QUESTIONS: AtomicI32 = AtomicI32::new(-1);
/// Whether this process has a thread that reads them.
static LISTENS: ProcessCell<bool> = ProcessCell::new();

/// Before a fork: gives the streams' numbers to a child, too.
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
    // A fork must not fail because of this; a panic has been printed.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(prepare));
}

/// Gives a stream's numbers one end of a pair.
pub(crate) fn share(socket: &Socket) {
    let Some(stream) = socket.stream() else {
        return;
    };
    let flags = SocketFlags::CLOEXEC;
    let Ok((ours, theirs)) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
    else {
        return;
    };
    name(stream, socket, &ours, &theirs);
    if socket.is_nonblocking() {
        let _ = rustix::io::ioctl_fionbio(&theirs, true);
    }
    let _ = rustix::io::ioctl_fionbio(&ours, true);
    for number in socket.numbers() {
        // SAFETY: a descriptor of the program's becomes the pair's; its flag stays.
        unsafe {
            let flag = real::fcntl(number, libc::F_GETFD, 0);
            let cloexec = match flag & libc::FD_CLOEXEC {
                0 => 0,
                _ => libc::O_CLOEXEC,
            };
            real::dup3(theirs.as_raw_fd(), number, cloexec);
        }
    }
    socket.share(ours);
}

/// The ends' names tell the addresses of the stream to whoever has the number.
fn name(stream: &Stream, socket: &Socket, ours: &OwnedFd, theirs: &OwnedFd) {
    let known = |address: std::io::Result<std::net::SocketAddr>| {
        let address = address.unwrap_or_else(|_| names::wildcard(socket.family));
        names::of_family(address, socket.family)
    };
    let (local, peer) = (known(stream.local_addr()), known(stream.peer_addr()));
    for (end, address, side) in [(theirs, local, "local"), (ours, peer, "peer")] {
        let name = names::pair_name(address, socket.id, side);
        if let Ok(name) = rustix::net::SocketAddrUnix::new_abstract_name(&name) {
            // Without a name the pair works, and tells no address.
            let _ = rustix::net::bind(end, &name);
        }
    }
}

/// Starts the thread that hears what children ask for.
fn listen() -> bool {
    let Ok((from, to)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) else {
        return false;
    };
    let thread = std::thread::Builder::new().name("portolan-forked".into());
    let spawned = with_signals_blocked(|| thread.spawn(move || answer(&from)));
    // Stays open for all children.
    let to = to.into_raw_fd();
    QUESTIONS.store(to, Ordering::Release);
    spawned.is_ok()
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

/// Lets the kernel carry a stream's data from here on.
fn give(id: u64) {
    let sockets = SOCKETS
        .numbers(0, usize::MAX)
        .filter_map(|number| SOCKETS.get(number));
    let mut sockets = sockets.filter(|socket| socket.id == id && socket.owner.is_owner());
    if let Some(socket) = sockets.next() {
        socket.hand_over();
    }
}

/// Asks the parent to carry a stream. Unless it has given it away already, it does.
pub(crate) fn ask(id: u64) {
    let questions: RawFd = QUESTIONS.load(Ordering::Acquire);
    if questions >= 0 {
        // SAFETY: a number and its length. If the parent has ended, so has the stream.
        unsafe { real::write(questions, std::ptr::from_ref(&id).cast(), size_of::<u64>()) };
    }
}

/// Before a program replaces this one: its streams that stay open are for the new program.
pub(crate) fn before_exec() {
    for number in SOCKETS.numbers(0, usize::MAX).collect::<Vec<_>>() {
        let Some(socket) = SOCKETS.get(number) else {
            continue;
        };
        // SAFETY: it asks for the flags of a descriptor.
        let flags = unsafe { real::fcntl(number, libc::F_GETFD, 0) };
        let stays = flags >= 0 && flags & libc::FD_CLOEXEC == 0;
        if stays && socket.kind() == Kind::Connected && !socket.owner.is_owner() {
            ask(socket.id);
        }
        std::mem::forget(socket);
    }
}

/// Gives a stream's number to another process by `SCM_RIGHTS`: the kernel carries its data from here on.
pub(crate) fn give_away(socket: &Socket) -> bool {
    if socket.stream().is_none() {
        return false;
    }
    if !socket.is_shared() {
        share(socket);
    }
    socket.hand_over();
    true
}
