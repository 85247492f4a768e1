//! Options of sockets and descriptors.

use std::ffi::{c_int, c_long};
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};
use portolan::provider::cm::IdOption;
use portolan_rsocket::{IOMAPS_MAX, QUEUE_MAX, scale, unscale};
use rustix::io::Errno;

use super::datagram;
use super::errno::of_error;
use super::route;
use super::socket::{Options, Rsocket, State};
use crate::guard::Result;

/// The level of RDMA options (`rsocket.h`).
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
const RDMA_ROUTE: c_int = 4;

/// Bytes of the longest value, `struct linger`.
const LINGER_BYTES: usize = 8;

/// The value of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Int(c_int),
    /// The value that the UDP socket of a datagram socket returns.
    Udp(Vec<u8>),
    /// An array of `struct ibv_path_data`.
    Route(Vec<u8>),
    Linger {
        is_on: bool,
    },
    /// `struct tcp_info`; other fields are 0.
    TcpInfo {
        is_established: bool,
        window: u32,
    },
}

impl Value {
    /// The value in C's format.
    ///
    /// # Errors
    /// `EINVAL` if `room` bytes are too few for a route. Other values are truncated.
    pub(crate) fn bytes(self, room: usize) -> Result<Vec<u8>> {
        Ok(match self {
            Self::Udp(value) => value,
            Self::Route(_) if room < route::PATH_BYTES => return Err(Errno::INVAL),
            Self::Route(mut paths) => {
                paths.truncate(room - room % route::PATH_BYTES);
                paths
            }
            Self::Int(value) => value.to_ne_bytes().to_vec(),
            Self::Linger { is_on } => [i32::from(is_on), 0]
                .iter()
                .flat_map(|word| word.to_ne_bytes())
                .collect(),
            Self::TcpInfo {
                is_established,
                window,
            } => {
                const ESTABLISHED: u8 = 1;
                const CLOSE: u8 = 7;
                let mut bytes = vec![0; TCP_INFO_BYTES];
                bytes[0] = if is_established { ESTABLISHED } else { CLOSE };
                bytes[SND_CWND_AT..][..4].copy_from_slice(&window.to_ne_bytes());
                bytes
            }
        })
    }
}

/// Size of glibc's `struct tcp_info`, and the offset of `tcpi_snd_cwnd`.
const TCP_INFO_BYTES: usize = 104;
const SND_CWND_AT: usize = 80;

/// `rsetsockopt`. A listener's options apply to sockets that it accepts later.
///
/// # Errors
/// `EOPNOTSUPP` for an unknown option; `EINVAL` for a value that is too short or set too late.
pub(crate) fn set(socket: &Rsocket, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
    set_own(socket, level, name, value)?;
    match &*socket.state.lock() {
        State::Listening(listener) => listener.set_options(socket.options.lock().stream.clone()),
        State::Datagram(datagrams) => {
            datagrams.set_options(datagram::sizes(&socket.options.lock().stream));
        }
        _ => {}
    }
    Ok(())
}

