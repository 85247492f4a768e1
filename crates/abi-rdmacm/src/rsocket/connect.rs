//! Creates, binds, connects, shuts down and closes sockets.

use std::ffi::c_int;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan::stream::Socket as Unconnected;
use rustix::io::Errno;

use super::datagram;
use super::errno::{of_error, of_io};
use super::names;
use super::settings::settings;
use super::socket::{Rsocket, State, provider};
use super::{epoll, iomap, table};
use crate::address::{AF_IB, Storage};
use crate::guard::Result;

/// How long `rshutdown` waits until the peer has received all data.
const DELIVERY_WAIT: Duration = Duration::from_secs(5);

/// `rsocket`.
///
/// # Errors
/// `EOPNOTSUPP` for anything except a stream or datagram socket over IPv4, IPv6 or InfiniBand; those of the devices.
pub(crate) fn create(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int> {
    let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    let is_known_domain = [libc::AF_INET, libc::AF_INET6, AF_IB].contains(&domain);
    let is_stream = kind & !flags == libc::SOCK_STREAM;
    let own_protocol = match kind & !flags {
        libc::SOCK_STREAM => libc::IPPROTO_TCP,
        libc::SOCK_DGRAM => libc::IPPROTO_UDP,
        _ => return Err(Errno::OPNOTSUPP),
    };
    // Datagram sockets use UDP, which AF_IB does not have.
    let has_kind = is_stream || domain != AF_IB;
    if !is_known_domain || !has_kind || ![0, own_protocol].contains(&protocol) {
        return Err(Errno::OPNOTSUPP);
    }
    let (number, state) = match is_stream {
        true => {
            let socket = Unconnected::new_on(provider()?).map_err(|error| of_error(&error))?;
            (socket.as_fd().as_raw_fd(), State::Fresh(socket))
        }
        false => {
            let socket = datagram::create(domain == libc::AF_INET6)?;
            (socket.udp().as_raw_fd(), State::Datagram(Arc::new(socket)))
        }
    };
    let socket = Rsocket::new(
        number,
        domain,
        state,
        settings().options.clone(),
        flags & libc::SOCK_NONBLOCK != 0,
    );
    if flags & libc::SOCK_CLOEXEC != 0 {
        socket
            .descriptor_flags
            .store(libc::FD_CLOEXEC, Ordering::Relaxed);
    }
    Ok(table::insert(socket))
}

/// `rbind`.
///
/// # Errors
/// `EINVAL` if it is bound, connected or listening; those of the address.
pub(crate) fn bind(socket: &Rsocket, (bytes, length): (Storage, usize)) -> Result<()> {
    let address = names::read(&bytes, length)?;
    match &*socket.state.lock() {
        State::Fresh(fresh) => fresh.bind(address).map_err(|error| of_error(&error)),
        State::Datagram(datagrams) => datagrams.bind(address).map_err(|error| of_io(&error)),
        _ => Err(Errno::INVAL),
    }
}

/// `rlisten`.
///
/// # Errors
/// `EINVAL` if it is connected; those of the port.
pub(crate) fn listen(socket: &Rsocket, backlog: c_int) -> Result<()> {
    let mut state = socket.state.lock();
    match std::mem::replace(&mut *state, State::Changing) {
        State::Fresh(fresh) => {
            let options = socket.options.lock().stream.clone();
            let listening = fresh.clone().listen(backlog, options);
            let listener = match listening.map_err(|error| of_error(&error)) {
                Ok(listener) => listener,
                Err(errno) => {
                    *state = State::Fresh(fresh);
                    return Err(errno);
                }
            };
            // Whether a call waits is the socket's to say.
            let _ = listener.set_nonblocking(true);
            *state = State::Listening(Arc::new(listener));
            Ok(())
        }
        other => {
            let answer = match &other {
                State::Listening(_) => Ok(()),
                State::Datagram(_) => Err(Errno::OPNOTSUPP),
                _ => Err(Errno::INVAL),
            };
            *state = other;
            answer
        }
    }
}

/// `raccept`: returns the new socket.
///
/// # Errors
/// `EBADF` if it does not listen; `EAGAIN`.
pub(crate) fn accept(socket: &Rsocket) -> Result<Arc<Rsocket>> {
    socket.accept().map(table::insert_shared)
}

/// `rconnect`.
///
/// # Errors
/// `EINPROGRESS` for a non-blocking socket; the reason why the connect failed.
pub(crate) fn connect(socket: &Rsocket, (bytes, length): (Storage, usize)) -> Result<()> {
    let address: SocketAddr = names::read(&bytes, length)?;
    if let Some(datagrams) = socket.datagrams() {
        return datagrams.connect(address).map_err(|error| of_io(&error));
    }
    let mut state = socket.state.lock();
    match std::mem::replace(&mut *state, State::Changing) {
        State::Fresh(fresh) => {
            let options = socket.options.lock().stream.clone();
            match fresh.clone().connect(address, &options) {
                Ok(connecting) => *state = State::Connecting(Box::new(connecting)),
                Err(error) => {
                    let errno = of_error(&error);
                    socket.refuse(&mut state, fresh, errno);
                    return Err(errno);
                }
            }
        }
        other => *state = other,
    }
    drop(state);
    match socket.stream(socket.is_nonblocking()) {
        Ok(_) => Ok(()),
        Err(Errno::AGAIN) => Err(Errno::INPROGRESS),
        Err(Errno::NOTCONN) => Err(Errno::INVAL),
        Err(errno) => Err(errno),
    }
}

/// `rshutdown`. Does nothing if the socket is not connected, as in librdmacm.
///
/// # Errors
/// `EINVAL` for an unknown direction.
pub(crate) fn shutdown(socket: &Rsocket, how: c_int) -> Result<()> {
    let how = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        _ => return Err(Errno::INVAL),
    };
    let stream = match &*socket.state.lock() {
        State::Connected(stream) => stream.clone(),
        _ => return Ok(()),
    };
    // The stream may have ended already.
    let _ = stream.shutdown(how);
    // librdmacm waits, too, because programs exit right after. The background service sends data that takes longer.
    let _ = stream.wait_delivered(DELIVERY_WAIT);
    Ok(())
}

/// `rclose`. Sent data still reaches the peer.
///
/// # Errors
/// `EBADF`.
pub(crate) fn close(number: c_int) -> Result<()> {
    if epoll::close(number) {
        return Ok(());
    }
    let socket = table::remove(number)?;
    epoll::forget(number);
    iomap::unmap_all(&socket);
    let state = std::mem::replace(&mut *socket.state.lock(), State::Changing);
    // Calls of other threads may hold the stream. It ends for all of them.
    if let State::Connected(stream) = &state {
        let _ = stream.shutdown(Shutdown::Both);
    }
    drop(state);
    Ok(())
}
