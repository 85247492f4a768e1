use proptest::prelude::*;

use super::*;

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

/// A message that owns its bytes, for proptest.
#[derive(Clone, Debug)]
struct Owned {
    kind: u8,
    block: Block,
    number: u64,
    source: SocketAddr,
    destination: IpAddr,
    payload: Vec<u8>,
}

impl Owned {
    fn message(&self) -> Message<'_> {
        let Self {
            block,
            number: id,
            payload,
            ..
        } = self;
        let (block, id, payload) = (*block, *id, payload.as_slice());
        let after_ms = id as u16;
        match self.kind {
            0 => Message::Hello {
                version: id as u8,
                rejoin: (block != Block::COORDINATOR).then_some(block),
            },
            1 => Message::Welcome { block },
            2 => Message::Refused {
                refusal: Refusal::NotTrusted { uid: id as u32 },
            },
            3 => Message::Refused {
                refusal: Refusal::Version {
                    coordinator: id as u8,
                },
            },
            4 => Message::Refused {
                refusal: Refusal::Full,
            },
            5 => Message::Refused {
                refusal: Refusal::BlockTaken { block },
            },
            6 => Message::Later { after_ms },
            7 => Message::Request { id, payload },
            8 => Message::Replay { payload },
            9 => Message::ReplaysDone {},
            10 => Message::Response { id, payload },
            11 => Message::ResponseLater { id, after_ms },
            12 => Message::PeerDeath {
                blocks: BlockSet::from_bits(u128::from(id) << 40),
            },
            13 => Message::Observe { version: id as u8 },
            14 => Message::Roster {
                block,
                pid: id as u32,
                uid: (id >> 32) as u32,
            },
            15 => Message::Survey { id },
            16 => Message::Report {
                survey: id,
                block,
                last: id % 2 == 0,
                payload,
            },
            17 => Message::Replayed { payload },
            _ => Message::Datagram {
                block,
                datagram: Datagram {
                    source: self.source,
                    destination: self.destination,
                    interface: id as u32,
                    traffic_class: (id >> 32) as u8,
                    hop_limit: (id >> 40) as u8,
                    payload,
                },
            },
        }
    }
}

/// A socket address without a flow label, which messages do not carry.
fn socket_addr() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), any::<u16>(), any::<u32>()).prop_map(|(ip, port, scope)| match ip {
        IpAddr::V4(v4) => SocketAddr::V4(SocketAddrV4::new(v4, port)),
        IpAddr::V6(v6) => SocketAddr::V6(SocketAddrV6::new(v6, port, 0, scope)),
    })
}

fn message() -> impl Strategy<Value = Owned> {
    let payload = proptest::collection::vec(any::<u8>(), 0..REQUEST_BYTES_MAX);
    (
        0..=18u8,
        0..128u8,
        any::<u64>(),
        socket_addr(),
        any::<IpAddr>(),
        payload,
    )
        .prop_map(
            |(kind, block, number, source, destination, payload)| Owned {
                kind,
                block: Block::new(block).unwrap_or(Block::COORDINATOR),
                number,
                source,
                destination,
                payload,
            },
        )
}

#[test]
fn fields_are_in_the_order_of_the_protocol() {
    let hello = Message::Hello {
        version: 3,
        rejoin: Block::new(7),
    };
    assert_eq!(encoded(&hello), *b"\x01PRTL\x03\x07");
    let report = Message::Report {
        survey: 2,
        block: Block::COORDINATOR,
        last: true,
        payload: b"all",
    };
    assert_eq!(encoded(&report), *b"\x0F\0\0\0\0\0\0\0\x02\0\x01all");
}

proptest! {
    #[test]
    fn an_encoded_message_decodes_to_the_same(owned in message()) {
        let bytes = encoded(&owned.message());
        prop_assert!(bytes.len() <= MESSAGE_BYTES_MAX);
        prop_assert_eq!(Message::decode(&bytes), Ok(owned.message()));
    }

    #[test]
    fn any_bytes_decode_to_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
        if let Ok(message) = Message::decode(&bytes) {
            // A message has one encoding, except for the scope id of an IPv4 source.
            let again = encoded(&message);
            prop_assert_eq!(Message::decode(&again), Ok(message));
        }
    }

    #[test]
    fn a_message_cut_short_in_its_header_is_malformed(owned in message(), cut in 0..48usize) {
        let payload_bytes = match owned.message() {
            Message::Request { .. } | Message::Replay { .. } | Message::Response { .. }
            | Message::Replayed { .. } | Message::Report { .. } | Message::Datagram { .. } => owned.payload.len(),
            _ => 0,
        };
        let bytes = encoded(&owned.message());
        let header = bytes.len() - payload_bytes;
        if cut < header {
            prop_assert!(Message::decode(&bytes[..cut]).is_err());
        }
    }
}

#[test]
fn a_hello_without_the_magic_is_malformed() {
    let mut bytes = encoded(&Message::Hello {
        version: VERSION,
        rejoin: None,
    });
    bytes[1] ^= 0xff;
    let error = Message::decode(&bytes).unwrap_err();
    assert_eq!(error.expected, "magic");
}

#[test]
fn bytes_after_a_message_of_fixed_length_are_malformed() {
    let mut bytes = encoded(&Message::Welcome {
        block: Block::COORDINATOR,
    });
    bytes.push(0);
    assert_eq!(Message::decode(&bytes).unwrap_err().expected, "the end");
}

#[test]
fn a_payload_over_the_bound_is_malformed() {
    let payload = vec![0; REQUEST_BYTES_MAX + 1];
    let bytes = encoded(&Message::Request {
        id: 1,
        payload: &payload,
    });
    assert!(Message::decode(&bytes).is_err());
}

#[test]
fn every_refusal_explains_itself() {
    let block = Block::new(9).unwrap();
    let uid = Refusal::NotTrusted { uid: 1001 }.to_string();
    assert!(uid.contains("1001"), "{uid}");
    let version = Refusal::Version { coordinator: 7 }.to_string();
    let ours = VERSION.to_string();
    assert!(
        version.contains('7') && version.contains(&ours),
        "{version}"
    );
    let taken = Refusal::BlockTaken { block }.to_string();
    assert!(taken.contains('9'), "{taken}");
}
