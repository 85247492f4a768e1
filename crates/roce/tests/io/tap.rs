//! A tap sees the traffic on the wire, ready for a capture.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use portolan_provider::verbs::SendOp;
use portolan_roce::io::{Direction, Tap, TappedPacket};
use portolan_wire::bth::{BthRepr, Opcode};
use portolan_wire::icrc::{self, Flow, Identification};

use crate::harness::{PATIENCE, Pair, Shape};

#[derive(Debug, Default)]
struct Recorder {
    packets: Mutex<Vec<(Direction, Vec<u8>)>>,
}

impl Tap for Recorder {
    fn packet(&self, packet: &TappedPacket<'_>) {
        let flow = Flow::between(packet.source, packet.destination).unwrap();
        let known = Identification::Known(packet.identification);
        icrc::verify(&flow, known, packet.payload).expect("an ICRC that does not match");
        self.packets
            .lock()
            .unwrap()
            .push((packet.direction, packet.payload.to_vec()));
    }
}

fn psns(packets: &[Vec<u8>]) -> BTreeSet<u32> {
    let psn = |packet: &Vec<u8>| BthRepr::parse(packet).unwrap().psn.value();
    packets.iter().map(psn).collect()
}

#[test]
fn both_taps_see_the_same_packets_and_every_icrc_is_valid_with_its_identification() {
    for ip in ["127.0.0.1", "::1"] {
        let pair = Pair::new(ip, Shape::default());
        let taps = [Arc::new(Recorder::default()), Arc::new(Recorder::default())];
        for (stack, tap) in pair.stacks.iter().zip(&taps) {
            stack.set_tap(Some(tap.clone()));
        }
        // More packets than fit one datagram, so that the kernel numbers them.
        pair.a.post(
            1,
            SendOp::RdmaWrite(pair.b.remote(0)),
            pair.a.sge(0, 300_000),
        );
        pair.a.expect(1);
        pair.stacks.iter().for_each(|stack| stack.set_tap(None));
        let seen = |tap: usize, wanted: Direction| {
            let packets = taps[tap].packets.lock().unwrap();
            let mut packets: Vec<_> = packets
                .iter()
                .filter(|(direction, _)| *direction == wanted)
                .map(|(_, bytes)| bytes.clone())
                .collect();
            packets.sort();
            packets
        };
        let sent = seen(0, Direction::Sent);
        assert!(sent.len() >= 300_000 / 4096, "{} packets", sent.len());
        // On a busy machine packets may be retransmitted, and the last of those may still be in flight.
        let arrived = seen(1, Direction::Received);
        assert!(arrived.iter().all(|packet| sent.contains(packet)));
        assert_eq!(psns(&arrived), psns(&sent), "not all that was sent arrived");
        let answers = seen(0, Direction::Received);
        assert!(!answers.is_empty());
        let answered = seen(1, Direction::Sent);
        assert!(answers.iter().all(|packet| answered.contains(packet)));
        pair.a
            .post(2, SendOp::RdmaWrite(pair.b.remote(0)), pair.a.sge(0, 8));
        pair.a.expect(2);
        assert!(
            seen(0, Direction::Sent) == sent,
            "a removed tap saw a packet"
        );
    }
}

/// The indexes of sent packets of one kind within their datagrams. The kernel numbers the packets of an IPv4
/// datagram, and the tap sees the number.
#[derive(Debug)]
struct Places {
    of: Opcode,
    places: Mutex<BTreeSet<u16>>,
}

impl Places {
    fn of(of: Opcode) -> Arc<Self> {
        let places = Mutex::default();
        Arc::new(Self { of, places })
    }

    fn has(&self, place: u16) -> bool {
        self.places.lock().unwrap().contains(&place)
    }
}

impl Tap for Places {
    fn packet(&self, packet: &TappedPacket<'_>) {
        let is_sent = packet.direction == Direction::Sent;
        if is_sent && BthRepr::parse(packet.payload).unwrap().opcode == self.of {
            self.places.lock().unwrap().insert(packet.identification);
        }
    }
}

#[test]
fn small_messages_of_a_stream_share_a_datagram_even_if_posted_one_by_one() {
    // As many as may be in flight, so that none waits for another's acknowledgement.
    const STREAM: u64 = 16;
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (a, b) = (&pair.a, &pair.b);
    let places = Places::of(Opcode::RcWriteOnly);
    pair.stacks[0].set_tap(Some(places.clone()));
    let deadline = Instant::now() + PATIENCE;
    // On busy processors the peer may acknowledge each one before the next is posted. A few retransmissions
    // also leave together.
    let mut together = 0;
    while together < 50 {
        assert!(Instant::now() < deadline, "together {together} times");
        places.places.lock().unwrap().clear();
        for number in 0..STREAM {
            a.post(number, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 64));
        }
        for number in 0..STREAM {
            a.expect(number);
        }
        together += usize::from(places.has(STREAM as u16 / 2 - 1));
    }
}
