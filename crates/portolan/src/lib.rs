//! RDMA connections in Rust, on any Linux machine, with or without RDMA hardware.
//!
//! ```no_run
//! use portolan::Connector;
//!
//! let connection = Connector::new().connect("localhost:7471")?;
//! connection.send(b"ahoy".to_vec())?.wait()?;
//! println!("{:?}", &connection.receive()?[..]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Without RDMA hardware, connections use the software device: RoCEv2 in user space over UDP port 4791. It needs no root,
//! no kernel module and no daemon.
//!
//! # A tutorial
//!
//! **1. Listen and connect.** A [`Listener`] accepts or rejects requests, a [`Connector`] makes them. Each has one deadline, in
//! [`Options`]. All steps below run between these two ends:
//!
//! ```
//! use portolan::{Connector, Listener};
//!
//! let listener = Listener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr()?;
//! let client = std::thread::spawn(move || Connector::new().connect_to(address));
//! let server = listener.accept()?.accept()?;
//! let client = client.join().unwrap()?;
//! # drop((server, client));
//! # Ok::<(), portolan::Error>(())
//! ```
//!
//! **2. Messages.** [`Connection::send`] posts a message; the [`Transfer`] that it returns is waited for. The peer has receives
//! posted already, [`Options::receive_depth`] of them:
//!
//! ```
//! # let (server, client) = portolan::doc_pair()?;
//! let transfer = client.send(b"ahoy".to_vec())?;
//! assert_eq!(&server.receive()?[..], b"ahoy");
//! transfer.wait()?;
//! # Ok::<(), portolan::Error>(())
//! ```
//!
//! **3. Buffers come back.** Posting takes memory by value, and the end of the work gives it back, whether it succeeded
//! ([`Done`]) or not ([`Failed`]). So it can be neither freed nor changed meanwhile. A [`Buffer`] is registered once and used
//! again and again:
//!
//! ```
//! # let (server, client) = portolan::doc_pair()?;
//! let mut buffer = client.buffer(64)?;
//! for round in 0..3 {
//!     buffer.fill(round);
//!     buffer = client.send(buffer)?.wait()?.buffer;
//!     assert_eq!(server.receive()?[..], [round; 64]);
//! }
//! # Ok::<(), portolan::Error>(())
//! ```
//!
//! **4. Your own memory.** Vectors, boxes, `BytesMut` and mapped files become buffers without copying, and slices and gather
//! lists of them are sent as one message ([`Gather`]):
//!
//! ```
//! # use portolan::Buffer;
//! # let (server, client) = portolan::doc_pair()?;
//! let mut body = Buffer::from(b"a longer text".to_vec());
//! let tail = body.split_off(9);
//! let done = client.send(vec![Buffer::from(b"head: ".to_vec()), tail])?.wait()?;
//! assert_eq!(&server.receive()?[..], b"head: text");
//! # Ok::<(), portolan::Error>(())
//! ```
//!
//! **5. Reads and writes.** [`SharedMemory`] is what peers may reach without this program's doing. It tells them where it is
//! ([`RemoteMemory`]):
//!
//! ```
//! use portolan::{Access, RemoteMemory};
//! # let (server, client) = portolan::doc_pair()?;
//!
//! let chart = server.share(16, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
//! server.send(chart.remote().to_bytes().to_vec())?.wait()?;
//!
//! let remote = RemoteMemory::from_bytes(&client.receive()?).expect("an offer");
//! client.write(b"seven fathoms...".to_vec(), remote)?.wait()?;
//! let depth = client.read(client.buffer(5)?, remote)?.wait()?.buffer;
//! assert_eq!(&depth[..], b"seven");
//! # Ok::<(), portolan::Error>(())
//! ```
//!
//! **6. Atomics.** [`Connection::fetch_add`] and [`Connection::compare_swap`] change a word of the peer's:
//!
//! ```
//! # use portolan::Access;
//! # let (server, client) = portolan::doc_pair()?;
//! let counter = server.share(8, Access::REMOTE_ATOMIC)?;
//! let done = client.fetch_add(client.buffer(8)?, counter.remote(), 5)?.wait()?;
//! assert_eq!(done.original(), Some(0));
//! # Ok::<(), portolan::Error>(())
//! ```
//!
//! **7. Who reaches what.** A [`Domain`] is a scope: its memory is reached by peers of its connections alone. A listener's
//! domain works on every device on which requests arrive ([`Listener::domain`]).
//!
//! **8. Errors.** An [`Error`] has the step, the cause, both addresses and the device. [`Error::is_timeout`],
//! [`Error::is_disconnected`] and [`Error::is_limit`] say what to do; it converts into [`std::io::Error`]. What can be checked
//! is checked before it is posted, and costs no connection:
//!
//! ```
//! # use portolan::Access;
//! # let (server, client) = portolan::doc_pair()?;
//! let chart = server.share(16, Access::REMOTE_WRITE)?;
//! let failed = client.write(vec![0; 17], chart.remote()).unwrap_err();
//! assert!(failed.error.to_string().contains("17 bytes does not fit into the 16 bytes"));
//! assert_eq!(failed.buffer.unwrap().len(), 17);
//! # Ok::<(), portolan::Error>(())
//! ```
//!
//! **9. Time limits.** [`Transfer::wait_within`] returns the transfer if the time is over. Its work goes on, and it is waited
//! for again:
//!
//! ```
//! # use std::time::Duration;
//! # let (server, client) = portolan::doc_pair()?;
//! let mut receiving = client.post_receive(client.buffer(64)?)?;
//! receiving = receiving.wait_within(Duration::from_millis(1)).unwrap_err();
//! # let options = portolan::Options::default();
//! # for _ in 0..options.receive_depth { server.send(b"".to_vec())?; }
//! server.send(b"at last".to_vec())?.wait()?;
//! assert_eq!(receiving.wait()?.length, 7);
//! # Ok::<(), portolan::Error>(())
//! ```
//!
//! **10. Tasks.** `portolan::tokio` (the feature of that name) awaits all of this; other runtimes wait for a descriptor
//! ([`Connection::readiness`]).
//!
//! The programs in `examples/` put these steps together: a
//! key-value store that is read one-sidedly, remote procedure calls, a file copy, a chat, a work queue.
//!
//! # What most programs need
//!
//! * [`Listener`] and [`Connector`] make a [`Connection`], which sends and receives messages and reads and writes remote
//!   memory. Each call takes a deadline from [`Options`].
//! * [`Buffer`] and [`SharedMemory`] are memory that a device may touch. A peer reaches a [`SharedMemory`] by its
//!   [`RemoteMemory`].
//! * [`Stream`] and [`StreamListener`] are byte streams, used as `TcpStream` and `TcpListener` are.
//! * [`datagram`] has sockets for messages of one packet, to services and to multicast groups.
//! * [`resolve()`] finds addresses, sources, routes and devices, as `rdma_getaddrinfo(3)` does.
//! * [`devices`](devices()) lists the RDMA devices.
//! * `tokio` (the feature of that name) has the awaitable forms.
//!
//! # For experts
//!
//! * [`cm`]: event channels, ids and events with the semantics of `rdma_cm(7)`.
//! * [`provider`]: which provider serves, and the types and traits of providers, verbs included.
//! * [`software`]: the software device's settings, counters and survey of the processes that share the port.
//! * [`infiniband`]: connections between InfiniBand ports over management datagrams.
//! * [`reach`]: whether a GID can be reached, as `ibv_gid_reachable(3)`.
//! * [`sa`] and [`wire`]: the subnet administrator's client, and the formats of packets.

