use std::os::fd::AsFd;

use proptest::prelude::*;

use super::*;
use crate::engine::CompactSend;

const KINDS: [Kind; 4] = [Kind::Wrap, Kind::Packets, Kind::Compact, Kind::Pull];

const THREAD: Sleepers = Sleepers {
    thread: true,
    waiter: false,
};

/// Both ends of a ring, and the reader's head page. The writer has its own handle on the file, as in another
/// process.
pub(crate) fn ring() -> (Writer, Reader, HeadPage) {
    let head_page = HeadPage::create().unwrap();
    let (pending, file) = Writer::create().unwrap();
    let from = Block::new(7).unwrap();
    let reader = Reader::open(file.as_fd(), from, 3, &head_page)
        .unwrap()
        .unwrap();
    let writer = pending.open(head_page.file().unwrap(), 3).unwrap().unwrap();
    (writer, reader, head_page)
}

fn record(payload: &[u8]) -> Record<'_> {
    let head = RecordHead {
        source: "10.0.0.1:50000".parse().unwrap(),
        destination: "10.0.0.2".parse().unwrap(),
        packet_len: 100,
        traffic_class: 0x68,
        hop_limit: 63,
    };
    Record { head, payload }
}

/// Reads one record.
fn read_one(reader: &mut Reader) -> Result<Option<(RecordHead, Vec<u8>)>, Broken> {
    let mut records = Records::default();
    reader.read_one(&mut records)?;
    let record = records.iter().next();
    Ok(record.map(|record| (record.head, record.payload.to_vec())))
}

/// The next record, if it is in the short form.
fn next_compact(reader: &mut Reader) -> Result<Option<CompactRecord>, Broken> {
    match reader.next()? {
        Next::Compact => reader.compact().map(Some),
        Next::Nothing | Next::Pull | Next::Packets => Ok(None),
    }
}

#[test]
fn a_record_arrives_with_its_addresses() {
    let (mut writer, mut reader, head_page) = ring();
    for (source, destination) in [
        ("10.0.0.1:50000", "10.0.0.2"),
        ("[2001:db8::1]:4791", "2001:db8::2"),
    ] {
        let head = RecordHead {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            packet_len: 3,
            traffic_class: 0x68,
            hop_limit: 63,
        };
        let payload = &b"packets"[..];
        assert_eq!(
            writer.write(&Record { head, payload }),
            Ok(Written::Done(THREAD))
        );
        assert!(reader.has_more());
        assert_eq!(read_one(&mut reader), Ok(Some((head, payload.to_vec()))));
        assert!(!reader.release(&head_page));
        assert!(!reader.has_more());
    }
    assert_eq!(read_one(&mut reader), Ok(None));
}

#[test]
fn the_bell_is_rung_only_for_a_sleeping_reader_that_has_read_everything() {
    let (mut writer, mut reader, head_page) = ring();
    assert_eq!(writer.write(&record(b"1")), Ok(Written::Done(THREAD)));
    assert_eq!(
        writer.write(&record(b"2")),
        Ok(Written::Done(Sleepers::default()))
    );
    while read_one(&mut reader).unwrap().is_some() {
        reader.release(&head_page);
    }
    head_page.asleep().end();
    assert_eq!(
        writer.write(&record(b"3")),
        Ok(Written::Done(Sleepers::default()))
    );
    head_page.asleep().announce();
    assert!(reader.has_more(), "it checks once more before it sleeps");
}

#[test]
fn a_full_ring_takes_no_more_until_its_reader_releases_room_and_signals_that() {
    let (mut writer, mut reader, head_page) = ring();
    let payload = [7; 60_000];
    let mut written = 0;
    while writer.write(&record(&payload)).unwrap() != Written::Full {
        written += 1;
    }
    assert_eq!(written, RING_LEN / record_len(HEADER_LEN, 60_000));
    writer.want_room();
    assert_eq!(writer.write(&record(&payload)), Ok(Written::Full));
    assert_eq!(read_one(&mut reader).unwrap().unwrap().1, payload);
    assert!(reader.release(&head_page), "the writer waits");
    assert_ne!(writer.write(&record(&payload)), Ok(Written::Full));
    writer.have_room();
    assert_eq!(read_one(&mut reader).unwrap().unwrap().1, payload);
    assert!(!reader.release(&head_page));
}

