//! Connecting: first to an rsocket, then with TCP to peers that have none.

#![allow(unsafe_code, reason = "calls of libc with addresses of the program's")]

use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use portolan::stream::Socket as Unconnected;
use portolan::{Cause, Error, StreamOptions};
use portolan_abi_layout::guard::{Result, last_errno};
use portolan_threads::ProcessCell;
use portolan_threads::lock::Mutex;
use rustix::io::Errno;
use socket2::SockAddr;

use crate::settings::settings;
use crate::socket::{Attempt, Kind, Phase, SOCKETS, Socket};
use crate::wait::wait_readable;
use crate::{names, real, report};

/// How long an address without rsockets is connected to with TCP at once.
const MEMORY: Duration = Duration::from_secs(30);
/// Addresses that are remembered at most.
const REMEMBERED_MAX: usize = 1024;

/// How far a connect is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Pending,
    Connected,
    /// The number is the kernel's from here on.
    Tcp,
    Refused,
}

/// `connect` of a socket in the table.
///
/// # Errors
/// As for connect(2).
pub(crate) fn connect(socket: &Socket, number: c_int, destination: &SockAddr) -> Result<()> {
    let mut phase = socket.phase.lock();
    match socket.kind() {
        Kind::Fresh => {
            let started = start(number, destination);
            let Some(attempt) = started else {
                drop(phase);
                leave_to_kernel(socket);
                return connect_tcp(number, destination);
            };
            *phase = Phase::Connecting(Box::new(attempt));
            socket.set_kind(Kind::Connecting);
        }
        Kind::Connecting if socket.is_nonblocking() => {
            drop(phase);
            return match advance(socket) {
                Progress::Connected => {
                    socket.is_told.store(true, Ordering::Relaxed);
                    Ok(())
                }
                Progress::Pending => Err(Errno::ALREADY),
                Progress::Tcp => connect_tcp(number, destination),
                Progress::Refused => Err(refusal(socket)),
            };
        }
        Kind::Connecting => {}
        // The kernel tells once that a connect has succeeded.
        Kind::Connected if !socket.is_told.swap(true, Ordering::Relaxed) => return Ok(()),
        Kind::Connected | Kind::Listening => return Err(Errno::ISCONN),
        Kind::Refused => return Err(refusal(socket)),
        Kind::Plain => {
            drop(phase);
            return connect_tcp(number, destination);
        }
    }
    drop(phase);
    socket.tell_change();
    match socket.is_nonblocking() {
        // As TCP does, however near the peer is.
        true => Err(Errno::INPROGRESS),
        false => finish(socket),
    }
}

/// Why a connect was refused. It is said once.
fn refusal(socket: &Socket) -> Errno {
    match socket.error.swap(0, Ordering::Relaxed) {
        0 => Errno::CONNABORTED,
        errno => Errno::from_raw_os_error(errno),
    }
}

/// Waits for the end of a connect, unless the socket does not wait.
///
/// # Errors
/// `EINPROGRESS`, `EINTR`, or why TCP failed.
pub(crate) fn finish(socket: &Socket) -> Result<()> {
    loop {
        match advance_with_tcp(socket)? {
            Progress::Connected | Progress::Tcp => {
                socket.is_told.store(true, Ordering::Relaxed);
                return Ok(());
            }
            Progress::Refused => return Err(refusal(socket)),
            Progress::Pending if socket.is_nonblocking() => return Err(Errno::INPROGRESS),
            Progress::Pending => {}
        }
        let (descriptor, left) = {
            let phase = socket.phase.lock();
            let Phase::Connecting(attempt) = &*phase else {
                continue;
            };
            let deadline = attempt.connecting.deadline();
            let left = deadline.saturating_duration_since(Instant::now());
            // Open until this wait ends, whoever closes the socket meanwhile.
            let Ok(own) = attempt.connecting.as_fd().try_clone_to_owned() else {
                return Err(Errno::NFILE);
            };
            (own, left)
        };
        wait_readable(descriptor.as_fd(), Some(left))?;
    }
}

/// Goes on with a connect. Only the connect with TCP waits, if the socket does.
///
/// # Errors
/// `EINPROGRESS` if TCP has been started; why TCP failed.
fn advance_with_tcp(socket: &Socket) -> Result<Progress> {
    let (progress, destination) = step(socket);
    let Some(destination) = destination else {
        return Ok(progress);
    };
    let connected = connect_tcp(socket.number(), &destination);
    leave_to_kernel(socket);
    connected.map(|()| Progress::Tcp)
}

