//! Processes that share a listening socket.
//!
//! One of them has the rsocket listener. The others tell it that they are there: they connect to a Unix socket, whose name
//! contains the port.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};

use rustix::io::{Errno, Result};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use rustix::process::geteuid;

use crate::background::{Place, Task};
use crate::backlog::Backlog;

/// Waits for other processes' calls of [`tell`].
pub(crate) struct Marker {
    socket: OwnedFd,
    place: OnceLock<Place>,
    backlog: Weak<Backlog>,
}

impl Marker {
    /// Waits on behalf of the listener at `port`.
    ///
    /// # Errors
    /// Another process has the name; no descriptor or thread is left.
    pub(crate) fn start(port: u16, backlog: &Arc<Backlog>) -> Result<Arc<Self>> {
        let socket = unix_socket()?;
        bind(&socket, &name(port)?)?;
        listen(&socket, 16)?;
        let marker = Arc::new(Self {
            socket,
            place: OnceLock::new(),
            backlog: Arc::downgrade(backlog),
        });
        let of_marker = Arc::downgrade(&marker);
        let place = Place::new(of_marker)?;
        let place = marker.place.get_or_init(|| place);
        place.watch(&marker.socket)?;
        Ok(marker)
    }
}

impl Task for Marker {
    fn ready(&self, _: u64) {
        while let Ok(caller) = accept_with(&self.socket, SocketFlags::CLOEXEC) {
            let backlog = self.backlog.upgrade();
            if is_trusted(&caller)
                && let Some(backlog) = backlog
            {
                backlog.share();
            }
        }
        if let Some(place) = self.place.get() {
            place.watch_again(&self.socket);
        }
    }
}

/// Tells the process that has the rsocket listener at `port` that this process accepts there, too.
pub(crate) fn tell(port: u16) {
    // Fails if an rdma_cm program has the port.
    let _ = unix_socket().and_then(|socket| connect(&socket, &name(port)?));
}

/// Whether a caller is of this user or root. Anybody can connect to a name without a file.
fn is_trusted(caller: &OwnedFd) -> bool {
    let caller = socket_peercred(caller).map(|caller| caller.uid);
    caller.is_ok_and(|user| user.is_root() || user == geteuid())
}

fn unix_socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn name(port: u16) -> std::result::Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("portolan-sockets/{port}").as_bytes())
}
