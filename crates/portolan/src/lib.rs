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
//! Without RDMA hardware, connections use the software device: RoCEv2 in user space over UDP port 4791. It needs no
//! root, no kernel module and no daemon.
//!
//! # A tutorial
//!
//! **1. Listen and connect.** A [`Listener`] accepts or rejects requests, a [`Connector`] makes them.
//! [`Options::timeout`] limits the whole connect, or the whole accept of one request. All steps below run between
//! these two ends:
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
//! **2. Messages.** [`Connection::send`] posts a message and returns a [`Transfer`] to wait for. The peer has
//! receives posted already, [`Options::receive_depth`] of them:
//!
//! ```
//! # let (server, client) = portolan::doc_pair()?;
//! let transfer = client.send(b"ahoy".to_vec())?;
//! assert_eq!(&server.receive()?[..], b"ahoy");
//! transfer.wait()?;
//! # Ok::<(), portolan::Error>(())
//! ```
//!
//! **3. Buffers come back.** Posting takes memory by value. When the work ends, it returns the memory, whether the
//! work succeeded ([`Done`]) or failed ([`Failed`]). So the program can neither free nor change it meanwhile. A
//! [`Buffer`] is registered once and can be used many times:
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
//! **4. Your own memory.** Vectors and boxes become buffers without copying, and with [features](#features) `BytesMut`
//! and mapped files. Slices of
//! buffers, and lists of them ([`Gather`]), are sent as one message:
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
//! **5. Reads and writes.** Peers can access [`SharedMemory`] without this program's help. Send them its address and
//! key ([`RemoteMemory`]):
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
//! **6. Atomics.** [`Connection::fetch_add`] and [`Connection::compare_swap`] change a word of the peer's memory:
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
//! **7. Scopes.** Only peers of a [`Domain`]'s connections can access its memory. A listener's domain works on every
//! device on which requests arrive ([`Listener::domain`]). A [`Window`] opens a part of the memory to one connection's peer
//! alone, until it is closed:
//!
//! ```
//! # use portolan::Access;
//! # let (server, client) = portolan::doc_pair()?;
//! let ledger = server.share(4096, Access::MW_BIND)?;
//! let window = server.open_window(&ledger, 0..64, Access::REMOTE_READ)?;
//! let page = client.read(client.buffer(64)?, window.remote())?.wait()?.buffer;
//! window.close()?;
//! # Ok::<(), portolan::Error>(())
//! ```
//!
//! **8. Errors.** An [`Error`] contains the step, the cause, both addresses and the device. [`Error::is_timeout`],
//! [`Error::is_disconnected`] and [`Error::is_limit`] classify it, and it converts to [`std::io::Error`]. Whatever
//! can be checked is checked before posting, so such an error does not end the connection:
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
//! **9. Time limits.** [`Transfer::wait_within`] returns the transfer if the time is over. Its work continues, and
//! you can wait for it again:
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
//! [`Transfer::abandon`] leaves the work to the connection, and so does dropping a future of `tasks`. The program gets it
//! and its buffer back later, by its tag if it has one ([`Transfer::tagged`], [`Connection::take_abandoned_tagged`]).
//!
//! **10. Tasks.** `portolan::tasks` (the feature `tokio`) has async forms of all of this. Other runtimes wait for a
//! descriptor ([`Connection::readiness`]).
//!
//! The [programs in the folder `examples`](examples) combine these steps: [`key_value`](examples::key_value) (one-sided
//! reads), [`file_copy`](examples::file_copy), [`rpc`](examples::rpc), [`chat`](examples::chat) (multicast),
//! [`http`](examples::http) and others.
//!
//! # Features
//!
//! None is enabled by default.
//!
//! | feature | adds |
//! |---|---|
//! | `tokio` | the module `tasks`; methods whose name ends in `_async` ([`Connector`], [`Incoming`]); `AsyncStream` and `AsyncStreamListener` in [`stream`] |
//! | `bytes` | `bytes::BytesMut` and `bytes::Bytes` as memory ([`Memory`]) |
//! | `memmap2` | `memmap2::MmapMut` and `memmap2::Mmap` as memory; mapping a file is `unsafe` in that crate |
//!
//! ```toml
//! [dependencies]
//! portolan = { path = "portolan/crates/portolan", features = ["tokio"] } # a checkout
//! ```
//!
//! # Stability
//!
//! * Options have a default and setters, and errors and results can get more fields, so that new ones break no program.
//! * The traits of providers and of memory are sealed: programs call them, and only Portolan implements them.
//! * Types of other crates are in public signatures only with the feature of that crate, and only types of tokio 1,
//!   bytes 1 and memmap2 0.9.
//! * No name here hides one of the standard library's prelude or a crate: `use portolan::*` is safe.
//!
//! # What most programs need
//!
//! * [`Listener`] and [`Connector`] create a [`Connection`], which sends and receives messages, and reads and writes
//!   remote memory. [`Options::timeout`] limits connecting and accepting. Later calls wait without a limit: the
//!   `…_within` forms take one, and a [`Keepalive`] ends the wait for a dead peer.
//! * [`Buffer`] and [`SharedMemory`] are memory that a device may access. A peer uses a [`RemoteMemory`] to access a
//!   [`SharedMemory`].
//! * [`Stream`] and [`StreamListener`] are byte streams, with the interface of `TcpStream` and `TcpListener`.
//! * [`datagram`] has sockets for messages of one packet, to services and to multicast groups.
//! * [`resolve()`] finds addresses, sources, routes and devices, like `rdma_getaddrinfo(3)`.
//! * [`devices`](devices()) lists the software devices, or those of the pinned provider.
//!   [`provider::kernel_provider`] has those of the kernel.
//! * `tasks` (the feature `tokio`) has the async forms of connections, events and datagrams, and [`stream`] those of
//!   streams. [`Connector`] and [`Incoming`] themselves connect and accept asynchronously, and
//!   [`resolve_async`](resolve::resolve_async) resolves with any runtime.
//!
//! Some words have one meaning for each module: [`Options`] is for connections and [`datagram::Options`] for
//! datagrams, [`Request`] is work to post and [`resolve::Request`] a name to resolve. A peer's connection request is an
//! [`Incoming`].
//!
//! # For experts
//!
//! * [`cm`]: event channels, ids and events with the semantics of `rdma_cm(7)`.
//! * [`provider`]: the choice of provider, and the types and traits of providers, including verbs.
//! * [`software`]: the software device's settings, counters and survey of the processes that share the port.
//! * [`infiniband`]: connections between InfiniBand ports over management datagrams.
//! * [`reach`]: whether a GID is reachable, like `ibv_gid_reachable(3)`.
//! * [`sa`] and [`wire`]: the subnet administrator's client, and the formats of packets.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod bell;
pub mod cm;
pub mod connection;
pub mod datagram;
mod deadline;
pub mod device;
mod domain;
// Not for doctests: cargo builds and runs the programs as examples.
#[cfg(all(doc, not(doctest)))]
pub mod examples;
pub mod infiniband;
mod lease;
pub mod provider;
pub mod reach;
mod ready_set;
pub mod resolve;
mod setters;
pub mod software;
pub mod stream;
mod sys;
#[cfg(feature = "tokio")]
pub mod tasks;
pub mod work;

