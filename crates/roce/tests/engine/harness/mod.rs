//! Two hosts, each with its own queue pair and memory, and the network between them.

mod host;
mod network;

pub(crate) use host::{
    Host, KEY, NETWORK_HEADER, Options, QKEY, RAM_BYTES, connect_attr, pattern, required,
};
pub(crate) use network::{Action, Faults, Network, Rng, SentPacket};

use std::sync::Arc;
use std::time::Duration;

use portolan_provider::verbs::{
    Access, QpState, RecvWr, RemoteAddr, SendData, SendFlags, SendOp, SendWr, Sge, WcStatus,
};
use portolan_roce::engine::{QueuePair, ReceiveSource};
use portolan_wire::rocev2::Packet;

/// Two connected hosts. Host 0 is `left`, host 1 `right`.
pub(crate) struct Pair {
    pub(crate) hosts: [Host; 2],
    pub(crate) network: Network,
    pub(crate) now: Duration,
}

/// Limit on the steps of a run, to detect one that does not end.
const STEPS_MAX: usize = 300_000;

impl Pair {
    pub(crate) fn new(options: Options) -> Self {
        let mut hosts = [Host::new(0, &options), Host::new(1, &options)];
        for host in &mut hosts {
            host.connect(&options);
        }
        Self {
            hosts,
            network: Network::new(options.seed),
            now: Duration::ZERO,
        }
    }

    /// Two connected hosts. The right one takes its receives from a shared receive queue.
    pub(crate) fn with_shared_receives(options: Options, source: Arc<dyn ReceiveSource>) -> Self {
        let mut pair = Self::new(options.clone());
        let make = |config| QueuePair::with_shared_receives(config, source);
        pair.hosts[1] = Host::with(1, &options, make);
        pair.hosts[1].connect(&options);
        pair
    }

    pub(crate) fn left(&mut self) -> &mut Host {
        &mut self.hosts[0]
    }

    pub(crate) fn right(&mut self) -> &mut Host {
        &mut self.hosts[1]
    }

    /// Runs until no packet is in flight and no timer runs, or until `limit` from now.
    pub(crate) fn settle(&mut self, limit: Duration) {
        let end = self.now + limit;
        for _ in 0..STEPS_MAX {
            self.transmit();
            let next = self.next_event();
            match next {
                Some(at) if at <= end => self.now = self.now.max(at),
                _ => return,
            }
            self.deliver();
        }
        panic!("still busy after {STEPS_MAX} steps at {:?}", self.now);
    }

    /// Runs for at most an hour, which no test needs.
    pub(crate) fn run(&mut self) {
        self.settle(Duration::from_secs(3600));
    }

    /// Sends everything that both queue pairs can send now.
    pub(crate) fn transmit(&mut self) {
        for (index, host) in self.hosts.iter_mut().enumerate() {
            while let Some(bytes) = host.next_packet(self.now) {
                self.network.send(self.now, index, bytes);
            }
        }
    }

    fn next_event(&self) -> Option<Duration> {
        let timers = self.hosts.iter().filter_map(|host| host.qp.poll_timeout());
        timers.chain(self.network.next_arrival()).min()
    }

    /// Delivers packets that have arrived by now, and fires timers.
    fn deliver(&mut self) {
        while let Some((to, bytes)) = self.network.receive(self.now) {
            self.hosts[to].receive(self.now, &bytes);
        }
        for host in &mut self.hosts {
            if host.qp.poll_timeout().is_some_and(|at| at <= self.now) {
                host.qp.handle_timeout(self.now);
                host.drain();
            }
        }
    }

    /// Delivers packets that arrive within `limit`, without letting either side send.
    pub(crate) fn deliver_for(&mut self, limit: Duration) {
        self.now += limit;
        self.deliver();
    }

    /// The packets that a host has sent, including lost ones.
    pub(crate) fn sent_by(&self, host: usize) -> Vec<SentPacket> {
        self.network
            .log
            .iter()
            .filter(|sent| sent.from == host)
            .copied()
            .collect()
    }

    pub(crate) fn states(&self) -> [QpState; 2] {
        [self.hosts[0].qp.state(), self.hosts[1].qp.state()]
    }
}

/// A piece of a host's memory, `offset` bytes into it.
pub(crate) fn piece(host: &Host, offset: u64, length: u32) -> Sge {
    Sge {
        addr: host.base + offset,
        length,
        lkey: KEY,
    }
}

/// The peer's memory, `offset` bytes into it.
pub(crate) fn remote(host: &Host, offset: u64) -> RemoteAddr {
    RemoteAddr {
        addr: host.base + offset,
        rkey: KEY,
    }
}

/// Posts a signaled request.
pub(crate) fn post(host: &mut Host, wr_id: u64, op: SendOp, sges: &[Sge]) {
    post_with(host, wr_id, op, sges, SendFlags::SIGNALED);
}

pub(crate) fn post_with(host: &mut Host, wr_id: u64, op: SendOp, sges: &[Sge], flags: SendFlags) {
    let wr = SendWr {
        wr_id,
        op,
        data: SendData::Sges(sges),
        flags,
        ud: None,
        srq: None,
    };
    host.qp.post_send(&wr).expect("the send queue takes it");
    host.drain();
}

pub(crate) fn post_recv(host: &mut Host, wr_id: u64, sges: &[Sge]) {
    host.qp
        .post_recv(&RecvWr { wr_id, sges })
        .expect("the receive queue takes it");
    host.drain();
}

/// Name and status of each completed send.
pub(crate) fn sends(host: &Host) -> Vec<(u64, WcStatus)> {
    host.sends.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

/// Name and status of each completed receive.
pub(crate) fn receives(host: &Host) -> Vec<(u64, WcStatus)> {
    host.receives
        .iter()
        .map(|(wc, _)| (wc.wr_id, wc.status))
        .collect()
}

/// All rights of peers, as a queue pair's or region's.
pub(crate) fn all_rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// Parses a packet sent by a host, which is always well formed.
pub(crate) fn parse(bytes: &[u8]) -> Packet<'_> {
    Packet::parse(bytes).expect("the engine sends well-formed packets")
}
