//! Byte streams: the interface of `std::net` for TCP, over RDMA.
//!
//! [`Stream`] and [`StreamListener`] are used like `TcpStream` and `TcpListener`. They use the rsocket protocol, so
//! the peer may be any program that uses rdma-core's `rsocket(7)`.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::net::Shutdown;
//!
//! use portolan::{Stream, StreamListener};
//!
//! let listener = StreamListener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr()?.to_string();
//! let server = std::thread::spawn(move || -> std::io::Result<()> {
//!     let (mut stream, _) = listener.accept()?;
//!     let mut question = String::new();
//!     stream.read_to_string(&mut question)?;
//!     stream.write_all(question.to_uppercase().as_bytes())
//! });
//!
//! let mut stream = Stream::connect(&address)?;
//! stream.write_all(b"ahoy")?;
//! stream.shutdown(Shutdown::Write)?;
//! let mut answer = String::new();
//! stream.read_to_string(&mut answer)?;
//! assert_eq!(answer, "AHOY");
//! # server.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Event loops
//!
//! A stream's descriptor (`AsFd`) is readable when a call that failed with `WouldBlock` may succeed. There is no
//! separate readiness for writing. With the feature `tokio`, `AsyncStream` implements tokio's `AsyncRead` and
//! `AsyncWrite`. What is built on these works: [`http`](crate::examples::http) serves with hyper,
//! [`grpc`](crate::examples::grpc) with tonic.
//!
//! # Differences from TCP
//!
//! * The process sends and receives data, not the kernel: if a program exits without closing a stream, the stream is
//!   broken, and data of dropped streams is lost unless the program calls [`deliver_dropped`] first.
//! * The end of a stream is delivered in order, but dropping a stream with unread data does not reset the peer.
//! * A write needs 2 KiB of free send buffer, whatever its length, and room in the peer's receive buffer: the send buffer holds
//!   only what is under way. With the defaults, the first write of more than 65,536 bytes blocks until the peer reads
//!   ([`Stream`]). TCP often takes megabytes.
//! * A connect waits for the peer's `accept`. TCP's kernel answers a connect alone, so that one thread can call `connect` and
//!   then `accept`. Here that connect times out: call them in two threads or tasks.
//!
//! # Speed on one host
//!
//! Between two processes of one host, the sender writes to the receiver's memory, and a stream is faster than TCP. Two cases
//! are slower, with the same results:
//!
//! * **Both ends are in one process**, as in most tests and in the examples here. A process has no link through memory to
//!   itself ([`WhySocket::SameProcess`](crate::software::WhySocket::SameProcess)): the data goes as packets through the
//!   kernel's UDP, with checksums and acknowledgements, as between two hosts. A round trip of 64 bytes takes 3 to 9 times as
//!   long as over TCP, and bulk data arrives at a fraction of TCP's rate. To measure streams, start the peer as a process of
//!   its own. Between threads, channels are faster than any socket.
//! * **The first connection between two processes** creates their link. It is usually there when the connect returns, and
//!   otherwise about a millisecond later. Data sent meanwhile goes as packets
//!   ([`WhySocket::NotReady`](crate::software::WhySocket::NotReady)). A benchmark sends something first;
//!   [`SoftwareProvider::way_of`](crate::software::SoftwareProvider::way_of) shows how to wait.
//!
//! `portolan ps` lists the way of each connection.
//!
//! [`Socket`] and [`Connecting`] are for programs that bind before they connect, or connect without waiting.

mod close;
mod connect;
mod core;
mod error;
mod linger;
mod listener;
mod options;
#[cfg(feature = "tokio")]
mod poller;
mod queues;
mod socket;
#[allow(clippy::module_inception, reason = "the type's own file")]
mod stream;
#[cfg(feature = "tokio")]
mod tokio;
#[cfg(feature = "tokio")]
mod waiters;
#[cfg(feature = "tokio")]
mod watched;

#[doc(hidden)]
pub use self::core::{Descriptors, SocketSleep};
pub use self::core::{Direction, Ready};
pub use self::linger::deliver_dropped;
pub use self::listener::StreamListener;
pub use self::options::StreamOptions;
pub use self::socket::{Connecting, Socket};
pub use self::stream::Stream;
#[cfg(feature = "tokio")]
pub use self::tokio::{AsyncStream, AsyncStreamListener, ReadHalf, WriteHalf};
pub use portolan_rsocket::{Iomap, Sge};

#[doc(hidden)]
pub use portolan_provider::traits::DeviceWait;

use portolan_provider::{Error, Result, Step};
use portolan_rsocket::ConnData;

use self::error::io_error;

/// Fails unless private data is that of rsocket. `expected` names the programs whose data would be.
fn check_peer(private_data: &[u8], expected: &str) -> Result<ConnData> {
    ConnData::decode(private_data)
        .map_err(|violation| Error::invalid(Step::Connect, "private data", expected, violation))
}
