//! Replays a capture of two Linux kernels (rdma_rxe). Each end in turn is replaced by our queue pair, which
//! gets the kernel's work requests and the other kernel's packets. It must send the same packets as the kernel.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use portolan_provider::verbs::{
    Mtu, QpAttr, QpAttrMask, QpInit, QpState, QpType, RecvWr, RemoteAddr, SendData, SendFlags,
    SendOp, SendWr, Sge, WcStatus,
};
use portolan_roce::engine::{
    FlowConfig, MemoryTable, Payload, PdId, QpConfig, QpLimits, QueuePair, Region,
};
use portolan_wire::bth::{Opcode, Transport};
use portolan_wire::cm::CmMessage;
use portolan_wire::eth::RethRepr;
use portolan_wire::ip::Datagram;
use portolan_wire::rocev2::{Headers, Packet, UDP_PORT};
use portolan_wire::{Psn, Qpn};

use crate::harness::all_rights;

/// RC connections in the capture: one of rping, two of ucmatose.
const CONNECTIONS: usize = 3;

const PD: PdId = PdId(1);
/// Key and address of our own buffers.
const OWN_KEY: u32 = 0xFFFF_FF01;
const OWN_AT: u64 = 0x1000_0000;
const OWN_BYTES: usize = 4096;

/// One RoCEv2 packet of the capture.
pub(crate) struct Captured {
    source: IpAddr,
    target: IpAddr,
    pub(crate) bytes: Vec<u8>,
}

impl Captured {
    pub(crate) fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.bytes).expect("the capture is well formed")
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
struct End {
    addr: IpAddr,
    qpn: Qpn,
    /// The first PSN that the peer sends.
    psn: Psn,
}

pub(crate) fn capture() -> Vec<Captured> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = manifest.join("../../wire/tests/golden/rxe-linux-6.1.pcap");
    let file = std::fs::File::open(&path).expect("the capture is in the repository");
    let mut reader = PcapReader::new(file).expect("a pcap file");
    assert_eq!(reader.header().datalink, DataLink::ETHERNET);
    let mut packets = Vec::new();
    while let Some(frame) = reader.next_packet() {
        let (header, packet) = frame.as_ref().expect("a whole frame").data.split_at(14);
        let ([.., 0x08, 0x00] | [.., 0x86, 0xDD]) = header else {
            continue;
        };
        let datagram = Datagram::parse(packet).expect("a well-formed packet");
        if let Some(datagram) = datagram.filter(|datagram| datagram.udp.dst_port == UDP_PORT) {
            packets.push(Captured {
                source: datagram.ip.src(),
                target: datagram.ip.dst(),
                bytes: datagram.payload.to_vec(),
            });
        }
    }
    packets
}

/// Both ends of each connection, from its REQ and REP.
fn connections(capture: &[Captured]) -> Vec<[End; 2]> {
    let mut requests = BTreeMap::new();
    let mut found = Vec::new();
    for captured in capture {
        let packet = captured.packet();
        let message = packet
            .mad()
            .map(|mad| CmMessage::parse(mad).expect("well formed").1);
        let end = |qpn, psn| End {
            addr: captured.source,
            qpn,
            psn,
        };
        match message {
            Some(CmMessage::Req(req)) => {
                requests.insert(req.local_comm_id, end(req.local_qpn, req.starting_psn));
            }
            Some(CmMessage::Rep(rep)) => {
                let active = requests[&rep.remote_comm_id];
                found.push([active, end(rep.local_qpn, rep.starting_psn)]);
            }
            _ => {}
        }
    }
    found
}

/// The compared parts: everything except the migration bit, which rxe clears and hardware sets.
#[derive(Debug, PartialEq, Eq)]
struct Sent {
    headers: Headers,
    payload: Vec<u8>,
}

impl Sent {
    fn new(mut headers: Headers, payload: Vec<u8>) -> Self {
        headers.bth.migreq = false;
        Self { headers, payload }
    }
}

