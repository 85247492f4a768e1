//! Connecting: an rsocket first, then TCP if the peer has none.

#![allow(unsafe_code, reason = "calls of libc with addresses of the program's")]

use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::{F_GETFL, F_SETFL, O_NONBLOCK};
use portolan::stream::{Direction, Socket as Unconnected};
use portolan::{Cause, Error, Stream};
use portolan_abi_layout::guard::{Result, last_errno};
use portolan_threads::ProcessCell;
use portolan_threads::lock::{Mutex, MutexGuard};
use rustix::io::Errno;
use socket2::SockAddr;

use crate::background::{Place, Task, make_bell};
use crate::inside::asleep;
use crate::settings::settings;
use crate::socket::{Attempt, Attending, Kind, Phase, Socket, Unattended};
use crate::wait::{OnSignal, wait_kernel, wait_readable};
use crate::{inheritance, names, real, report};

/// How long connects to an address without rsockets go straight to TCP.
const MEMORY: Duration = Duration::from_secs(30);
/// Maximum of remembered addresses.
const REMEMBERED_MAX: usize = 1024;

/// State of a connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Pending,
    Connected,
    /// The descriptor belongs to the kernel from here on.
    Tcp,
    Refused,
}

/// `connect` of a socket in the table.
///
/// # Errors
/// As for connect(2).
pub(crate) fn connect(socket: &Arc<Socket>, number: c_int, destination: &SockAddr) -> Result<()> {
    let connected = connect_or_start(socket, number, destination);
    if connected.is_err() {
        look_later(socket);
    }
    connected
}

fn connect_or_start(socket: &Socket, number: c_int, destination: &SockAddr) -> Result<()> {
    let mut phase = socket.phase.lock();
    match socket.kind() {
        Kind::Fresh if destination.family() != socket.family as libc::sa_family_t => {
            drop(phase);
            // An error, or `AF_UNSPEC`, which has nothing to dissolve. The socket can still connect.
            return connect_tcp(number, destination);
        }
        Kind::Fresh => {
            let started = start(number, destination);
            let Some(attempt) = started else {
                drop(phase);
                leave_to_kernel(socket);
                return counted(connect_tcp(number, destination));
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
        // The kernel reports a successful connect once, then EISCONN.
        Kind::Connected if !socket.is_told.swap(true, Ordering::Relaxed) => return Ok(()),
        Kind::Connected | Kind::Listening => return Err(Errno::ISCONN),
        Kind::Refused => {
            drop(phase);
            return Err(refusal(socket));
        }
        Kind::Plain => {
            drop(phase);
            return connect_tcp(number, destination);
        }
    }
    drop(phase);
    socket.tell_change();
    match socket.is_nonblocking() {
        // TCP does the same, even if the peer is local.
        true => Err(Errno::INPROGRESS),
        false => finish(number, socket),
    }
}

/// Takes the error of a refused connect, or `ECONNABORTED` if the program has it already. The next connect begins anew.
fn refusal(socket: &Socket) -> Errno {
    {
        let _phase = socket.phase.lock();
        if socket.kind() == Kind::Refused {
            socket.set_kind(Kind::Fresh);
        }
    }
    socket.tell_change();
    match socket.error.swap(0, Ordering::Relaxed) {
        0 => Errno::CONNABORTED,
        errno => Errno::from_raw_os_error(errno),
    }
}

/// Completes a connect. Waits unless the socket is nonblocking.
///
/// # Errors
/// `EINPROGRESS`, `EINTR`, or TCP's error.
pub(crate) fn finish(number: c_int, socket: &Socket) -> Result<()> {
    let _attending = Attending::begin(socket);
    let until = socket
        .timeout(Direction::Write)
        .map(|timeout| Instant::now() + timeout);
    loop {
        match advance_with_tcp(number, socket, until)? {
            Progress::Connected | Progress::Tcp => {
                socket.is_told.store(true, Ordering::Relaxed);
                return Ok(());
            }
            Progress::Refused => return Err(refusal(socket)),
            Progress::Pending if socket.is_nonblocking() => return Err(Errno::INPROGRESS),
            // `SO_SNDTIMEO` (socket(7)).
            Progress::Pending if until.is_some_and(|until| Instant::now() >= until) => {
                return Err(Errno::INPROGRESS);
            }
            Progress::Pending => {}
        }
        let (descriptor, left) = {
            let phase = socket.phase.lock();
            let Phase::Connecting(attempt) = &*phase else {
                continue;
            };
            let deadline = attempt.connecting.deadline();
            let deadline = until.map_or(deadline, |until| until.min(deadline));
            let left = deadline.saturating_duration_since(Instant::now());
            // A duplicate stays valid during the wait even if another thread closes the socket.
            let Ok(own) = attempt.as_fd().try_clone_to_owned() else {
                return Err(Errno::MFILE);
            };
            (own, left)
        };
        wait_readable(descriptor.as_fd(), Some(left), OnSignal::of(until))?;
    }
}

/// Advances the connect of the socket at `number`. Blocks only in TCP's connect, and only if the socket is blocking.
///
/// # Errors
/// `EINPROGRESS` if TCP's connect has started; TCP's error.
fn advance_with_tcp(number: c_int, socket: &Socket, until: Option<Instant>) -> Result<Progress> {
    let (progress, failed) = step(socket);
    let Some(failed) = failed else {
        if progress == Progress::Tcp && !socket.is_nonblocking() {
            await_tcp(number, until)?;
        }
        return Ok(progress);
    };
    let connected = counted(connect_tcp(socket.number(), &failed.destination));
    leave_to_kernel(socket);
    connected.map(|()| Progress::Tcp)
}

/// Advances a connect without blocking, for calls that check readiness.
pub(crate) fn advance(socket: &Socket) -> Progress {
    let (progress, failed) = step(socket);
    let Some(failed) = failed else {
        return progress;
    };
    match counted(start_tcp(socket, &failed.destination)) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::ALREADY) => {
            leave_to_kernel(socket);
            Progress::Tcp
        }
        Err(errno) => {
            // The kernel has already returned this error, so its `SO_ERROR` is clear. Keep it for the program.
            socket.error.store(errno.raw_os_error(), Ordering::Relaxed);
            socket.set_kind(Kind::Refused);
            socket.tell_change();
            Progress::Refused
        }
    }
}

