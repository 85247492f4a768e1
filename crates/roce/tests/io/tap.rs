//! A tap sees what goes over the wire, ready for a capture.

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
        // On a busy machine packets may be sent again, and the last of those be under way still.
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
            "a tap that was pulled saw a packet"
        );
    }
}

/// Of the packets of one kind that were sent over IPv4, each one's place in its datagram: there the kernel numbers
/// them, and the tap tells the number.
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
fn small_messages_of_a_stream_are_one_datagram_though_each_is_posted_by_itself() {
    // As many as may be under way at once, so that none waits for the others' acknowledgement.
    const STREAM: u64 = 16;
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (a, b) = (&pair.a, &pair.b);
    let places = Places::of(Opcode::RcWriteOnly);
    pair.stacks[0].set_tap(Some(places.clone()));
    let deadline = Instant::now() + PATIENCE;
    // Where the processors are busy the peer may acknowledge each before the next is posted; and a few times what is sent
    // again leaves together.
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
