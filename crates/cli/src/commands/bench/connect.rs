//! Connects one after another: RDMA connections to a second process, compared with TCP's.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use anyhow::Result;
use portolan::Connector;
use portolan::provider::software_provider;

use super::args::ConnectArgs;
use super::process::Peer;
use super::relay::Relay;
use super::report::{Comparison, tell_latencies, tell_round};
use super::request::Request;
use super::{PATIENCE, chart, connect_options, write_chart};
use crate::commands::failure::explain;
use crate::latency::Latencies;
use crate::output::Output;

/// Times of connections to the second process.
#[derive(Clone)]
struct Times {
    /// TCP's connect(2).
    tcp: Latencies,
    /// TCP connects until the peer's program has accepted and confirmed by a byte.
    tcp_served: Latencies,
    /// A relay of five threads.
    relay: Latencies,
    /// RDMA connects until established; the peer's program has accepted.
    rdma: Latencies,
    /// RDMA's disconnect, until the peer has answered.
    rdma_end: Latencies,
}

pub(super) fn run(args: &ConnectArgs, output: &mut Output) -> Result<()> {
    let mut peer = Peer::start()?;
    let connector = Connector::new()
        .provider(software_provider()?)
        .options(connect_options());
    peer.call(Request::ServeConnects)?;
    let relay = Relay::to(peer.udp)?;
    let mut all = Times::new();
    let mut comparisons = [
        Comparison::new("RDMA connect", "TCP connect"),
        Comparison::new("RDMA connect", "TCP connect + accept"),
        Comparison::new("RDMA connect", "5 wake-ups"),
    ];
    // The first connections start threads, learn routes and touch memory.
    let mut warm_up = Times::new();
    warm_up.add_round(&connector, &peer, &relay, args.count.div_ceil(10))?;
    let rounds = args.rounds.rounds;
    for round in 0..rounds {
        let mut times = Times::new();
        times.add_round(&connector, &peer, &relay, args.count)?;
        let (tcp, served) = (times.tcp.median_ns(), times.tcp_served.median_ns());
        let (relayed, rdma) = (times.relay.median_ns(), times.rdma.median_ns());
        let measured = [
            ("RDMA", rdma),
            ("TCP", tcp),
            ("TCP + accept", served),
            ("5 wake-ups", relayed),
            ("ratio", comparisons[0].add(rdma, tcp)),
            ("ratio to accepted", comparisons[1].add(rdma, served)),
            ("ratio to wake-ups", comparisons[2].add(rdma, relayed)),
        ];
        tell_round(round, rounds, &measured, output)?;
        all.merge(&times);
    }
    let named = [
        ("TCP connect", &all.tcp),
        ("TCP connect + accept", &all.tcp_served),
        ("5 wake-ups", &all.relay),
        ("RDMA connect", &all.rdma),
        ("RDMA disconnect", &all.rdma_end),
    ];
    for (name, latencies) in named {
        tell_latencies(name, latencies, name == "RDMA connect", output)?;
    }
    for comparison in &comparisons {
        comparison.tell(output)?;
    }
    write_chart(args.rounds.svg.as_deref(), || {
        chart::distributions("Sequential connects, two processes on loopback", &named)
    })
}

impl Times {
    fn new() -> Times {
        Times {
            tcp: Latencies::new(),
            tcp_served: Latencies::new(),
            relay: Latencies::new(),
            rdma: Latencies::new(),
            rdma_end: Latencies::new(),
        }
    }

    fn add_round(
        &mut self,
        connector: &Connector,
        peer: &Peer,
        relay: &Relay,
        count: u32,
    ) -> Result<()> {
        for _ in 0..count {
            self.connect_tcp(peer.tcp)?;
        }
        for _ in 0..count {
            let start = Instant::now();
            relay.turn()?;
            self.relay.record(start.elapsed());
        }
        for _ in 0..count {
            self.connect_rdma(connector, peer.rdma)?;
        }
        Ok(())
    }

    fn connect_tcp(&mut self, to: SocketAddr) -> Result<()> {
        let start = Instant::now();
        let mut stream = TcpStream::connect(to)?;
        self.tcp.record(start.elapsed());
        stream.read_exact(&mut [0])?;
        self.tcp_served.record(start.elapsed());
        Ok(())
    }

    fn connect_rdma(&mut self, connector: &Connector, to: SocketAddr) -> Result<()> {
        let start = Instant::now();
        let connection = connector.connect_to(to).map_err(explain)?;
        self.rdma.record(start.elapsed());
        let start = Instant::now();
        connection.close(PATIENCE)?;
        self.rdma_end.record(start.elapsed());
        Ok(())
    }

    fn merge(&mut self, other: &Times) {
        self.tcp.merge(&other.tcp);
        self.tcp_served.merge(&other.tcp_served);
        self.relay.merge(&other.relay);
        self.rdma.merge(&other.rdma);
        self.rdma_end.merge(&other.rdma_end);
    }
}