/// Advances the rsocket's connect. If it returns the attempt, that has failed, and the caller connects with TCP. The
/// attempt's descriptor must stay open until epoll sets have been told, because its number may be used again.
fn step(socket: &Socket) -> (Progress, Option<Box<Attempt>>) {
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
    let error = attempt
        .unattended
        .as_mut()
        .and_then(|unattended| unattended.error.take());
    match error.map_or_else(|| attempt.connecting.try_finish(), Err) {
        Ok(None) => (Progress::Pending, None),
        Ok(Some(stream)) => {
            established(socket, phase, stream);
            (Progress::Connected, None)
        }
        Err(error) => {
            remember(&attempt.destination, &error);
            let Phase::Connecting(failed) = std::mem::replace(&mut *phase, Phase::Nothing) else {
                return (Progress::Tcp, None);
            };
            (Progress::Tcp, Some(failed))
        }
    }
}

/// The rsocket is connected.
fn established(socket: &Socket, mut phase: MutexGuard<'_, Phase>, stream: Stream) {
    let former = std::mem::replace(&mut *phase, Phase::Nothing);
    socket.connect(stream);
    inheritance::connected(socket);
    report::count(&report::CONNECTED);
    drop(phase);
    socket.tell_change();
    drop(former);
}

/// The connect goes on also if the program does not wait for it, as TCP's does: after a while the thread looks. If that is
/// impossible, it goes on while the program looks.
fn look_later(socket: &Arc<Socket>) {
    let Phase::Connecting(attempt) = &mut *socket.phase.lock() else {
        return;
    };
    if attempt.places.is_some() {
        return;
    }
    let place = || {
        let of_socket = Arc::downgrade(socket);
        Place::new(of_socket).ok()
    };
    attempt.places = place().and_then(|ticks| Some([ticks, place()?]));
    if let Some([ticks, _]) = &attempt.places {
        ticks.put_off();
    }
}

impl Task for Socket {
    /// Advances a connect that no call of the program waits for. What uses the descriptor is left to a call: the program
    /// may have given the number to another file.
    fn ready(&self, place: u64) {
        let mut phase = self.phase.lock();
        let Phase::Connecting(attempt) = &mut *phase else {
            return;
        };
        let Some([ticks, events]) = &attempt.places else {
            return;
        };
        let Some(unattended) = &mut attempt.unattended else {
            ticks.put_off();
            if !self.is_attended()
                && let Ok(bell) = make_bell()
            {
                attempt.unattended = Some(Unattended { bell, error: None });
                drop(phase);
                // The descriptor to wait for is the bell now.
                self.tell_change();
            }
            return;
        };
        if unattended.error.is_some() {
            return;
        }
        match attempt.connecting.try_finish() {
            Ok(None) if place == ticks.number() => {
                // The descriptor may be another one now, or a stand-in that is always readable.
                let _ = events.watch(&attempt.connecting);
                ticks.put_off();
            }
            Ok(None) => {}
            Ok(Some(stream)) => {
                // For threads that wait for it. It stays open in their calls.
                ring(&unattended.bell);
                established(self, phase, stream);
            }
            Err(error) => {
                unattended.error = Some(error);
                ring(&unattended.bell);
            }
        }
    }
}

fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Starts an rsocket's connect. `None` means that TCP connects instead.
fn start(number: c_int, destination: &SockAddr) -> Option<Attempt> {
    let address = names::plain(destination.as_socket()?);
    let is_wanted = settings().takes(&address) && !address.ip().is_unspecified();
    if !is_wanted || is_remembered(address.ip()) || inheritance::has_own_route(number) {
        return None;
    }
    let bound = names::local(number).map(names::plain);
    let by_route = bound.filter(|source| !source.ip().is_unspecified());
    let begin = |source: Option<SocketAddr>| {
        let options = settings().options.clone().source(source);
        portolan::provider::towards(by_route, address)
            .and_then(|chosen| Unconnected::new_on(chosen.provider))
            .and_then(|unconnected| unconnected.connect(address, &options))
    };
    // The kernel holds the program's port for TCP only: another rsocket may have the RDMA port of its number.
    let with_port = bound.filter(|source| source.port() != 0);
    let with_port = with_port.map(|source| match source.ip() {
        // A socket of both versions.
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) if address.is_ipv4() => {
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, source.port()))
        }
        _ => source,
    });
    let connecting = with_port
        .and_then(|source| begin(Some(source)).ok())
        .map_or_else(
            || begin(by_route.map(|source| SocketAddr::new(source.ip(), 0))),
            Ok,
        );
    match connecting {
        Ok(connecting) => Some(Attempt {
            connecting,
            destination: destination.clone(),
            places: None,
            unattended: None,
        }),
        Err(error) => {
            report::complain("connects stay TCP's", &error);
            None
        }
    }
}

/// Returns the descriptor to the kernel: it stays a plain TCP socket.
fn leave_to_kernel(socket: &Socket) {
    socket.set_kind(Kind::Plain);
    socket.tell_change();
    socket.leave_table();
}

/// Counts a connect of TCP's for the report, if it succeeded or goes on in the kernel, whose result only the program sees.
fn counted(connected: Result<()>) -> Result<()> {
    if let Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) = connected {
        report::count(&report::TCP_CONNECTS);
    }
    connected
}

fn connect_tcp(number: c_int, destination: &SockAddr) -> Result<()> {
    // SAFETY: the pointer and length describe the same address.
    let connected =
        asleep(|| unsafe { real::connect(number, destination.as_ptr().cast(), destination.len()) });
    match connected {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Begins TCP's connect, also of a blocking socket, without waiting.
fn start_tcp(socket: &Socket, destination: &SockAddr) -> Result<()> {
    let number = socket.number();
    // SAFETY: F_GETFL takes no pointer.
    let flags = || unsafe { real::fcntl(number, F_GETFL, 0) };
    let set = |flags: c_int| {
        // SAFETY: F_SETFL takes no pointer.
        unsafe { real::fcntl(number, F_SETFL, flags as usize) }
    };
    let before = flags();
    set(before | O_NONBLOCK);
    let connected = connect_tcp(number, destination);
    // Unless another thread has made it non-blocking meanwhile.
    if before & O_NONBLOCK == 0 && !socket.is_nonblocking() {
        set(flags() & !O_NONBLOCK);
    }
    connected
}

/// Waits for TCP's connect, which another thread has begun.
fn await_tcp(number: c_int, until: Option<Instant>) -> Result<()> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    wait_kernel(number, Direction::Write, left, OnSignal::of(until))?;
    match inheritance::number_of(number, libc::SOL_SOCKET, libc::SO_ERROR) {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

/// Addresses without rsockets, each with the time of its failed connect.
fn deaf() -> &'static Mutex<VecDeque<(IpAddr, Instant)>> {
    static DEAF: ProcessCell<Mutex<VecDeque<(IpAddr, Instant)>>> = ProcessCell::new();
    DEAF.get_or_make(Mutex::default)
}

fn is_remembered(address: IpAddr) -> bool {
    let mut deaf = deaf().lock();
    deaf.retain(|(_, since)| since.elapsed() < MEMORY);
    deaf.iter().any(|(known, _)| *known == address)
}

/// Remembers an address without rsockets. A peer that rejects has rsockets, just no listener on this port.
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