/// Our queue pair in place of one end.
struct Replay {
    qp: QueuePair,
    memory: MemoryTable,
    /// Our buffers, and the regions used by the peer: address and contents.
    ram: Vec<(u64, Vec<u8>)>,
    /// Responses and requests sent.
    responses: Vec<Sent>,
    requests: Vec<Sent>,
    completed: usize,
    now: Duration,
}

impl Replay {
    fn new(own: End, peer: End, regions: &BTreeMap<u32, (u64, u64)>) -> Self {
        let cap = portolan_provider::verbs::QpCap {
            max_send_wr: 16,
            max_recv_wr: 64,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 64,
        };
        let init = QpInit {
            qp_type: QpType::Rc,
            cap,
            sq_sig_all: true,
        };
        let (limits, flow) = (QpLimits::default(), FlowConfig::default());
        let config = QpConfig {
            qpn: own.qpn,
            pd: PD,
            init,
            limits,
            flow,
        };
        let mut memory = MemoryTable::new(8);
        let mut ram = vec![(OWN_AT, vec![0; OWN_BYTES])];
        let own_region = (&OWN_KEY, &(OWN_AT, OWN_AT + OWN_BYTES as u64));
        for (key, (start, end)) in regions.iter().chain([own_region]) {
            let (addr, length) = (*start, end - start);
            let region = Region {
                pd: PD,
                iova: addr,
                addr,
                length,
                access: all_rights(),
            };
            memory.insert(*key, region).expect("few regions");
            ram.push((addr, vec![0; length as usize]));
        }
        let mut replay = Self {
            qp: QueuePair::new(config).expect("a modest queue pair"),
            memory,
            ram,
            responses: Vec::new(),
            requests: Vec::new(),
            completed: 0,
            now: Duration::ZERO,
        };
        replay.connect(own, peer);
        replay
    }

    fn connect(&mut self, own: End, peer: End) {
        let attr = QpAttr {
            path_mtu: Mtu::Mtu1024,
            rq_psn: own.psn,
            sq_psn: peer.psn,
            dest_qpn: peer.qpn,
            access: all_rights(),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            timeout: 18,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let mask = QpAttrMask::STATE | crate::harness::required(QpType::Rc, state);
            self.qp
                .modify(&QpAttr { state, ..attr }, mask)
                .expect("a legal transition");
        }
        for wr_id in 0..64 {
            let sge = Sge {
                addr: OWN_AT,
                length: 1024,
                lkey: OWN_KEY,
            };
            self.qp
                .post_recv(&RecvWr {
                    wr_id,
                    sges: &[sge],
                })
                .expect("room");
        }
    }

    fn bytes(&mut self, addr: u64, len: usize) -> &mut [u8] {
        let within = |(start, bytes): &&mut (u64, Vec<u8>)| {
            addr >= *start && addr + len as u64 <= *start + bytes.len() as u64
        };
        let (start, bytes) = self
            .ram
            .iter_mut()
            .find(within)
            .expect("a registered address");
        let at = (addr - *start) as usize;
        &mut bytes[at..][..len]
    }

    /// A packet of the peer arrives.
    fn receive(&mut self, packet: &Packet<'_>) {
        self.qp.handle_packet(self.now, &self.memory, packet);
        while let Some(placement) = self.qp.poll_placement() {
            let source = placement.bytes(packet.payload()).expect("its own packet");
            self.bytes(placement.addr, source.len())
                .copy_from_slice(source);
        }
        self.transmit();
    }

    /// Posts the work request for a packet that the kernel sent here.
    fn post(&mut self, packet: &Packet<'_>) {
        let len = packet.payload().len();
        self.bytes(OWN_AT, len).copy_from_slice(packet.payload());
        let remote = |reth: RethRepr| RemoteAddr {
            addr: reth.va,
            rkey: reth.rkey,
        };
        let (op, length) = match (packet.bth().opcode, packet.reth()) {
            (Opcode::RcSendOnly, _) => (SendOp::Send, len as u32),
            (Opcode::RcWriteOnly, Some(reth)) => (SendOp::RdmaWrite(remote(reth)), len as u32),
            (Opcode::RcReadRequest, Some(reth)) => (SendOp::RdmaRead(remote(reth)), reth.dma_len),
            (other, _) => panic!("{other} is not in the capture"),
        };
        let sge = Sge {
            addr: OWN_AT,
            length,
            lkey: OWN_KEY,
        };
        let (data, flags) = (SendData::Sges(&[sge]), SendFlags::SIGNALED);
        self.qp
            .post_send(&SendWr {
                wr_id: 1,
                op,
                data,
                flags,
                ud: None,
                srq: None,
            })
            .expect("room");
        self.transmit();
    }