mod address_turn;
pub mod cm;
pub mod connection;
pub mod datagram;
mod deadline;
pub mod device;
mod domain;
pub mod infiniband;
pub mod provider;
pub mod reach;
mod ready_set;
pub mod resolve;
pub mod software;
pub mod stream;
mod sys;
#[cfg(feature = "tokio")]
pub mod tokio;
pub mod work;

pub use connection::{
    Batch, Connection, Connector, Incoming, Listener, Options, Readiness, Request, Unposted,
};
pub use device::devices;
pub use domain::Domain;
pub use portolan_provider::verbs::Access;
pub use portolan_provider::{Cause, Error, Result, Step};
pub use portolan_sa as sa;
pub use portolan_wire as wire;
pub use resolve::resolve;
pub use stream::{Stream, StreamListener, StreamOptions};
pub use sys::{BUFFER_MAX_BYTES, Buffer, Memory, RemoteMemory, SharedMemory};
pub use work::{Done, Failed, Gather, Keepalive, Message, Transfer};

/// Both ends of a connection, for the examples of the documentation: the passive one, the active one.
#[doc(hidden)]
pub fn doc_pair() -> Result<(Connection, Connection)> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let client = std::thread::spawn(move || Connector::new().connect_to(address));
    let server = listener.accept()?.accept()?;
    match client.join() {
        Ok(client) => Ok((server, client?)),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
