//! Processes that share a listening socket.
//!
//! One of them has the rsocket listener and waits at a Unix socket, whose name contains the address. Each other one keeps a
//! connection to it.

#![allow(unsafe_code, reason = "an option of a socket")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};

use portolan_port_sharing::room::aside;
use portolan_threads::lock::Mutex;
use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, shutdown, socket_with,
};
use rustix::process::{Pid, geteuid, test_kill_process};

use crate::background::{Place, Task, make_aside};
use crate::backlog::Backlog;

/// Maximum of other processes that a process knows of.
const SHARERS_MAX: usize = 64;
/// How many callers to accept before looking at something else.
const BATCH: usize = 16;

/// Waits for the other processes.
pub(crate) struct Host {
    socket: OwnedFd,
    place: OnceLock<Place>,
    /// Connections of other processes, by their places.
    sharers: Mutex<BTreeMap<u64, (OwnedFd, Place)>>,
    backlog: OnceLock<Weak<Backlog>>,
    this: Weak<Self>,
}

impl Host {
    /// Takes the name for an address.
    ///
    /// # Errors
    /// Another process has the name; no descriptor or thread is left.
    pub(crate) fn new(address: SocketAddr) -> Result<Arc<Self>> {
        let socket = unix_socket()?;
        bind(&socket, &name(address)?)?;
        listen(&socket, BATCH as i32)?;
        Ok(Arc::new_cyclic(|this| Self {
            socket,
            place: OnceLock::new(),
            sharers: Mutex::default(),
            backlog: OnceLock::new(),
            this: this.clone(),
        }))
    }

    /// Begins to tell a backlog whether there are others.
    ///
    /// # Errors
    /// No thread is left.
    pub(crate) fn serve(&self, backlog: &Arc<Backlog>) -> Result<()> {
        let _ = self.backlog.set(Arc::downgrade(backlog));
        let place = Place::new(self.this.clone())?;
        self.place.get_or_init(|| place).watch(&self.socket)
    }

    /// Accepts a batch of callers, and goes on to wait.
    fn accept_some(&self, own: &Place) {
        for _ in 0..BATCH {
            match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(caller) => self.admit(caller),
                Err(Errno::AGAIN) => break,
                // No descriptor is left, for example.
                Err(_) => return own.put_off(),
            }
        }
        if own.watch(&self.socket).is_err() {
            own.put_off();
        }
    }

    fn admit(&self, caller: OwnedFd) {
        let mut sharers = self.sharers.lock();
        if !process_of(&caller).is_some_and(is_trusted) || sharers.len() >= SHARERS_MAX {
            return;
        }
        let caller = aside(caller);
        let place = Place::new(self.this.clone());
        // Readable when the other process ends it.
        if let Ok(place) = place.and_then(|place| place.watch(&caller).map(|()| place)) {
            sharers.insert(place.number(), (caller, place));
        }
    }
}

impl Task for Host {
    fn ready(&self, place: u64) {
        match self.place.get() {
            Some(own) if own.number() == place => self.accept_some(own),
            _ => drop(self.sharers.lock().remove(&place)),
        }
        let is_shared = !self.sharers.lock().is_empty();
        if let Some(backlog) = self.backlog.get().and_then(Weak::upgrade) {
            backlog.set_shared(is_shared);
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Closing is not enough: a forked child has copies.
        let _ = shutdown(&self.socket, Shutdown::Both);
        for (caller, _) in self.sharers.lock().values() {
            let _ = shutdown(caller, Shutdown::Both);
        }
    }
}

/// This process shares a listening socket with the one that has the rsocket listener, until this is dropped.
pub(crate) struct Guest {
    connection: OwnedFd,
    /// The process that has the listener; `None` in another pid namespace.
    host: Option<Pid>,
}

impl Guest {
    /// Tells the process that has the name for an address. `None` if that has ended, and only a child has kept the name, or if
    /// it is a stranger.
    pub(crate) fn announce(address: SocketAddr) -> Option<Self> {
        let connection = unix_socket().ok()?;
        connect(&connection, &name(address).ok()?).ok()?;
        // The one that began to listen (unix(7)).
        let host = process_of(&connection)?;
        let guest = Self {
            connection,
            host: Pid::from_raw(host.pid),
        };
        (is_trusted(host) && !guest.is_over()).then_some(guest)
    }

    /// Whether the other process has ended, or listens no more.
    pub(crate) fn is_over(&self) -> bool {
        let has_ended = |host| test_kill_process(host) == Err(Errno::SRCH);
        // It sends nothing.
        rustix::io::read(&self.connection, &mut [0u8; 1]) != Err(Errno::AGAIN)
            || self.host.is_some_and(has_ended)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // As for the host.
        let _ = shutdown(&self.connection, Shutdown::Both);
    }
}

/// Whether it is another process, of this user or of root. Anybody can use a name without a file.
fn is_trusted(other: libc::ucred) -> bool {
    let is_own = other.pid == std::process::id().cast_signed();
    !is_own && (other.uid == 0 || other.uid == geteuid().as_raw())
}

/// The process at the other end.
fn process_of(socket: &OwnedFd) -> Option<libc::ucred> {
    let mut found = libc::ucred {
        pid: 0,
        uid: libc::uid_t::MAX,
        gid: libc::gid_t::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to a `ucred` and its length.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut found).cast(),
            &mut length,
        )
    };
    (answer == 0).then_some(found)
}

fn unix_socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    make_aside(|| socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None))
}

fn name(address: SocketAddr) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("portolan-sockets/{address}").as_bytes())
}
