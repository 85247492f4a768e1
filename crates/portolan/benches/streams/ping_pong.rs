//! Messages of 64 bytes, forth and back.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use portolan::{Stream, StreamListener};
use rustix::event::{PollFd, PollFlags, poll};

use crate::{Error, Plan, Transport, compare, p50};

const BYTES: usize = 64;
const MESSAGES: usize = 2000;
/// One for each [`Way`] and transport.
pub(crate) const LISTENERS: usize = 2 * WAYS.len();

/// How an end waits for its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It reads again and again.
    Polled,
    /// It waits for its descriptor by poll(2), as an event loop does.
    Sleeping,
    /// It calls a read that blocks.
    Blocking,
}

const WAYS: [Way; 3] = [Way::Polled, Way::Sleeping, Way::Blocking];

/// A stream of either transport.
trait Ends: Read + Write + AsFd {
    fn set_waiting(&self, waits: bool) -> io::Result<()>;
}

impl Ends for TcpStream {
    fn set_waiting(&self, waits: bool) -> io::Result<()> {
        self.set_nodelay(true)?;
        self.set_nonblocking(!waits)
    }
}

impl Ends for Stream {
    fn set_waiting(&self, waits: bool) -> io::Result<()> {
        self.set_nonblocking(!waits)
    }
}

/// Starts the echoing ends. Returns their addresses.
pub(crate) fn serve() -> Result<Vec<String>, Error> {
    let mut addresses = Vec::new();
    for way in WAYS {
        let tcp = TcpListener::bind("127.0.0.1:0")?;
        addresses.push(tcp.local_addr()?.to_string());
        std::thread::spawn(move || {
            while let Ok((stream, _)) = tcp.accept() {
                let _ = answer(stream, way);
            }
        });
        let streams = StreamListener::bind("127.0.0.1:0")?;
        addresses.push(streams.local_addr()?.to_string());
        std::thread::spawn(move || {
            while let Ok((stream, _)) = streams.accept() {
                let _ = answer(stream, way);
            }
        });
    }
    Ok(addresses)
}

/// Answers each message until the peer leaves.
fn answer(mut stream: impl Ends, way: Way) -> io::Result<()> {
    stream.set_waiting(way == Way::Blocking)?;
    let mut message = [0; BYTES];
    loop {
        receive(&mut stream, &mut message, way)?;
        stream.write_all(&message)?;
    }
}

fn receive(stream: &mut impl Ends, into: &mut [u8], way: Way) -> io::Result<()> {
    let mut filled = 0;
    while filled < into.len() {
        match stream.read(&mut into[filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => filled += length,
            Err(error) if error.kind() == ErrorKind::WouldBlock && way == Way::Polled => {
                std::hint::spin_loop();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(stream, PollFlags::IN)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(crate) fn measure(addresses: &[String], plan: &Plan) -> Result<(), Error> {
    for (way, addresses) in WAYS.into_iter().zip(addresses.chunks(2)) {
        compare(&format!("{way:?}"), plan, |transport| {
            Ok(match transport {
                Transport::Tcp => round_trip(TcpStream::connect(&addresses[0])?, way)?,
                Transport::Stream => round_trip(Stream::connect(&addresses[1])?, way)?,
            })
        })?;
    }
    Ok(())
}

fn round_trip(mut stream: impl Ends, way: Way) -> io::Result<Duration> {
    stream.set_waiting(way == Way::Blocking)?;
    let (mut times, mut message) = (Vec::with_capacity(MESSAGES), [7; BYTES]);
    for turn in 0..MESSAGES + MESSAGES / 10 {
        let started = Instant::now();
        stream.write_all(&message)?;
        receive(&mut stream, &mut message, way)?;
        if turn >= MESSAGES / 10 {
            times.push(started.elapsed());
        }
    }
    Ok(p50(times))
}
