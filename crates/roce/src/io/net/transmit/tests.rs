use std::net::Ipv4Addr;

use super::waiting::WAITING_DATAGRAMS_MAX;
use super::*;
use crate::io::net::shm::head_page::HeadPage;
use crate::io::net::shm::ring::tests::ring as both_ends;
use crate::io::net::shm::ring::{Reader, Records};
use portolan_wire::Psn;
use portolan_wire::bth::Opcode;
use portolan_wire::icrc::Identification;
use portolan_wire::rocev2::Headers;
use std::time::Duration;

/// A sending socket, a receiving one, and the path between them.
struct Line {
    socket: SendSocket,
    receiver: UdpSocket,
    path: Path,
    monitor: Monitor,
}

impl Line {
    fn new() -> Self {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let path = Path {
            local: Ipv4Addr::LOCALHOST.into(),
            remote: receiver.local_addr().unwrap(),
            interface: 0,
            traffic_class: 0,
            hop_limit: 0,
        };
        let socket = SendSocket::open(IpVersion::V4, 4 << 20).unwrap();
        Self {
            socket,
            receiver,
            path,
            monitor: Monitor::default(),
        }
    }

    /// Stages packets with these PSNs, as the engine does.
    fn stage(&self, psns: impl Iterator<Item = u32>) -> SendBatch {
        let flow = self.path.flow(self.socket.port()).unwrap();
        let mut batch = SendBatch::new();
        for psn in psns {
            let (place, identification) = batch.stage(100, true).unwrap();
            place.fill(psn as u8);
            let headers = Headers::new(Opcode::RcSendMiddle, Qpn::new(7), Psn::new(psn));
            headers.emit(place).unwrap();
            icrc::append(&flow, identification, place).unwrap();
        }
        batch
    }

    /// PSN and IP identification of the next packet that arrives.
    fn next(&self) -> (u32, u16) {
        let mut packet = [0; 200];
        let (len, from) = self.receiver.recv_from(&mut packet).unwrap();
        assert_eq!(from.port(), self.socket.port());
        let flow = self.path.flow(from.port()).unwrap();
        let packet = &packet[..len];
        let valid = icrc::verify(&flow, Identification::Hidden, packet).unwrap();
        (
            Headers::parse(packet).unwrap().bth.psn.value(),
            valid.identification,
        )
    }
}

#[test]
fn segmented_packets_arrive_with_the_identifications_they_were_staged_with() {
    let line = Line::new();
    let room = line
        .socket
        .send(&mut line.stage(0..5), &line.path, &line.monitor);
    assert_eq!(room, Room::Left);
    let arrived: Vec<_> = (0..5).map(|_| line.next()).collect();
    assert_eq!(arrived, [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]);
    let counters = line.monitor.counters.read();
    assert_eq!(
        (
            counters.sent_packets,
            counters.sent_bytes,
            counters.send_calls
        ),
        (5, 500, 1)
    );
}

#[test]
fn packets_set_aside_go_first_when_there_is_room_and_their_queue_pairs_are_resumed() {
    let line = Line::new();
    let (socket, qpn) = (&line.socket, Qpn::new(7));
    assert!(
        socket.defers(qpn, Turn::Had).is_none(),
        "an empty socket has room"
    );
    let aside = socket.put_aside(&line.stage(0..3), 0, &line.path, &line.monitor);
    assert_eq!(aside, Room::JustFilled);
    let registered = socket.defers(qpn, Turn::Had).unwrap();
    assert!(socket.is_full() && socket.has(registered));
    // Another thread is sending: its packets queue behind.
    let late = socket.send(&mut line.stage(3..5), &line.path, &line.monitor);
    assert_eq!(late, Room::Full);
    assert_eq!(socket.resume(&line.monitor), Some(vec![qpn]));
    assert!(!socket.is_full());
    let arrived: Vec<_> = (0..5).map(|_| line.next().0).collect();
    assert_eq!(arrived, [0, 1, 2, 3, 4]);
    assert_eq!(line.monitor.counters.read().send_blocked, 2);
}

#[test]
fn waiting_packets_are_bounded_and_the_rest_is_counted_as_lost() {
    let line = Line::new();
    for _ in 0..WAITING_DATAGRAMS_MAX + 3 {
        line.socket
            .put_aside(&line.stage(0..2), 0, &line.path, &line.monitor);
    }
    assert_eq!(line.socket.lock().datagrams.len(), WAITING_DATAGRAMS_MAX);
    assert_eq!(line.monitor.counters.read().send_refused, 6);
}

