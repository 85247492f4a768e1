//! Datagrams: single-packet messages to any queue pair or multicast group, which may be lost.
//!
//! A [`Socket`] owns a UD queue pair with its buffers. Connect it to a service
//! ([`Socket::connect`], which requests the service's queue pair by service id resolution), or join
//! it to a multicast group ([`Socket::join`]). A [`Service`] is the other side of `connect`: it
//! answers resolution requests and receives the clients' datagrams.
//!
//! An [`Rsocket`] is the datagram socket of `rsocket(7)`, for peers that speak its protocol.
//!
//! ```
//! use portolan::datagram::{Arrival, Options, Service, Socket};
//! use std::time::Duration;
//!
//! let mut service = Service::bind("127.0.0.1:0", &Options::default())?;
//! let address = service.local_addr()?.to_string();
//! # let server =
//! std::thread::spawn(move || -> portolan::Result<()> {
//!     loop {
//!         match service.next_within(Duration::from_secs(10))? {
//!             Arrival::Asked { peer, .. } => println!("{peer:?} has asked for the queue pair"),
//!             Arrival::Failed(error) => return Err(error),
//!             Arrival::Datagram { datagram, qpn } => {
//!                 let client = service.sender(&datagram, qpn)?;
//!                 service.send(qpn, &client, &datagram.data, None)?;
//! #               return Ok(());
//!             }
//!             _ => {}
//!         }
//!     }
//! });
//!
//! let (mut socket, found) = Socket::connect(&address, &Options::default())?;
//! socket.send(&found.destination, b"ahoy", None)?;
//! let answer = socket.receive_within(Duration::from_secs(10))?;
//! assert_eq!(answer.data, b"ahoy");
//! assert_eq!((answer.source, answer.source_qpn), (found.address.ip(), found.destination.qpn));
//! # server.join().unwrap()?;
//! # Ok::<(), portolan::Error>(())
//! ```

mod attempt;
mod queues;
mod received;
mod rsocket;
mod service;
mod socket;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use portolan_provider::cm::JoinKind;
use portolan_provider::verbs::{Ah, UdDestination};
pub use portolan_wire::addr::{QKey, Qpn};

use crate::setters::setters;
#[cfg(feature = "tokio")]
pub(crate) use attempt::{Joining, Question};
pub use received::Datagram;
pub use rsocket::Rsocket;
pub use service::{Arrival, Service};
pub use socket::{Joined, Reached, Socket};

/// Sizes and limits of a datagram socket. (Those of a connection are [`Options`](crate::Options).)
///
/// ```
/// use portolan::datagram::Options;
///
/// let options = Options::default().receive_depth(1024).private_data(*b"a pilot");
/// assert_eq!((options.send_depth, options.receive_depth), (64, 1024));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Maximum number of datagrams queued for sending. Default: 64.
    pub send_depth: u32,
    /// Maximum number of received datagrams to queue; further ones are lost. Default: 256.
    pub receive_depth: u32,
    /// Private data of the request or its answer: at most 180 bytes in a request, 136 in an answer.
    /// Default: none.
    pub private_data: Vec<u8>,
    /// Deadline for the whole connect or join. Default: 10 s.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            send_depth: 64,
            receive_depth: 256,
            private_data: Vec::new(),
            timeout: Duration::from_secs(10),
        }
    }
}

setters! {
    Options {
        send_depth: u32,
        receive_depth: u32,
        private_data: impl Into<Vec<u8>>,
        timeout: Duration,
    }
}

/// Destination of datagrams: a queue pair of a host, or a multicast group.
///
/// [`Socket::connect`] finds that of a service, [`Socket::join`] that of a group, and [`Socket::sender`] and
/// [`Service::sender`] that of a datagram's sender. The [module](self) has an example.
#[derive(Clone)]
pub struct Destination {
    ah: Arc<dyn Ah>,
    /// Queue pair; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// Q_Key to send with.
    pub qkey: QKey,
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Destination")
            .field("gid", &self.ah.attr().dgid)
            .field("qpn", &self.qpn)
            .field("qkey", &self.qkey)
            .finish()
    }
}

impl Destination {
    fn verbs(&self) -> UdDestination<'_> {
        UdDestination {
            ah: &*self.ah,
            qpn: self.qpn,
            qkey: self.qkey,
        }
    }
}
