//! Requests of the first process to the second: each is one line of words.

use std::fmt;
use std::net::SocketAddr;
use std::str::{FromStr, SplitWhitespace};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use portolan::RemoteMemory;

/// A request. It is answered by one line of JSON; echo requests by an additional one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// Accept one RDMA connection and keep it for later requests.
    Accept,
    /// Answer datagrams from this address, polling.
    EchoUdp { from: SocketAddr, count: u32 },
    /// Answer messages of the kept connection, polling.
    EchoMessages { count: u32 },
    /// Accept TCP and RDMA connections and relay bytes until the end, sleeping in between.
    ServeConnects,
    /// Send datagrams to this address as fast as possible.
    StreamDatagrams { to: SocketAddr, time: Duration },
    /// Write to the first process's memory over the kept connection as fast as possible.
    StreamWrites {
        to: RemoteMemory,
        size: u32,
        time: Duration,
    },
    /// Accept hundreds of connections and echo their messages until all have ended.
    ServeStorm { connections: u32 },
    /// Report the memory use of the process.
    TellMemory,
}

impl Request {
    /// How long the requested work takes, if that is a part of the request.
    pub(super) fn time(&self) -> Duration {
        match self {
            Request::StreamDatagrams { time, .. } | Request::StreamWrites { time, .. } => *time,
            _ => Duration::ZERO,
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Accept => write!(f, "accept"),
            Request::EchoUdp { from, count } => write!(f, "echo-udp {from} {count}"),
            Request::EchoMessages { count } => write!(f, "echo-messages {count}"),
            Request::ServeConnects => write!(f, "serve-connects"),
            Request::StreamDatagrams { to, time } => {
                write!(f, "stream-datagrams {to} {}", time.as_millis())
            }
            Request::StreamWrites { to, size, time } => {
                let RemoteMemory {
                    addr, length, rkey, ..
                } = to;
                let time_ms = time.as_millis();
                write!(f, "stream-writes {addr} {length} {rkey} {size} {time_ms}")
            }
            Request::ServeStorm { connections } => write!(f, "serve-storm {connections}"),
            Request::TellMemory => write!(f, "tell-memory"),
        }
    }
}

impl FromStr for Request {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Request> {
        let mut words = line.split_whitespace();
        let request = match words.next() {
            Some("accept") => Request::Accept,
            Some("echo-udp") => Request::EchoUdp {
                from: next(&mut words)?,
                count: next(&mut words)?,
            },
            Some("echo-messages") => Request::EchoMessages {
                count: next(&mut words)?,
            },
            Some("serve-connects") => Request::ServeConnects,
            Some("stream-datagrams") => Request::StreamDatagrams {
                to: next(&mut words)?,
                time: Duration::from_millis(next(&mut words)?),
            },
            Some("stream-writes") => Request::StreamWrites {
                to: RemoteMemory::new(next(&mut words)?, next(&mut words)?, next(&mut words)?),
                size: next(&mut words)?,
                time: Duration::from_millis(next(&mut words)?),
            },
            Some("serve-storm") => Request::ServeStorm {
                connections: next(&mut words)?,
            },
            Some("tell-memory") => Request::TellMemory,
            _ => bail!("unknown request: {line}"),
        };
        match words.next() {
            None => Ok(request),
            Some(word) => bail!("unexpected word {word} in the request: {line}"),
        }
    }
}

fn next<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    words: &mut SplitWhitespace<'_>,
) -> Result<T> {
    let word = words.next().context("a word is missing in the request")?;
    word.parse().with_context(|| format!("{word} in a request"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_a_round_trip() {
        let to = RemoteMemory::new(u64::MAX, 1 << 20, 7);
        let (time, address) = (Duration::from_millis(250), "127.0.0.1:9".parse().unwrap());
        for request in [
            Request::Accept,
            Request::EchoUdp {
                from: address,
                count: 3,
            },
            Request::EchoMessages { count: u32::MAX },
            Request::ServeConnects,
            Request::StreamDatagrams { to: address, time },
            Request::StreamWrites { to, size: 1, time },
            Request::ServeStorm { connections: 10 },
            Request::TellMemory,
        ] {
            let line = request.to_string();
            assert_eq!(line.parse::<Request>().unwrap(), request, "{line}");
        }
    }

    #[test]
    fn lines_that_are_not_requests_are_refused() {
        for line in ["", "sing", "echo-messages", "echo-messages x", "accept 1"] {
            assert!(line.parse::<Request>().is_err(), "{line}");
        }
    }
}
