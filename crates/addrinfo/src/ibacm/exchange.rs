//! One query to ibacm and its answer, within a deadline and on its own connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use portolan_provider::Cause;
use portolan_provider::error::errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with, sockopt,
};

use super::message::{self, Answer, MESSAGE_MAX};
use super::{PathRequest, Server};
use crate::sys::os_error;

/// Sends the query and waits for the answer until `timeout` has passed.
pub(super) fn ask(
    server: &Server,
    question: &PathRequest,
    transaction: u64,
    timeout: Duration,
) -> Result<Answer, Cause> {
    let request =
        message::request(question, transaction).ok_or_else(|| Cause::InvalidArgument {
            what: "path",
            expected: "fields that fit a path record".into(),
            found: "a larger one".into(),
        })?;
    let deadline = Deadline {
        at: Instant::now() + timeout,
        timeout,
    };
    let socket = open(server, &deadline)?;
    write(&socket, &request, &deadline)?;
    let answer = read(&socket, &deadline)?;
    message::read(&answer, question, transaction).map_err(garbled)
}

struct Deadline {
    at: Instant,
    timeout: Duration,
}

/// Opens a connection. A missing ibacm is reported as [`Cause::NoSuchObject`].
fn open(server: &Server, deadline: &Deadline) -> Result<OwnedFd, Cause> {
    let family = match server {
        Server::Unix(_) => AddressFamily::UNIX,
        Server::Tcp(_) => AddressFamily::INET,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)
        .map_err(os_error("socket (to ibacm)"))?;
    let connected = match server {
        Server::Unix(path) => match SocketAddrUnix::new(path) {
            Ok(address) => connect(&socket, &address),
            Err(errno) => Err(errno),
        },
        Server::Tcp(port) => connect(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, *port))),
    };
    let connected = match connected {
        Err(Errno::INPROGRESS | Errno::INTR) => {
            wait(&socket, PollFlags::OUT, deadline)?;
            let state = sockopt::socket_error(&socket);
            state.map_err(os_error("connect (to ibacm)"))?
        }
        other => other,
    };
    match connected {
        Ok(()) => Ok(socket),
        Err(Errno::NOENT | Errno::CONNREFUSED | Errno::ACCESS | Errno::PERM) => {
            Err(Cause::NoSuchObject("an ibacm"))
        }
        // The queue of the Unix socket is full: ibacm runs but accepts no connections.
        Err(Errno::AGAIN) => Err(deadline.missed()),
        Err(errno) => Err(os_error("connect (to ibacm)")(errno)),
    }
}

fn write(socket: &OwnedFd, mut bytes: &[u8], deadline: &Deadline) -> Result<(), Cause> {
    while !bytes.is_empty() {
        match send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
            Err(Errno::AGAIN) => wait(socket, PollFlags::OUT, deadline)?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(os_error("send (to ibacm)")(errno)),
        }
    }
    Ok(())
}

/// Reads a whole message.
fn read(socket: &OwnedFd, deadline: &Deadline) -> Result<Vec<u8>, Cause> {
    let mut bytes = [0; MESSAGE_MAX];
    let mut filled = 0;
    loop {
        let length = message::length(&bytes[..filled]);
        let wanted = match length.transpose().map_err(garbled)? {
            Some(length) if filled >= length => return Ok(bytes[..length].to_vec()),
            Some(length) => length,
            None => message::HEADER_LEN,
        };
        match recv(socket, &mut bytes[filled..wanted], RecvFlags::empty()) {
            Ok((_, 0)) => {
                let call = "recv (ibacm ended the connection within its answer)";
                let errno = errno::EPROTO;
                return Err(Cause::Os { call, errno });
            }
            Ok((_, received)) => filled += received,
            Err(Errno::AGAIN) => wait(socket, PollFlags::IN, deadline)?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(os_error("recv (from ibacm)")(errno)),
        }
    }
}

fn wait(socket: &OwnedFd, for_what: PollFlags, deadline: &Deadline) -> Result<(), Cause> {
    let left = deadline.at.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(deadline.missed());
    }
    let timeout = Timespec::try_from(left).unwrap_or_default();
    match poll(&mut [PollFd::new(socket, for_what)], Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(os_error("poll (ibacm)")(errno)),
    }
}

fn garbled(garbled: message::Garbled) -> Cause {
    let message::Garbled(why) = garbled;
    tracing::debug!(why, "an answer of ibacm's");
    Cause::Os {
        call: "ibacm's invalid answer",
        errno: errno::EPROTO,
    }
}

impl Deadline {
    fn missed(&self) -> Cause {
        Cause::TimedOut {
            after_ms: self.timeout.as_millis() as u64,
            retries: 0,
        }
    }
}
