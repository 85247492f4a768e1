use proptest::prelude::*;

use super::*;

const SOURCE: Advertisement = Advertisement {
    addr: 0x0000_5581_0102_0304,
    rkey: 0x0A0B_0C0D,
    size: 64,
};
const SINK: Advertisement = Advertisement {
    addr: 0x7000,
    rkey: 7,
    size: 64,
};

#[test]
fn an_advertisement_is_laid_out_as_rping_lays_it_out() {
    let message = [
        0x00, 0x00, 0x55, 0x81, 0x01, 0x02, 0x03, 0x04, // buf, be64
        0x0A, 0x0B, 0x0C, 0x0D, // rkey, be32
        0x00, 0x00, 0x00, 0x40, // size, be32
    ];
    assert_eq!(SOURCE.emit(), message);
    assert_eq!(Advertisement::parse(&message), Ok(SOURCE));
}

#[test]
fn a_client_and_a_server_ping_until_the_client_stops() {
    let (mut client, mut server) = (Client::new(SOURCE, SINK), Server::new());
    for ping in 0..3 {
        assert_eq!(server.pings(), ping);
        let source = client.start().unwrap();
        assert_eq!(server.message(&source), Ok(ServerStep::Read(SOURCE)));
        assert!(server.is_busy());
        assert_eq!(server.read_done(), Ok(()));
        let Ok(ClientStep::Send(sink)) = client.message(&GO_AHEAD) else {
            panic!("the client must advertise its sink");
        };
        assert_eq!(server.message(&sink), Ok(ServerStep::Write(SINK)));
        assert_eq!(server.write_done(), Ok(()));
        assert_eq!(client.message(&GO_AHEAD), Ok(ClientStep::Complete));
    }
    assert!(!server.is_busy());
    assert_eq!(server.pings(), 3);
}

#[test]
fn a_client_accepts_any_sixteen_bytes_from_the_server() {
    let mut client = Client::new(SOURCE, SINK);
    client.start().unwrap();
    assert_eq!(
        client.message(&[0xFF; MESSAGE_LEN]),
        Ok(ClientStep::Send(SINK.emit()))
    );
}

#[test]
fn a_server_writes_no_more_than_it_read() {
    let mut server = Server::new();
    server.message(&SOURCE.emit()).unwrap();
    server.read_done().unwrap();
    let roomy = Advertisement { size: 4096, ..SINK };
    assert_eq!(server.message(&roomy.emit()), Ok(ServerStep::Write(SINK)));
}

#[test]
fn messages_of_another_length_are_refused_by_both_sides() {
    let mut client = Client::new(SOURCE, SINK);
    client.start().unwrap();
    for len in [0, 15, 17] {
        let message = vec![0; len];
        let error = Error::MessageLength { got: len };
        assert_eq!(client.message(&message), Err(error));
        assert_eq!(Server::new().message(&message), Err(error));
    }
}

#[test]
fn buffers_of_no_size_or_an_absurd_one_are_refused() {
    for size in [0, MAX_SIZE + 1, u32::MAX] {
        let message = Advertisement { size, ..SOURCE }.emit();
        let error = Error::Size {
            got: size,
            max: MAX_SIZE,
        };
        assert_eq!(Server::new().message(&message), Err(error));
    }
    let mut server = Server::new();
    server.message(&SOURCE.emit()).unwrap();
    server.read_done().unwrap();
    let small = Advertisement { size: 63, ..SINK }.emit();
    assert_eq!(
        server.message(&small),
        Err(Error::SinkTooSmall {
            source_size: 64,
            sink: 63
        })
    );
}

#[test]
fn each_side_refuses_messages_out_of_order() {
    fn out_of_turn<T>(result: Result<T, Error>) -> bool {
        matches!(result, Err(Error::OutOfTurn { .. }))
    }
    let mut server = Server::new();
    assert!(out_of_turn(server.read_done()));
    assert!(out_of_turn(server.write_done()));
    server.message(&SOURCE.emit()).unwrap();
    assert!(
        out_of_turn(server.message(&SINK.emit())),
        "before our read has completed"
    );
    assert!(out_of_turn(server.write_done()));

    let mut client = Client::new(SOURCE, SINK);
    assert!(out_of_turn(client.message(&GO_AHEAD)));
    client.start().unwrap();
    assert!(out_of_turn(client.start()));
}

#[test]
fn the_data_is_rpings() {
    let mut buffer = [0xFF; 24];
    fill(&mut buffer, 0);
    assert_eq!(&buffer, b"rdma-ping-0: ABCDEFGHIJ\0");
    fill(&mut buffer, 57);
    assert_eq!(&buffer, b"rdma-ping-57: zABCDEFGH\0");
    fill(&mut buffer, 58);
    assert_eq!(&buffer, b"rdma-ping-58: ABCDEFGHI\0");
    let mut long = [0; 200];
    fill(&mut long, 1);
    assert_eq!(long[13], b'B');
    assert_eq!(&long[13 + 57..13 + 59], b"AB", "A follows z");
}

#[test]
fn a_mismatch_is_reported_with_offset_and_length() {
    let error = compare(b"abcdef", b"abXdeY").unwrap_err();
    assert_eq!(
        error.to_string(),
        "data mismatch at byte 2 of 6: sent 0x63, got 0x58 back; 2 bytes differ"
    );
    assert_eq!(compare(b"abc", b"ab").unwrap_err().at, 2);
}

proptest! {
    /// rping's server finds the end of the data by its first zero byte.
    #[test]
    fn the_only_zero_of_the_data_is_its_last_byte(len in 1_usize..500, ping: u64) {
        let mut buffer = vec![0; len];
        fill(&mut buffer, ping);
        prop_assert_eq!(buffer.iter().position(|&byte| byte == 0), Some(len - 1));
    }

    #[test]
    fn consecutive_pings_never_carry_the_same_data(ping in 0_u64..1_000_000) {
        let (mut a, mut b) = ([0; 64], [0; 64]);
        fill(&mut a, ping);
        fill(&mut b, ping + 1);
        prop_assert!(compare(&a, &b).is_err());
    }

    #[test]
    fn no_sequence_of_messages_panics_or_yields_an_oversized_transfer(
        messages in prop::collection::vec((prop::collection::vec(any::<u8>(), 14..18), 0_u8..3), 0..50)
    ) {
        let mut server = Server::new();
        for (message, then) in messages {
            match then {
                0 => if let Ok(ServerStep::Read(region) | ServerStep::Write(region)) = server.message(&message) {
                    prop_assert!((1..=MAX_SIZE).contains(&region.size));
                },
                1 => drop(server.read_done()),
                _ => drop(server.write_done()),
            }
        }
    }
}
