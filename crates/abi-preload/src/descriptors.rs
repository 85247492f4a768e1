//! The program's descriptor numbers: which object each one has, and what `dup`, `close` and `fork` do to it.

#![allow(unsafe_code, reason = "calls of libc")]

use std::ffi::{c_int, c_uint};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{
    AF_INET, AF_INET6, F_DUPFD, F_DUPFD_CLOEXEC, F_SETFL, IPPROTO_TCP, O_NONBLOCK, SOCK_NONBLOCK,
    SOCK_STREAM,
};

use portolan_abi_layout::guard;
use portolan_threads::lock::Mutex;
use portolan_threads::{ProcessCell, with_signals_blocked};

use crate::epoll::{self, INSTANCES};
use crate::inside::Inside;
use crate::settings::settings;
use crate::socket::{Kind, Listening, Phase, SOCKETS, Socket, enter, leave, put};
use crate::{handover, listen, real, report};

/// Whether this library has an object for the number. Costs two loads.
#[inline]
pub(crate) fn has_object(number: c_int) -> bool {
    SOCKETS.has(number) || INSTANCES.has(number)
}

/// The number's socket; `None` if the kernel handles the number.
#[inline]
pub(crate) fn lookup(number: c_int) -> Option<Arc<Socket>> {
    match SOCKETS.has(number) {
        true => found(number),
        false => None,
    }
}

#[cold]
fn found(number: c_int) -> Option<Arc<Socket>> {
    let socket = SOCKETS.get(number)?;
    match socket.owner.is_owner() {
        true => Some(socket).filter(|socket| socket.kind() != Kind::Plain),
        false => inherited(number),
    }
}

/// Replaces a socket inherited through fork, once. Listeners are created again; the parent relays the data of streams.
fn inherited(number: c_int) -> Option<Arc<Socket>> {
    static ENTERING: ProcessCell<Mutex<()>> = ProcessCell::new();
    // A handler may use such a socket, too.
    with_signals_blocked(|| {
        let _entering = ENTERING.get_or_make(Mutex::default).lock();
        replace_inherited(number)
    })
}

fn replace_inherited(number: c_int) -> Option<Arc<Socket>> {
    let socket = SOCKETS.get(number)?;
    if socket.owner.is_owner() {
        // Another thread was faster.
        return Some(socket).filter(|socket| socket.kind() != Kind::Plain);
    }
    let (family, is_nonblocking) = (socket.family, socket.is_nonblocking());
    let new = match socket.kind() {
        Kind::Fresh => Some(Socket::new(
            family,
            Kind::Fresh,
            Phase::Nothing,
            is_nonblocking,
        )),
        Kind::Listening => {
            let phase = Phase::Listening(Listening {
                length: libc::SOMAXCONN,
                ..Listening::default()
            });
            Some(Socket::new(family, Kind::Listening, phase, is_nonblocking))
        }
        Kind::Connected => {
            handover::ask(&socket);
            None
        }
        Kind::Connecting | Kind::Refused | Kind::Plain => None,
    };
    let Some(new) = new else {
        forget(number);
        return None;
    };
    socket.copy_settings(&new);
    let new = Arc::new(new);
    // Other threads find the one or the other.
    std::mem::forget(put(number, &new));
    Some(new)
}

/// A socket that a call uses. The thread counts as in the call until it has let go of the socket, which may end with the call.
pub(crate) struct Used {
    socket: Arc<Socket>,
    /// Dropped after the socket.
    _inside: Inside,
}

impl Deref for Used {
    type Target = Arc<Socket>;

    fn deref(&self) -> &Arc<Socket> {
        &self.socket
    }
}

/// [`lookup`] for a call.
pub(crate) fn used(number: c_int) -> Option<Used> {
    if !SOCKETS.has(number) {
        return None;
    }
    let inside = Inside::enter();
    Some(Used {
        socket: lookup(number)?,
        _inside: inside,
    })
}

/// Removes the parent's object without dropping it: a parent's thread may have held its locks at the fork.
fn forget(number: c_int) {
    std::mem::forget(SOCKETS.take(number));
}

