//! Round trips of short messages: polled sends over a connection, compared with polled UDP datagrams.

use std::collections::VecDeque;
use std::net::UdpSocket;
use std::time::Instant;

use anyhow::{Result, ensure};
use portolan::provider::software_provider;
use portolan::{Buffer, Connection, Message, Transfer};

use super::args::LatencyArgs;
use super::process::Peer;
use super::report::{Comparison, tell_latencies, tell_round};
use super::request::Request;
use super::{MESSAGE_MAX, PATIENCE, chart, udp, write_chart};
use crate::latency::Latencies;
use crate::output::Output;

/// Maximum number of sends without a polled completion; the peer's answer does not wait for completions.
const SENDS_MAX: usize = 16;
/// Number of unsuccessful polls between checks of the clock.
const LOOK_EVERY: u32 = 4096;

pub(super) fn run(args: &LatencyArgs, output: &mut Output) -> Result<()> {
    let provider = software_provider()?;
    let mut peer = Peer::start()?;
    let connection = super::connect(provider, &mut peer)?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(peer.udp)?;
    socket.set_nonblocking(true)?;
    let mut pair = Pair {
        peer,
        connection,
        socket,
        size: args.size as usize,
    };
    pair.ping_udp(args.count.div_ceil(10))?;
    pair.ping_messages(args.count.div_ceil(10))?;
    let (mut udp, mut rdma) = (Latencies::new(), Latencies::new());
    let mut comparison = Comparison::new("RDMA send, polled", "UDP, polled");
    let rounds = args.rounds.rounds;
    for round in 0..rounds {
        let yardstick = pair.ping_udp(args.count)?;
        let subject = pair.ping_messages(args.count)?;
        let (udp_ns, rdma_ns) = (yardstick.median_ns(), subject.median_ns());
        let measured = [
            ("UDP", udp_ns),
            ("RDMA send", rdma_ns),
            ("ratio", comparison.add(rdma_ns, udp_ns)),
        ];
        tell_round(round, rounds, &measured, output)?;
        udp.merge(&yardstick);
        rdma.merge(&subject);
    }
    let named = [("UDP, polled", &udp), ("RDMA send, polled", &rdma)];
    for (name, latencies) in named {
        tell_latencies(name, latencies, true, output)?;
    }
    comparison.tell(output)?;
    write_chart(args.rounds.svg.as_deref(), || {
        let title = format!(
            "Round trips of {} bytes, two processes on loopback",
            args.size
        );
        chart::distributions(&title, &named)
    })
}

/// Echoes `count` messages, polling.
pub(super) fn echo(connection: &Connection, count: u32) -> Result<()> {
    let mut sends = Sends::default();
    for _ in 0..count {
        let message = receive_polling(connection)?;
        sends.send(connection, &message)?;
    }
    sends.finish()
}

/// The first process's end.
struct Pair {
    peer: Peer,
    connection: Connection,
    socket: UdpSocket,
    size: usize,
}

impl Pair {
    fn ping_udp(&mut self, count: u32) -> Result<Latencies> {
        let from = self.socket.local_addr()?;
        self.peer.call(Request::EchoUdp { from, count })?;
        let mut latencies = Latencies::new();
        udp::ping(&self.socket, self.size, count, &mut latencies)?;
        self.peer.answer()?;
        Ok(latencies)
    }

    fn ping_messages(&mut self, count: u32) -> Result<Latencies> {
        self.peer.call(Request::EchoMessages { count })?;
        let mut latencies = Latencies::new();
        let mut sends = Sends::default();
        let text: Vec<u8> = (0..self.size).map(|at| at as u8).collect();
        for _ in 0..count {
            let start = Instant::now();
            sends.send(&self.connection, &text)?;
            let message = receive_polling(&self.connection)?;
            latencies.record(start.elapsed());
            ensure!(message[..] == text, "a message came back changed");
        }
        sends.finish()?;
        self.peer.answer()?;
        Ok(latencies)
    }
}

fn receive_polling(connection: &Connection) -> Result<Message> {
    let deadline = Instant::now() + PATIENCE;
    for turn in 1_u32.. {
        if let Some(message) = connection.try_receive()? {
            return Ok(message);
        }
        if turn.is_multiple_of(LOOK_EVERY) && Instant::now() > deadline {
            break;
        }
    }
    anyhow::bail!("no message within {PATIENCE:?}")
}

/// Sends in flight, oldest first, and free buffers.
#[derive(Default)]
struct Sends {
    under_way: VecDeque<Transfer>,
}

impl Sends {
    fn send(&mut self, connection: &Connection, text: &[u8]) -> Result<()> {
        let mut buffer: Buffer = if self.under_way.len() < SENDS_MAX {
            connection.buffer(MESSAGE_MAX)?
        } else {
            let oldest = self.under_way.pop_front();
            match oldest {
                Some(transfer) => transfer.wait()?.buffer,
                None => connection.buffer(MESSAGE_MAX)?,
            }
        };
        if let Some(place) = buffer.get_mut(..text.len()) {
            place.copy_from_slice(text);
        }
        // This fails for a text longer than the buffer.
        self.under_way
            .push_back(connection.send_prefix(buffer, text.len())?);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        for transfer in self.under_way.drain(..) {
            transfer.wait()?;
        }
        Ok(())
    }
}