#[test]
fn a_writer_that_waits_is_woken_at_the_latest_when_all_short_records_are_read() {
    let (mut writer, mut reader, head_page) = ring();
    for lap in 0..3 {
        let mut unread = 0;
        while writer.write(&record(b"short")).unwrap() != Written::Full {
            unread += 1;
        }
        writer.want_room();
        assert_eq!(writer.write(&record(b"short")), Ok(Written::Full), "{lap}");
        let wakes = |reader: &mut Reader| {
            read_one(reader).unwrap().expect("a record");
            reader.release(&head_page)
        };
        let read = (1..=unread).find(|_| wakes(&mut reader)).expect("woken");
        assert!(read * record_len(HEADER_LEN, 5) <= 2 * LOOK_EVERY, "{lap}");
        writer.have_room();
        // Not a whole number of looks, so that the next lap begins between two.
        for _ in 0..lap + 1 {
            assert!(!wakes(&mut reader), "no writer waits");
        }
    }
}

#[test]
fn records_are_read_together_up_to_a_bound_and_those_before_a_broken_one_count() {
    let (mut writer, mut reader, head_page) = ring();
    let mut records = Records::default();
    for number in 0..100 {
        writer.write(&record(&[number; 9])).unwrap();
    }
    assert_eq!(reader.read(&mut records), Ok(()));
    let firsts: Vec<u8> = records.iter().map(|record| record.payload[0]).collect();
    assert_eq!(firsts, (0..RECORDS_MAX as u8).collect::<Vec<_>>());
    reader.release(&head_page);
    // Corrupt the length of the last record: it is too great.
    let last = writer.tail as usize - record_len(HEADER_LEN, 9);
    writer
        .mapping
        .copy_in(RING_AT + last + MARK_LEN, &99_999_u32.to_ne_bytes());
    assert_eq!(reader.read(&mut records), Err(Broken));
    assert_eq!(records.len(), 100 - RECORDS_MAX - 1);
    let (mut writer, mut reader, _) = ring();
    writer.write(&record(&[1; 60_000])).unwrap();
    writer.write(&record(&[2])).unwrap();
    assert_eq!(reader.read(&mut records), Ok(()));
    assert_eq!(records.len(), 1, "the long one fills the batch");
}

#[test]
fn records_are_seen_when_they_are_published_and_one_that_was_not_ended_never() {
    let (mut writer, mut reader, head_page) = ring();
    let mut records = Records::default();
    let begin = |writer: &mut Writer, byte: u8| {
        let place = writer.begin(&record(&[]).head, 5).unwrap().unwrap();
        writer.mapping.copy_in(place.at, &[byte; 5]);
        place
    };
    for byte in [1, 2] {
        let place = begin(&mut writer, byte);
        writer.end(&place, Kind::Packets);
    }
    let _ = begin(&mut writer, 3);
    assert!(!reader.has_more());
    assert!(writer.publish().thread, "the reader sleeps");
    reader.read(&mut records).unwrap();
    let payloads: Vec<&[u8]> = records.iter().map(|record| record.payload).collect();
    assert_eq!(payloads, [[1; 5], [2; 5]]);
    reader.release(&head_page);
    writer.write(&record(b"after")).unwrap();
    assert_eq!(read_one(&mut reader).unwrap().unwrap().1, b"after");
}

fn compact(len: u32, has_send: bool) -> Compact {
    Compact {
        tag: 6,
        source_port: 7,
        send: has_send.then(|| CompactSend {
            psn: portolan_wire::Psn::new(len),
            immediate: Some([1, 2, 3, 4]),
            solicited: true,
            ack_request: true,
            len,
        }),
        ..Compact::to(portolan_wire::Qpn::new(5))
    }
}