#[test]
fn a_device_without_segmentation_gets_packets_one_by_one_each_with_its_own_icrc() {
    let line = Line::new();
    let mut batch = line.stage(0..3);
    let run = batch.runs()[0];
    assert!(line.socket.coalesces());
    let cannot = io::Error::from_raw_os_error(libc::EIO);
    line.socket
        .send_apart(&mut batch, &run, &line.path, &cannot, &line.monitor);
    let arrived: Vec<_> = (0..3).map(|_| line.next()).collect();
    assert_eq!(arrived, [(0, 0), (1, 0), (2, 0)]);
    assert!(
        !line.socket.coalesces(),
        "it is not tried again for each datagram"
    );
}

#[test]
fn a_packet_without_a_route_is_counted_and_the_next_is_sent() {
    let mut line = Line::new();
    let good = line.path;
    // An address of another machine cannot be a source.
    line.path.local = Ipv4Addr::new(192, 0, 2, 1).into();
    let room = line
        .socket
        .send(&mut line.stage(0..2), &line.path, &line.monitor);
    assert_eq!(room, Room::Left);
    assert_eq!(line.monitor.counters.read().send_refused, 2);
    line.path = good;
    line.socket
        .send(&mut line.stage(9..10), &line.path, &line.monitor);
    assert_eq!(line.next(), (9, 0));
}

/// A ring, as the writing socket and the reader have it.
fn ring() -> (SendSocket, Reader, HeadPage) {
    let (writer, reader, head_page) = both_ends();
    let socket = SendSocket::of_ring(writer, Doorbell::default(), None, 4791);
    (socket, reader, head_page)
}

/// Reads all records. Returns whether the writer waits for room.
fn read_all(reader: &mut Reader, head_page: &HeadPage) -> bool {
    let mut records = Records::default();
    while reader.has_more() {
        reader.read(&mut records).unwrap();
    }
    reader.release(head_page)
}

#[test]
fn the_reader_of_a_full_ring_is_asked_for_room_until_what_waits_is_sent_and_not_afterwards() {
    let line = Line::new();
    let (socket, mut reader, head_page) = ring();
    let send = || socket.send(&mut line.stage(0..5), &line.path, &line.monitor);
    while send() == Room::Left {}
    assert!(socket.is_full());
    // Another thread sends what waits before this one has reported that the ring is full.
    let mut read_all = || read_all(&mut reader, &head_page);
    assert!(read_all(), "a thread waits for room");
    assert!(socket.resume(&line.monitor).is_some());
    assert!(!read_all(), "none does");
    assert_eq!(send(), Room::Left);
    assert!(!read_all(), "none does");
}

#[test]
fn only_a_reader_that_has_made_no_room_since_a_queue_pair_waits_counts_as_stalled() {
    let line = Line::new();
    let (socket, mut reader, head_page) = ring();
    let fill =
        || while socket.send(&mut line.stage(0..5), &line.path, &line.monitor) == Room::Left {};
    let qpn = Qpn::new(1);
    fill();
    let before = socket.defers(qpn, Turn::Had).unwrap();
    assert!(socket.has(before));
    read_all(&mut reader, &head_page);
    assert_eq!(socket.resume(&line.monitor), Some(vec![qpn]));
    assert!(!socket.has(before), "it is resumed");
    fill();
    let now = socket.defers(qpn, Turn::Missed).unwrap();
    socket.stalls(before);
    assert!(!socket.is_stalled(), "there was room");
    socket.stalls(now);
    assert!(socket.is_stalled());
    read_all(&mut reader, &head_page);
    assert_eq!(socket.resume(&line.monitor), Some(vec![qpn]));
    assert!(!socket.is_stalled());
}

#[test]
fn queue_pairs_that_share_a_full_socket_take_turns() {
    let mut waiting = Waiting::default();
    let [a, b, c] = [1, 2, 3].map(Qpn::new);
    [a, b, c]
        .into_iter()
        .for_each(|qpn| waiting.register(qpn, Turn::Had));
    let mut first = Vec::new();
    for _ in 0..6 {
        // The first one fills the socket again, before the others find that.
        let mut resumed = waiting.take_queue_pairs().into_iter();
        let next = resumed.next().unwrap();
        first.push(next);
        waiting.register(next, Turn::Had);
        resumed.for_each(|qpn| waiting.register(qpn, Turn::Missed));
    }
    assert_eq!(first, [a, b, c, a, b, c]);
}