/// Goes on with a connect, without waiting, for calls that ask whether a socket is ready.
pub(crate) fn advance(socket: &Socket) -> Progress {
    let (progress, destination) = step(socket);
    let Some(destination) = destination else {
        return progress;
    };
    match connect_tcp(socket.number(), &destination) {
        Ok(()) | Err(Errno::INPROGRESS) => {
            leave_to_kernel(socket);
            Progress::Tcp
        }
        Err(errno) => {
            // The kernel has said it here, and would not say it to who asks for `SO_ERROR`.
            socket.error.store(errno.raw_os_error(), Ordering::Relaxed);
            socket.set_kind(Kind::Refused);
            socket.tell_change();
            Progress::Refused
        }
    }
}

/// One step. A destination is for TCP, which is the caller's to start.
fn step(socket: &Socket) -> (Progress, Option<SockAddr>) {
    let mut phase = socket.phase.lock();
    let Phase::Connecting(attempt) = &mut *phase else {
        let progress = match socket.kind() {
            Kind::Connected => Progress::Connected,
            Kind::Refused => Progress::Refused,
            Kind::Connecting => Progress::Pending,
            _ => Progress::Tcp,
        };
        return (progress, None);
    };
    match attempt.connecting.try_finish() {
        Ok(None) => (Progress::Pending, None),
        Ok(Some(stream)) => {
            *phase = Phase::Nothing;
            socket.connect(stream);
            report::count(&report::CONNECTED);
            drop(phase);
            socket.tell_change();
            (Progress::Connected, None)
        }
        Err(error) => {
            let destination = attempt.destination.clone();
            remember(&destination, &error);
            *phase = Phase::Nothing;
            (Progress::Tcp, Some(destination))
        }
    }
}

/// Starts a connect; `None` if it is TCP's.
fn start(number: c_int, destination: &SockAddr) -> Option<Attempt> {
    let address = names::plain(destination.as_socket()?);
    let is_wanted = settings().takes(&address) && !address.ip().is_unspecified();
    if !is_wanted || is_remembered(address.ip()) {
        return None;
    }
    let source = names::local(number).map(names::plain);
    let source = source.filter(|source| !source.ip().is_unspecified());
    // The kernel has the port for TCP.
    let source = source.map(|source| SocketAddr::new(source.ip(), 0));
    let options = StreamOptions {
        source,
        ..settings().options.clone()
    };
    let connecting = portolan::provider::towards(source, address)
        .and_then(|chosen| Unconnected::new_on(chosen.provider))
        .and_then(|unconnected| unconnected.connect(address, &options));
    match connecting {
        Ok(connecting) => Some(Attempt {
            connecting,
            destination: destination.clone(),
        }),
        Err(error) => {
            report::complain("connects stay TCP's", &error);
            None
        }
    }
}

/// The number is the kernel's from here on.
fn leave_to_kernel(socket: &Socket) {
    report::count(&report::TCP_CONNECTS);
    socket.set_kind(Kind::Plain);
    socket.tell_change();
    for number in socket.numbers() {
        drop(SOCKETS.take(number));
    }
}

fn connect_tcp(number: c_int, destination: &SockAddr) -> Result<()> {
    // SAFETY: an address of this length.
    let connected =
        unsafe { real::connect(number, destination.as_ptr().cast(), destination.len()) };
    match connected {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Addresses that did not answer, and since when.
fn deaf() -> &'static Mutex<VecDeque<(IpAddr, Instant)>> {
    static DEAF: ProcessCell<Mutex<VecDeque<(IpAddr, Instant)>>> = ProcessCell::new();
    DEAF.get_or_make(Mutex::default)
}

fn is_remembered(address: IpAddr) -> bool {
    let mut deaf = deaf().lock();
    deaf.retain(|(_, since)| since.elapsed() < MEMORY);
    deaf.iter().any(|(known, _)| *known == address)
}

/// A peer that rejects has rsockets, only none at this port.
fn remember(destination: &SockAddr, error: &Error) {
    let Some(address) = destination.as_socket() else {
        return;
    };
    if matches!(error.cause, Cause::Rejected { .. }) {
        return;
    }
    let mut deaf = deaf().lock();
    if deaf.len() >= REMEMBERED_MAX {
        deaf.pop_front();
    }
    deaf.push_back((names::plain(address).ip(), Instant::now()));
}