/// Whether this process owns the tables. A vfork(2) child does not: it runs in its parent's memory.
pub(crate) fn is_table_owner() -> bool {
    static OWNER: AtomicU32 = AtomicU32::new(0);
    static GENERATION: AtomicU32 = AtomicU32::new(0);
    let (process, generation) = (std::process::id(), portolan_threads::fork::generation());
    if GENERATION.load(Ordering::Acquire) != generation {
        OWNER.store(process, Ordering::Release);
        GENERATION.store(generation, Ordering::Release);
    }
    OWNER.load(Ordering::Acquire) == process
}

/// Before `execve` and its kin.
pub(crate) fn before_exec() {
    let _inside = Inside::enter();
    handover::before_exec(!is_table_owner());
}

/// Before `posix_spawn`.
pub(crate) fn before_spawn(has_actions: bool) {
    if is_table_owner() {
        let _inside = Inside::enter();
        handover::before_spawn(has_actions);
    }
}

/// Removes a number's object before the number is closed or reused.
pub(crate) fn release(number: c_int) {
    if !has_object(number) || !is_table_owner() {
        return;
    }
    let _inside = Inside::enter();
    let socket = SOCKETS.get(number).filter(|socket| socket.owner.is_owner());
    let ending = socket.as_deref().and_then(listen::ending);
    drop(socket);
    // What ends closes descriptors, where a thread could be cancelled.
    guard::value((), || release_owned(number));
    listen::ended(ending);
}

fn release_owned(number: c_int) {
    if let Some(socket) = SOCKETS.get(number) {
        match socket.owner.is_owner() {
            true => leave(number),
            false => forget(number),
        }
    }
    epoll::closed(number);
}

/// [`release`] for the numbers from `first` to `last`, inclusive.
pub(crate) fn release_range(first: c_uint, last: c_uint) {
    let range = (first as usize, last as usize);
    let sockets = SOCKETS.numbers(range.0, range.1);
    let instances = INSTANCES.numbers(range.0, range.1);
    for number in sockets.chain(instances).collect::<Vec<_>>() {
        release(number);
    }
}

/// `socket`. TCP sockets enter the table.
pub(crate) fn create(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: socket(2) takes no pointers.
    let number = unsafe { real::socket(domain, kind, protocol) };
    let flags = libc::SOCK_CLOEXEC | SOCK_NONBLOCK;
    let is_tcp = kind & !flags == SOCK_STREAM && [0, IPPROTO_TCP].contains(&protocol);
    let is_inet = [AF_INET, AF_INET6].contains(&domain);
    if number < 0 || !is_tcp || !is_inet {
        return number;
    }
    report::complain_of_settings();
    if settings().takes_domain(domain) && is_table_owner() {
        let is_nonblocking = kind & SOCK_NONBLOCK != 0;
        let socket = Socket::new(domain, Kind::Fresh, Phase::Nothing, is_nonblocking);
        release(number);
        enter(number, &Arc::new(socket));
    }
    number
}

/// Notes the number that `epoll_create` has returned.
pub(crate) fn created_instance(number: c_int) -> c_int {
    if number >= 0 && is_table_owner() {
        release(number);
        epoll::created(number);
    }
    number
}

/// Gives the number `new` the object of `number`.
pub(crate) fn duplicate(number: c_int, new: c_int) {
    if new < 0 || new == number || !is_table_owner() {
        return;
    }
    let _inside = Inside::enter();
    if let Some(socket) = lookup(number) {
        enter(new, &socket);
    } else {
        epoll::duplicated(number, new);
    }
}

/// `dup2` and `dup3`. They close the new number first.
pub(crate) fn duplicate_to(number: c_int, new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if number == new {
        return call();
    }
    let _inside = Inside::enter();
    let former = match has_object(new) && is_table_owner() {
        true => SOCKETS.get(new).filter(|former| former.owner.is_owner()),
        false => None,
    };
    let ending = former.as_deref().and_then(listen::ending);
    let made = match &former {
        Some(former) => former.replace(new, call),
        None => call(),
    };
    if made == new {
        guard::value((), || drop(former));
        release(new);
        listen::ended(ending);
        duplicate(number, new);
    }
    made
}

/// `fcntl` on a number with an object. `call` is the kernel's.
pub(crate) fn control(
    number: c_int,
    command: c_int,
    argument: usize,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let answer = call();
    if answer < 0 {
        return answer;
    }
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC => duplicate(number, answer),
        F_SETFL => {
            if let Some(socket) = lookup(number) {
                socket.set_nonblocking(argument as c_int & O_NONBLOCK != 0);
            }
        }
        _ => {}
    }
    answer
}