    fn transmit(&mut self) {
        while let Some(transmit) = self.qp.poll_transmit(self.now, &self.memory, 2048) {
            let headers = transmit.headers;
            let segments = match transmit.payload {
                Payload::Segments(segments) => segments.to_vec(),
                Payload::Inline(_) => panic!("nothing was posted inline"),
            };
            let mut payload = Vec::new();
            for segment in segments {
                payload.extend_from_slice(self.bytes(segment.addr, segment.len as usize));
            }
            let sent = Sent::new(headers, payload);
            if headers.bth.opcode.is_response() {
                self.responses.push(sent);
            } else {
                self.requests.push(sent);
            }
        }
        while let Some(completion) = self.qp.poll_completion() {
            assert_eq!(completion.wc.status, WcStatus::Success);
            self.completed += 1;
        }
    }
}

/// The memory named in packets to an end, by key: start and end.
fn regions_of<'a>(packets: impl Iterator<Item = Packet<'a>>) -> BTreeMap<u32, (u64, u64)> {
    let mut regions = BTreeMap::new();
    for reth in packets.filter_map(|packet| packet.reth()) {
        let end = reth.va + u64::from(reth.dma_len);
        let range = regions.entry(reth.rkey).or_insert((reth.va, end));
        *range = (range.0.min(reth.va), range.1.max(end));
    }
    regions
}

fn replay(capture: &[Captured], own: End, peer: End) {
    let is_rc = |captured: &&Captured| captured.packet().bth().opcode.transport() == Transport::Rc;
    let goes = |captured: &Captured, from: End, to: End| {
        captured.source == from.addr
            && captured.target == to.addr
            && captured.packet().bth().dest_qp == to.qpn
    };
    let rc: Vec<&Captured> = capture.iter().filter(is_rc).collect();
    let to_own = rc.iter().filter(|captured| goes(captured, peer, own));
    let mut replay = Replay::new(
        own,
        peer,
        &regions_of(to_own.map(|captured| captured.packet())),
    );
    let (mut responses, mut requests) = (Vec::new(), Vec::new());
    for (index, captured) in rc.iter().enumerate() {
        let packet = captured.packet();
        if goes(captured, peer, own) {
            if let Some(reth) = packet.reth().filter(|_| !packet.bth().opcode.has_payload()) {
                // The data that the kernel read at that moment, from its answer.
                let answer = rc[index..]
                    .iter()
                    .map(|captured| captured.packet())
                    .find(|answer| {
                        answer.bth().opcode.is_read_response()
                            && answer.bth().psn == packet.bth().psn
                    });
                let data = answer.expect("an answered read").payload();
                replay.bytes(reth.va, data.len()).copy_from_slice(data);
            }
            replay.receive(&packet);
        } else if goes(captured, own, peer) {
            let sent = Sent::new(packet.headers(), packet.payload().to_vec());
            if packet.bth().opcode.is_response() {
                responses.push(sent);
            } else {
                requests.push(sent);
                replay.post(&packet);
            }
        }
    }
    assert!(!requests.is_empty() && !responses.is_empty());
    assert_eq!(replay.requests, requests);
    assert_eq!(replay.responses, responses);
    assert_eq!(replay.qp.poll_timeout(), None, "everything is acknowledged");
    assert!(replay.completed >= requests.len());
}

#[test]
fn our_queue_pair_can_replace_either_end_of_a_connection_between_kernels() {
    let capture = capture();
    let connections = connections(&capture);
    assert_eq!(connections.len(), CONNECTIONS);
    for [active, passive] in connections {
        replay(&capture, active, passive);
        replay(&capture, passive, active);
    }
}
