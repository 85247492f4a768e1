//! Measures a chain of five sleeping threads in two processes that wake each other. This is the chain of a
//! connect between programs that wait in event loops, and a yardstick for programs that wait in the library.
//!
//! The caller's request wakes the thread that holds the peer's port (1), which wakes the
//! listening program (2). Its reply goes back to the port's thread (3), which passes it to the caller's own thread (4),
//! which wakes the caller (5). Here each passes on one byte.

use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use super::PATIENCE;

/// A byte for the listening program.
const REQUEST: u8 = 0;
/// A byte for the caller.
const REPLY: u8 = 1;

/// The caller's end.
#[derive(Debug)]
pub(super) struct Relay {
    socket: UdpSocket,
    /// Replies forwarded by the caller's own thread.
    replies: Receiver<()>,
}

impl Relay {
    /// Connects to the chain that [`serve`] started at the peer.
    ///
    /// # Errors
    ///
    /// A socket cannot be created.
    pub(super) fn to(peer: SocketAddr) -> Result<Relay> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(peer)?;
        let own = socket.try_clone()?;
        let (replied, replies) = mpsc::channel();
        // Ends with the process, or at the first reply without a receiver.
        thread::Builder::new().spawn(move || {
            while own.recv(&mut [0]).is_ok() && replied.send(()).is_ok() {}
        })?;
        Ok(Relay { socket, replies })
    }

    /// Runs the chain once.
    ///
    /// # Errors
    ///
    /// The peer is gone or does not answer in time.
    pub(super) fn turn(&self) -> Result<()> {
        self.socket.send(&[REQUEST])?;
        self.replies
            .recv_timeout(PATIENCE)
            .map_err(|error| Error::new(ErrorKind::TimedOut, error))
    }
}

/// Starts the peer's two threads, which end with the process.
///
/// # Errors
///
/// A socket cannot be created.
pub(super) fn serve(port: &UdpSocket) -> Result<()> {
    let port = port.try_clone()?;
    let to_port = port.local_addr()?;
    let program = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let (requested, requests) = mpsc::channel();
    thread::Builder::new().spawn(move || pass_on(&port, &requested))?;
    thread::Builder::new().spawn(move || {
        while requests.recv().is_ok() && program.send_to(&[REPLY], to_port).is_ok() {}
    })?;
    Ok(())
}

/// The loop of the port's thread.
fn pass_on(port: &UdpSocket, requested: &Sender<()>) -> Result<()> {
    let mut caller = None;
    loop {
        let mut byte = [0];
        let (_, from) = port.recv_from(&mut byte)?;
        if byte == [REQUEST] {
            caller = Some(from);
            requested.send(()).map_err(Error::other)?;
        } else if let Some(caller) = caller {
            port.send_to(&byte, caller)?;
        }
    }
}