/// Writes a record in the short form. Returns false if there is no room.
fn write_compact(writer: &mut Writer, payload: &[u8]) -> bool {
    let Some(place) = writer.begin_compact(payload.len()).unwrap() else {
        return false;
    };
    writer.mapping.copy_in(place.at, payload);
    writer.end_compact(
        place,
        &CompactWords::of(&compact(payload.len() as u32, true)),
    );
    writer.publish();
    true
}

#[test]
fn a_record_that_no_writer_makes_breaks_the_ring() {
    type Change = fn(&mut [u32; 8]);
    for change in [
        (|words| words[0] += 1 << 16) as Change,
        (|words| words[0] += 4096) as Change,
        (|words| words[1] |= 1 << 31) as Change,
        (|words| words[1] &= 0x00ff_ffff) as Change,
        (|words| words[2] |= 1 << 24) as Change,
        (|words| words[7] |= 1 << 16) as Change,
    ] {
        let (mut writer, mut reader, _board) = ring();
        assert!(write_compact(&mut writer, &[1; 64]));
        let mut words = compact(64, true).emit();
        change(&mut words);
        writer.mapping.copy_words_in(RING_AT + MARK_LEN, &words);
        assert_eq!(
            next_compact(&mut reader).map(|_| ()),
            Err(Broken),
            "{words:x?}"
        );
    }
}

#[test]
fn a_ring_whose_end_is_skipped_to_nothing_is_broken() {
    let at_start = |kind| Ok(Some((0, kind)));
    for (at, next, expected) in [
        (0, None, Err(Broken)),
        (128, None, Err(Broken)),
        (128, Some(Kind::Wrap), Err(Broken)),
        (128, Some(Kind::Compact), at_start(Kind::Compact)),
        (128, Some(Kind::Pull), at_start(Kind::Pull)),
    ] {
        let (mut writer, mut reader, _board) = ring();
        while writer.tail < at {
            writer.write(&record(b"x")).unwrap();
        }
        reader.read(&mut Records::default()).unwrap();
        mark_at(&writer.mapping, at).prepare(mark_of(at, Kind::Wrap));
        if let Some(next) = next {
            let lap = RING_LEN as u64;
            mark_at(&writer.mapping, lap).prepare(mark_of(lap, next));
        }
        assert_eq!(reader.next_record(), expected, "{at} {next:?}");
    }
}

