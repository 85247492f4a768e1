use std::os::fd::AsFd;

use proptest::prelude::*;

use super::*;

/// Both ends of a ring, and the reader's board. The writer has its own handle on the file, as in another
/// process.
fn ring() -> (Writer, Reader, Board) {
    let board = Board::create().unwrap();
    let (pending, file) = Writer::create().unwrap();
    let from = Block::new(7).unwrap();
    let reader = Reader::open(file.as_fd(), from, 3, &board)
        .unwrap()
        .unwrap();
    let writer = pending.open(board.file().unwrap(), 3).unwrap().unwrap();
    (writer, reader, board)
}

fn record(payload: &[u8]) -> Record<'_> {
    Record {
        source: "10.0.0.1:50000".parse().unwrap(),
        destination: "10.0.0.2".parse().unwrap(),
        packet_len: 100,
        payload,
    }
}

#[test]
fn a_record_arrives_with_its_addresses() {
    let (mut writer, mut reader, board) = ring();
    for (source, destination) in [
        ("10.0.0.1:50000", "10.0.0.2"),
        ("[2001:db8::1]:4791", "2001:db8::2"),
    ] {
        let sent = Record {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            packet_len: 3,
            payload: b"packets",
        };
        assert_eq!(writer.write(&sent), Ok(Written::Ring));
        assert!(reader.has_more());
        let got = reader.read().unwrap().unwrap();
        assert_eq!(
            (got.source, got.destination),
            (sent.source, sent.destination)
        );
        assert_eq!((got.packet_len, got.payload), (3, &b"packets"[..]));
        assert!(!reader.release(&board));
        assert!(!reader.has_more());
    }
    assert!(reader.read().unwrap().is_none());
}

#[test]
fn the_bell_is_rung_only_for_a_sleeping_reader_that_has_read_everything() {
    let (mut writer, mut reader, board) = ring();
    assert_eq!(writer.write(&record(b"1")), Ok(Written::Ring));
    assert_eq!(writer.write(&record(b"2")), Ok(Written::Unnoticed));
    while reader.read().unwrap().is_some() {
        reader.release(&board);
    }
    board.asleep().end();
    assert_eq!(writer.write(&record(b"3")), Ok(Written::Unnoticed));
    board.asleep().announce();
    assert!(reader.has_more(), "it checks once more before it sleeps");
}

#[test]
fn a_full_ring_takes_no_more_until_its_reader_releases_room_and_signals_that() {
    let (mut writer, mut reader, board) = ring();
    let payload = [7; 60_000];
    let mut written = 0;
    while writer.write(&record(&payload)).unwrap() != Written::Full {
        written += 1;
    }
    assert_eq!(written, RING_LEN / 60_040);
    writer.want_room();
    assert_eq!(writer.write(&record(&payload)), Ok(Written::Full));
    assert_eq!(reader.read().unwrap().unwrap().payload, payload);
    assert!(reader.release(&board), "the writer waits");
    assert_ne!(writer.write(&record(&payload)), Ok(Written::Full));
    writer.have_room();
    assert_eq!(reader.read().unwrap().unwrap().payload, payload);
    assert!(!reader.release(&board));
}

proptest! {
    #[test]
    fn records_of_any_lengths_arrive_unchanged_and_in_order(
        lens in proptest::collection::vec(0..=65_536_usize, 1..60),
        reads in proptest::collection::vec(0..4_usize, 1..60),
    ) {
        let (mut writer, mut reader, board) = ring();
        let mut sent = std::collections::VecDeque::new();
        let mut reads = reads.into_iter().cycle();
        for (number, len) in (0_u8..).zip(lens) {
            let payload = vec![number; len];
            if writer.write(&record(&payload)).unwrap() != Written::Full {
                sent.push_back(payload);
            }
            for _ in 0..reads.next().unwrap_or_default() {
                let got = reader.read().unwrap().map(|record| record.payload.to_vec());
                reader.release(&board);
                prop_assert_eq!(got, sent.pop_front());
            }
        }
        while let Some(expected) = sent.pop_front() {
            let got = reader.read().unwrap().map(|record| record.payload.to_vec());
            reader.release(&board);
            prop_assert_eq!(got, Some(expected));
        }
        prop_assert!(!reader.has_more());
    }

    #[test]
    fn arbitrary_contents_of_a_writers_file_do_not_harm_its_reader(
        junk in proptest::collection::vec(any::<u8>(), 0..4096),
        at in 0..RING_LEN,
        tail: u64,
        near in proptest::option::of(0..3 * RING_LEN as u64),
    ) {
        let (writer, mut reader, board) = ring();
        writer.mapping.copy_in(RING_AT + at.min(RING_LEN - junk.len()), &junk);
        writer.mapping.copy_in(RING_AT, junk.get(..64.min(junk.len())).unwrap());
        writer.mapping.copy_in(0, &near.unwrap_or(tail).to_ne_bytes());
        for _ in 0..RING_LEN / ALIGN {
            match reader.read() {
                Ok(Some(record)) => prop_assert!(record.payload.len() <= PAYLOAD_MAX),
                Ok(None) | Err(Broken) => break,
            }
            reader.release(&board);
        }
    }

    #[test]
    fn a_reader_with_an_invalid_position_is_not_written_to(word in RING_LEN as u64..) {
        let (mut writer, _, board) = ring();
        board.head(3).release(word.wrapping_neg(), tail_of(&writer.mapping));
        let written = writer.write(&record(b"x"));
        prop_assert!(matches!(written, Err(Broken) | Ok(Written::Full)), "{:?}", written);
    }
}