pub use connection::{
    Batch, Connection, Connector, Incoming, ListenOptions, Listener, Options, Readiness, Request,
    Transport, Unposted, Window,
};
pub use device::devices;
pub use domain::Domain;
/// The cause of an [`Error`], for programs that need more than [`Error::is_disconnected`] and its likes say:
///
/// ```
/// use portolan::Cause;
/// # use portolan::{Connector, Listener};
///
/// # let mut config = portolan::software::SoftwareConfig::default();
/// # config.stack.group.port = 14_794;
/// # config.stack.group.name_prefix = "example-of-causes".into();
/// # let provider = portolan::software::SoftwareProvider::start(config)?;
/// # let listener = Listener::bind_on(provider.clone(), "127.0.0.1:0".parse().unwrap())?;
/// # let connector = Connector::new().provider(provider);
/// # let address = listener.local_addr()?;
/// # let server = std::thread::spawn(move || -> portolan::Result<()> {
/// listener.accept()?.reject(b"full until noon") // in another process
/// # });
/// # ;
/// let error = connector.connect_to(address).unwrap_err();
/// # server.join().unwrap()?;
/// let Cause::Rejected { private_data, .. } = &error.cause else {
///     return Err(error);
/// };
/// assert_eq!(private_data.without_padding(), b"full until noon");
/// assert!(error.to_string().contains(r#"15 bytes of private data: "full until noon""#), "{error}");
/// # Ok::<(), portolan::Error>(())
/// ```
pub use portolan_provider::Cause;
/// What calls fail with.
///
/// ```
/// use portolan::{Connector, Step};
///
/// // Nothing listens there.
/// let error = Connector::new().connect("127.0.0.1:9").unwrap_err();
/// assert_eq!(error.step, Step::Connect);
/// assert!(error.is_refused() && !error.is_timeout());
/// // One line with the step, the cause, both addresses and the device.
/// assert!(error.to_string().contains("127.0.0.1:9"), "{error}");
///
/// let error = std::io::Error::from(error);
/// assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
/// ```
pub use portolan_provider::Error;
/// What peers may do with shared memory ([`Connection::share`]).
///
/// ```
/// use portolan::Access;
///
/// # let (server, client) = portolan::doc_pair()?;
/// let log = server.share(64, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
/// client.write(b"day 1".to_vec(), log.remote())?.wait()?;
/// // Atomics have a right of their own.
/// let failed = client.fetch_add(client.buffer(8)?, log.remote(), 1).unwrap_err();
/// assert!(failed.error.to_string().contains("needs the right REMOTE_ATOMIC"), "{}", failed.error);
/// # Ok::<(), portolan::Error>(())
/// ```
pub use portolan_provider::verbs::Access;
pub use portolan_provider::{Result, Step};
#[doc(inline)]
pub use portolan_sa as sa;
#[doc(inline)]
pub use portolan_wire as wire;
pub use resolve::resolve;
pub use stream::{Stream, StreamListener, StreamOptions};
pub use sys::{Buffer, MESSAGE_MAX_BYTES, Memory, NotRevoked, RemoteMemory, SharedMemory};
pub use work::{Done, Failed, Gather, Keepalive, Message, SharedReceiveQueue, Transfer};

/// Gives an example in the documentation a group of its own, so that it does not depend on the machine's other processes.
#[doc(hidden)]
pub fn doc_group(config: &mut software::SoftwareConfig) {
    let pid = std::process::id();
    // Below the kernel's ephemeral ports.
    config.stack.group.port = 10_000 + (pid % 20_000) as u16;
    config.stack.group.name_prefix = format!("portolan-example-{pid}");
}

/// The two ends of a connection, passive and active, for examples in the documentation.
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