proptest! {
    #[test]
    fn a_payload_that_looks_like_records_of_later_laps_is_not_taken_for_one(
        lens in proptest::collection::vec(1..=4096_usize, 200..400),
        kind in 0..KINDS.len(),
        together in 1..4_usize,
    ) {
        let (mut writer, mut reader, head_page) = ring();
        let mut sent = Vec::new();
        for (number, len) in lens.into_iter().enumerate() {
            let next_lap = mark_of(writer.tail + RING_LEN as u64, KINDS[kind]);
            let payload: Vec<u8> = next_lap.to_ne_bytes().into_iter().cycle().take(len).collect();
            let place = writer.begin_compact(len).unwrap().unwrap();
            writer.mapping.copy_in(place.at, &payload);
            writer.end_compact(place, &CompactWords::of(&compact(len as u32, true)));
            prop_assert!(!reader.has_more(), "nothing is published");
            sent.push(payload);
            if number % together == 0 {
                writer.publish();
                for payload in sent.drain(..) {
                    let got = next_compact(&mut reader).unwrap().unwrap();
                    prop_assert_eq!(reader.payload_of(&got), payload);
                    reader.pass(&got);
                }
                prop_assert!(!reader.has_more());
                reader.release(&head_page);
            }
        }
    }

    #[test]
    fn both_forms_of_records_arrive_unchanged_and_in_order(
        records in proptest::collection::vec((any::<bool>(), 0..=4096_usize), 1..400),
    ) {
        let (mut writer, mut reader, head_page) = ring();
        let mut sent = std::collections::VecDeque::new();
        let mut read = |sent: &mut std::collections::VecDeque<(bool, Vec<u8>)>| {
            while let Some((is_compact, payload)) = sent.pop_front() {
                let got = match next_compact(&mut reader).unwrap() {
                    Some(record) => {
                        let expected = compact(payload.len() as u32, true);
                        assert_eq!(record.compact.whole(), expected);
                        let got = reader.payload_of(&record);
                        reader.pass(&record);
                        (true, got)
                    }
                    None => (false, read_one(&mut reader).unwrap().unwrap().1),
                };
                assert_eq!(got, (is_compact, payload));
                reader.release(&head_page);
            }
        };
        for (number, (is_compact, len)) in (0..=u8::MAX).cycle().zip(records) {
            let payload = vec![number; len];
            for attempt in 0..2 {
                let is_written = match is_compact {
                    true => write_compact(&mut writer, &payload),
                    false => writer.write(&record(&payload)).unwrap() != Written::Full,
                };
                if is_written {
                    sent.push_back((is_compact, payload));
                    break;
                }
                prop_assert_eq!(attempt, 0, "an empty ring has room");
                read(&mut sent);
            }
        }
        read(&mut sent);
    }

    #[test]
    fn records_of_any_lengths_arrive_unchanged_and_in_order(
        lens in proptest::collection::vec(0..=65_536_usize, 1..60),
        reads in proptest::collection::vec(0..4_usize, 1..60),
    ) {
        let (mut writer, mut reader, head_page) = ring();
        let mut sent = std::collections::VecDeque::new();
        let mut reads = reads.into_iter().cycle();
        for (number, len) in (0_u8..).zip(lens) {
            let payload = vec![number; len];
            if writer.write(&record(&payload)).unwrap() != Written::Full {
                sent.push_back(payload);
            }
            for _ in 0..reads.next().unwrap_or_default() {
                let got = read_one(&mut reader).unwrap().map(|(_, payload)| payload);
                reader.release(&head_page);
                prop_assert_eq!(got, sent.pop_front());
            }
        }
        while let Some(expected) = sent.pop_front() {
            let got = read_one(&mut reader).unwrap().map(|(_, payload)| payload);
            reader.release(&head_page);
            prop_assert_eq!(got, Some(expected));
        }
        prop_assert!(!reader.has_more());
    }

    #[test]
    fn arbitrary_contents_of_a_writers_file_do_not_harm_its_reader(
        junk in proptest::collection::vec(any::<u8>(), 0..4096),
        at in 0..RING_LEN,
        marks in proptest::collection::vec((0..RING_LEN / LINE, 0..2_u64, 0..KINDS.len()), 0..64),
        first in 0..KINDS.len(),
    ) {
        let (writer, mut reader, head_page) = ring();
        writer.mapping.copy_in(RING_AT + at.min(RING_LEN - junk.len()), &junk);
        writer.mapping.copy_in(RING_AT, junk.get(..LINE.min(junk.len())).unwrap());
        for (line, lap, kind) in marks.into_iter().chain([(0, 0, first)]) {
            let position = lap * RING_LEN as u64 + (line * LINE) as u64;
            mark_at(&writer.mapping, position).prepare(mark_of(position, KINDS[kind]));
        }
        let mut records = Records::default();
        for _ in 0..RING_LEN / LINE {
            while let Ok(Some(compact)) = next_compact(&mut reader) {
                prop_assert!(reader.payload_of(&compact).len() <= Compact::PAYLOAD_MAX as usize);
                reader.pass(&compact);
            }
            while let Ok(Some(_)) = reader.pull() {}
            match reader.read(&mut records) {
                Ok(()) if records.len() > 0 => {
                    let is_within = |record: Record<'_>| record.payload.len() <= PAYLOAD_MAX;
                    prop_assert!(records.iter().all(is_within));
                }
                Ok(()) | Err(Broken) => break,
            }
            reader.release(&head_page);
        }
    }

    #[test]
    fn a_reader_with_an_invalid_position_is_not_written_to(
        off in prop_oneof![1..2 * RING_LEN as u64, 1_u64..],
        is_behind: bool,
    ) {
        let (mut writer, _, head_page) = ring();
        let position = if is_behind { off.wrapping_neg() } else { off };
        head_page.head(3).release(position, room_wanted_of(&writer.mapping));
        prop_assert_eq!(writer.write(&record(b"x")), Err(Broken));
    }
}