fn set_own(socket: &Rsocket, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
    if let Some(datagrams) = socket.datagrams()
        && level != SOL_RDMA
    {
        datagram::set_option(&datagrams, level, name, value)?;
        if !is_size(level, name) {
            return Ok(());
        }
    }
    let int = || {
        value
            .first_chunk()
            .map(|bytes| c_int::from_ne_bytes(*bytes))
            .ok_or(Errno::INVAL)
    };
    let is_early = || match &*socket.state.lock() {
        State::Fresh(_) => true,
        State::Datagram(datagrams) => !datagram::is_bound(datagrams),
        _ => false,
    };
    // librdmacm takes a datagram socket's value as unsigned, and the UDP socket has accepted it.
    let buffer = |value: c_int| match socket.datagrams() {
        Some(_) => Ok(value.cast_unsigned().saturating_mul(2)),
        None => doubled(value),
    };
    let remember = |value: c_int| {
        let mut options = socket.options.lock();
        options
            .remembered
            .retain(|(known, its, _)| (*known, *its) != (level, name));
        options.remembered.push((level, name, value));
        Ok(())
    };
    match (level, name) {
        (SOL_SOCKET, libc::SO_REUSEADDR) => {
            let on = int()? != 0;
            id_option(socket, IdOption::ReuseAddr(on))?;
            remember(on.into())
        }
        (SOL_SOCKET, libc::SO_RCVBUF) => {
            let bytes = buffer(int()?)?;
            let stream = &mut socket.options.lock().stream;
            (stream.receive_buffer, stream.grows) = (bytes, false);
            Ok(())
        }
        (SOL_SOCKET, libc::SO_SNDBUF) => {
            let bytes = buffer(int()?)?;
            let bytes = bytes.max(2 * portolan_rsocket::SEND_LOW_WATER);
            let stream = &mut socket.options.lock().stream;
            (stream.send_buffer, stream.grows) = (bytes, false);
            Ok(())
        }
        (SOL_SOCKET, libc::SO_LINGER) if value.len() < LINGER_BYTES => Err(Errno::INVAL),
        (SOL_SOCKET, libc::SO_LINGER) => remember((int()? != 0).into()),
        (SOL_SOCKET, libc::SO_KEEPALIVE) => {
            let on = int()? != 0;
            keep_alive(socket, on.then(|| socket.options.lock().keepalive_s));
            remember(on.into())
        }
        (SOL_SOCKET, libc::SO_OOBINLINE) | (IPPROTO_TCP, libc::TCP_NODELAY) => {
            let on = int()? != 0;
            remember(on.into())
        }
        (IPPROTO_IP, libc::IP_TOS) => {
            let tos = int()?;
            id_option(socket, IdOption::Tos(tos as u8))?;
            remember(tos)
        }
        // The queue pair handles retries, and the device congestion.
        (
            IPPROTO_TCP,
            libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG | libc::TCP_CONGESTION,
        ) => Ok(()),
        (IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
            let seconds = u32::try_from(int()?)
                .ok()
                .filter(|seconds| *seconds > 0)
                .ok_or(Errno::INVAL)?;
            let is_on = {
                let mut options = socket.options.lock();
                options.keepalive_s = seconds;
                recall(&options, SOL_SOCKET, libc::SO_KEEPALIVE) != 0
            };
            if is_on {
                keep_alive(socket, Some(seconds));
            }
            Ok(())
        }
        (IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
            let on = int()? != 0;
            // The kernel permits it until the socket listens or connects.
            if !matches!(&*socket.state.lock(), State::Fresh(_)) {
                return Err(Errno::INVAL);
            }
            id_option(socket, IdOption::AfOnly(on))?;
            remember(on.into())
        }
        (SOL_RDMA, RDMA_ROUTE) => {
            if !is_early() {
                return Err(Errno::INVAL);
            }
            socket.options.lock().stream.route = Some(value.into());
            Ok(())
        }
        (SOL_RDMA, RDMA_SQSIZE | RDMA_RQSIZE | RDMA_INLINE | RDMA_IOMAPSIZE) => {
            let size = u32::try_from(int()?).map_err(|_| Errno::INVAL)?;
            let listens = matches!(&*socket.state.lock(), State::Listening(_));
            if !listens && !is_early() {
                return Err(Errno::INVAL);
            }
            let stream = &mut socket.options.lock().stream;
            let queue = size.min(QUEUE_MAX.into()) as u16;
            match name {
                RDMA_SQSIZE => stream.send_queue = queue,
                RDMA_RQSIZE => stream.receive_queue = queue,
                RDMA_INLINE => stream.inline = queue.into(),
                _ => stream.iomaps = unscale(scale(size.min(IOMAPS_MAX.into()) as u16)),
            }
            Ok(())
        }
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// Whether an option is the size of a buffer or a queue, which streams and datagram sockets have.
fn is_size(level: c_int, name: c_int) -> bool {
    match level {
        SOL_SOCKET => matches!(name, libc::SO_RCVBUF | libc::SO_SNDBUF),
        SOL_RDMA => matches!(
            name,
            RDMA_SQSIZE | RDMA_RQSIZE | RDMA_INLINE | RDMA_IOMAPSIZE
        ),
        _ => false,
    }
}

/// `rgetsockopt`.
///
/// # Errors
/// `EOPNOTSUPP` for an unknown option.
pub(crate) fn get(socket: &Rsocket, level: c_int, name: c_int) -> Result<Value> {
    if let Some(datagrams) = socket.datagrams().filter(|_| !is_size(level, name)) {
        return datagram::option(&datagrams, level, name).map(Value::Udp);
    }
    let remembered = || Value::Int(recall(&socket.options.lock(), level, name));
    let stream = || match &*socket.state.lock() {
        State::Connected(stream) => Some(stream.config()),
        _ => None,
    };
    let size = |of_stream: fn(&portolan_rsocket::Config) -> u32,
                of_options: fn(&Options) -> u32| {
        let size = stream().map_or_else(
            || of_options(&socket.options.lock()),
            |config| of_stream(&config),
        );
        Value::Int(size as c_int)
    };
    Ok(match (level, name) {
        (SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_KEEPALIVE | libc::SO_OOBINLINE)
        | (IPPROTO_IP, libc::IP_TOS)
        | (IPPROTO_TCP, libc::TCP_NODELAY)
        | (IPPROTO_IPV6, libc::IPV6_V6ONLY) => remembered(),
        (SOL_SOCKET, libc::SO_RCVBUF) => {
            size(|of| of.receive_buffer, |of| of.stream.receive_buffer)
        }
        (SOL_SOCKET, libc::SO_SNDBUF) => size(|of| of.send_buffer, |of| of.stream.send_buffer),
        // A socket lingers unless the program disables it.
        (SOL_SOCKET, libc::SO_LINGER) => {
            let options = socket.options.lock();
            let is_known = options
                .remembered
                .iter()
                .any(|(its, known, _)| (*its, *known) == (level, name));
            Value::Linger {
                is_on: !is_known || recall(&options, level, name) != 0,
            }
        }
        (SOL_SOCKET, libc::SO_ERROR) => Value::Int(take_error(socket)),
        (SOL_SOCKET, libc::SO_TYPE) => Value::Int(libc::SOCK_STREAM),
        (IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => Value::Int(1),
        (IPPROTO_TCP, libc::TCP_KEEPIDLE) => Value::Int(socket.options.lock().keepalive_s as c_int),
        (IPPROTO_TCP, libc::TCP_MAXSEG) => Value::Int(path_mtu(socket)),
        (IPPROTO_TCP, libc::TCP_INFO) => Value::TcpInfo {
            is_established: stream().is_some(),
            window: stream().map_or(0, |config| config.send_queue.into()),
        },
        (SOL_RDMA, RDMA_SQSIZE) => {
            size(|of| of.send_queue.into(), |of| of.stream.send_queue.into())
        }
        (SOL_RDMA, RDMA_RQSIZE) => size(
            |of| of.receive_queue.into(),
            |of| of.stream.receive_queue.into(),
        ),
        (SOL_RDMA, RDMA_INLINE) => size(|of| of.inline, |of| of.stream.inline),
        (SOL_RDMA, RDMA_IOMAPSIZE) => size(|of| of.iomaps.into(), |of| of.stream.iomaps.into()),
        (SOL_RDMA, RDMA_ROUTE) => Value::Route(route_of(socket)?),
        _ => return Err(Errno::OPNOTSUPP),
    })
}

/// The route that the program has set, otherwise the connection's.
fn route_of(socket: &Rsocket) -> Result<Vec<u8>> {
    if let Some(set) = &socket.options.lock().stream.route {
        return Ok(set.to_vec());
    }
    match &*socket.state.lock() {
        State::Connected(stream) => route::encode(&stream.id().paths().unwrap_or_default()),
        _ => Ok(Vec::new()),
    }
}

fn recall(options: &Options, level: c_int, name: c_int) -> c_int {
    let known = options
        .remembered
        .iter()
        .find(|(its, known, _)| (*its, *known) == (level, name));
    known.map_or(0, |(_, _, value)| *value)
}

/// Twice the requested size, as in socket(7).
fn doubled(bytes: c_int) -> Result<u32> {
    u32::try_from(bytes)
        .map(|bytes| bytes.saturating_mul(2))
        .map_err(|_| Errno::INVAL)
}

/// Sets an option of the id. Once connected, the socket only remembers it.
fn id_option(socket: &Rsocket, option: IdOption) -> Result<()> {
    match &*socket.state.lock() {
        State::Fresh(fresh) => fresh.set_option(option).map_err(|error| of_error(&error)),
        _ => Ok(()),
    }
}

fn keep_alive(socket: &Rsocket, seconds: Option<u32>) {
    let interval = seconds.map(|seconds| Duration::from_secs(seconds.into()));
    socket.options.lock().stream.keepalive = interval;
    if let State::Connected(stream) = &*socket.state.lock() {
        stream.set_keepalive(interval);
    }
}

/// `SO_ERROR`: returns and clears the error.
fn take_error(socket: &Rsocket) -> c_int {
    let mut state = socket.state.lock();
    // This stores the outcome of a connect.
    let _ = socket.go_on(&mut state);
    let of_stream = match &*state {
        State::Connected(stream) => stream.take_error().ok().flatten(),
        _ => None,
    };
    let noted = std::mem::take(&mut socket.options.lock().error);
    of_stream.map_or(noted, |error| super::errno::of_io(&error).raw_os_error())
}

fn path_mtu(socket: &Rsocket) -> c_int {
    /// librdmacm's value for a socket without a path.
    const UNKNOWN: c_int = 2048;
    let state = socket.state.lock();
    let State::Connected(stream) = &*state else {
        return UNKNOWN;
    };
    let paths = stream.id().paths().unwrap_or_default();
    paths
        .first()
        .map_or(UNKNOWN, |path| path.mtu.bytes() as c_int)
}

/// `rfcntl`.
///
/// # Errors
/// `EOPNOTSUPP` for an unknown command.
pub(crate) fn descriptor(socket: &Rsocket, command: c_int, argument: c_long) -> Result<c_int> {
    let argument = argument as c_int;
    match command {
        libc::F_GETFL => Ok(socket.status_flags.load(Ordering::Relaxed)),
        libc::F_SETFL => {
            socket.status_flags.store(argument, Ordering::Relaxed);
            socket.set_nonblocking(argument & libc::O_NONBLOCK != 0);
            Ok(0)
        }
        libc::F_GETFD => Ok(socket.descriptor_flags.load(Ordering::Relaxed)),
        libc::F_SETFD => {
            socket.descriptor_flags.store(argument, Ordering::Relaxed);
            Ok(0)
        }
        _ => Err(Errno::OPNOTSUPP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_as_long_as_their_structures() {
        assert_eq!(Value::Int(7).bytes(100).unwrap().len(), 4);
        assert_eq!(
            Value::Linger { is_on: true }.bytes(100).unwrap().len(),
            LINGER_BYTES
        );
        let info = Value::TcpInfo {
            is_established: true,
            window: 384,
        };
        assert_eq!(info.bytes(100).unwrap().len(), TCP_INFO_BYTES);
        let route = Value::Route(vec![7; 2 * route::PATH_BYTES]);
        assert_eq!(
            route.clone().bytes(route::PATH_BYTES - 1),
            Err(Errno::INVAL)
        );
        assert_eq!(
            route.bytes(route::PATH_BYTES + 5).unwrap().len(),
            route::PATH_BYTES
        );
    }
}
