//! Sockets and their states.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use portolan::datagram::Rsocket as Datagrams;
use portolan::provider::traits::{Mr, Provider};
use portolan::stream::{Connecting, Socket as Unconnected};
use portolan::{Stream, StreamListener, StreamOptions};
use portolan_kernel::KernelProvider;
use portolan_threads::lock::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::errno::{of_error, of_io};
use super::watchers;
use crate::fork::Known;
use crate::guard::Result;
use crate::verbs::rdma_cm;

pub(crate) struct Rsocket {
    pub(super) number: RawFd,
    pub(super) family: c_int,
    pub(super) state: Mutex<State>,
    pub(super) options: Mutex<Options>,
    nonblocking: AtomicBool,
    /// The flags set by `F_SETFL` and `F_SETFD`.
    pub(super) status_flags: AtomicI32,
    pub(super) descriptor_flags: AtomicI32,
    pub(super) mappings: Mutex<Vec<Mapping>>,
}

pub(super) enum State {
    /// Neither connected nor listening.
    Fresh(Unconnected),
    Listening(Arc<StreamListener>),
    Connecting(Box<Connecting>),
    /// The connect failed for this reason. The socket keeps its number until it is closed.
    Refused {
        _socket: Unconnected,
        errno: Errno,
    },
    Connected(Stream),
    /// A datagram socket in any state.
    Datagram(Arc<Datagrams>),
    /// The state while it changes, and after `rclose` or a panic.
    Changing,
}

/// The values of options, for `rgetsockopt`.
pub(super) struct Options {
    pub(super) stream: StreamOptions,
    /// Options without an effect, by level and name.
    pub(super) remembered: Vec<(c_int, c_int, c_int)>,
    pub(super) keepalive_s: u32,
    pub(super) error: c_int,
}

/// The provider of this library's streams, with the devices of the process's libibverbs.
pub(super) fn provider() -> Result<Arc<dyn Provider>> {
    static PROVIDER: Known<Mutex<Option<Arc<KernelProvider>>>> = Known::new();
    let mut known = PROVIDER.get().lock();
    if let Some(provider) = &*known {
        return Ok(provider.clone());
    }
    let opened = KernelProvider::of_process(rdma_cm()?).map_err(|error| of_error(&error))?;
    *known = Some(opened.clone());
    Ok(opened)
}

/// A mapped range of the program's memory.
pub(super) struct Mapping {
    pub(super) addr: usize,
    pub(super) length: usize,
    pub(super) region: Arc<dyn Mr>,
    /// The entry of the peer's iomap; `None` for memory that is only registered.
    pub(super) entry: Option<u16>,
}

impl Rsocket {
    pub(super) fn new(
        number: RawFd,
        family: c_int,
        state: State,
        stream: StreamOptions,
        is_nonblocking: bool,
    ) -> Self {
        let flags = if is_nonblocking { libc::O_NONBLOCK } else { 0 };
        Self {
            number,
            family,
            state: Mutex::new(state),
            options: Mutex::new(Options {
                stream,
                remembered: Vec::new(),
                keepalive_s: 7200,
                error: 0,
            }),
            nonblocking: AtomicBool::new(is_nonblocking),
            status_flags: AtomicI32::new(flags),
            descriptor_flags: AtomicI32::new(0),
            mappings: Mutex::default(),
        }
    }

    pub(crate) fn number(&self) -> RawFd {
        self.number
    }

    pub(super) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(super) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// The connected stream. Advances a connect; a blocking socket waits for it.
    ///
    /// # Errors
    /// `EAGAIN` while it connects; `ENOTCONN`; the reason why the connect failed.
    pub(super) fn stream(&self, is_nonblocking: bool) -> Result<Stream> {
        loop {
            let mut state = self.state.lock();
            match &*state {
                State::Connected(stream) => return Ok(stream.clone()),
                State::Connecting(_) => {}
                State::Refused { errno, .. } => return Err(*errno),
                State::Datagram(_) => return Err(Errno::OPNOTSUPP),
                State::Fresh(_) | State::Listening(_) | State::Changing => {
                    return Err(Errno::NOTCONN);
                }
            }
            if self.go_on(&mut state)? {
                continue;
            }
            if is_nonblocking {
                return Err(Errno::AGAIN);
            }
            self.wait(state);
        }
    }

    /// Advances a connect. Returns whether it is done.
    ///
    /// # Errors
    /// The failure, which is also stored in the state.
    pub(super) fn go_on(&self, state: &mut State) -> Result<bool> {
        let State::Connecting(connecting) = state else {
            return Ok(true);
        };
        match connecting.try_finish() {
            Ok(None) => Ok(false),
            Ok(Some(stream)) => {
                *state = State::Connected(stream);
                watchers::tell(self.number, u32::MAX);
                Ok(true)
            }
            Err(error) => {
                let errno = of_error(&error);
                let socket = connecting.socket();
                self.refuse(state, socket, errno);
                Err(errno)
            }
        }
    }

    pub(super) fn refuse(&self, state: &mut State, socket: Unconnected, errno: Errno) {
        *state = State::Refused {
            _socket: socket,
            errno,
        };
        self.options.lock().error = errno.raw_os_error();
        watchers::tell(self.number, u32::MAX);
    }

    /// Waits until the connect can advance.
    fn wait(&self, state: MutexGuard<'_, State>) {
        let State::Connecting(connecting) = &*state else {
            return;
        };
        let left = connecting
            .deadline()
            .saturating_duration_since(Instant::now());
        // Only `rclose` closes the descriptor. Duplicate it, because that could happen during this call.
        let Ok(fd) = connecting.as_fd().try_clone_to_owned() else {
            return;
        };
        drop(state);
        let left = Timespec::try_from(left.min(Duration::from_secs(1))).unwrap_or_default();
        let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left));
    }

    /// The datagram socket, if it is one.
    pub(super) fn datagrams(&self) -> Option<Arc<Datagrams>> {
        match &*self.state.lock() {
            State::Datagram(datagrams) => Some(datagrams.clone()),
            _ => None,
        }
    }

    /// The listener.
    ///
    /// # Errors
    /// `EBADF` if the socket does not listen, as in librdmacm; `EOPNOTSUPP` for a datagram socket.
    pub(super) fn listener(&self) -> Result<Arc<StreamListener>> {
        match &*self.state.lock() {
            State::Listening(listener) => Ok(listener.clone()),
            State::Datagram(_) => Err(Errno::OPNOTSUPP),
            _ => Err(Errno::BADF),
        }
    }

    /// Takes a stream from the listener.
    ///
    /// # Errors
    /// `EAGAIN` if no connection is waiting and the socket is non-blocking.
    pub(super) fn accept(&self) -> Result<Self> {
        let listener = self.listener()?;
        let (stream, _) = loop {
            match listener.accept() {
                Ok(accepted) => break accepted,
                Err(error)
                    if error.kind() == std::io::ErrorKind::WouldBlock && !self.is_nonblocking() =>
                {
                    let fd = listener.as_fd();
                    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], None) {
                        Ok(_) => {}
                        Err(errno) => return Err(errno),
                    }
                }
                Err(error) => return Err(of_io(&error)),
            }
        };
        let number = stream.number().as_raw_fd();
        let options = listener.options();
        let state = State::Connected(stream);
        Ok(Self::new(
            number,
            self.family,
            state,
            options,
            self.is_nonblocking(),
        ))
    }
}
