//! No input makes a parser panic: random bytes, and real packets that are altered and truncated.

mod common;

use common::golden_packets;
use portolan_wire::bth::BthRepr;
use portolan_wire::cm::CmMessage;
use portolan_wire::cma::CmaHeader;
use portolan_wire::eth::*;
use portolan_wire::icrc::{self, Flow, FlowV4, FlowV6, Identification};
use portolan_wire::ip::{Datagram, IpRepr, UdpRepr};
use portolan_wire::mad::{MadHeaderRepr, MadPacket, RmppHeader};
use portolan_wire::rocev2::{Headers, Packet};
use portolan_wire::{Error, Qpn};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

fn flows() -> [Flow; 2] {
    [
        Flow::V4(FlowV4 {
            src: [192, 168, 7, 2].into(),
            dst: [192, 168, 7, 1].into(),
            src_port: 0xC001,
            dst_port: 4791,
            dont_fragment: true,
        }),
        Flow::V6(FlowV6 {
            src: [0xfe80, 0, 0, 0, 0, 0, 0, 2].into(),
            dst: [0xfe80, 0, 0, 0, 0, 0, 0, 1].into(),
            src_port: 0xC001,
            dst_port: 4791,
        }),
    ]
}

/// Passes `bytes` to every parser and returns their results. Successful results are also read and
/// printed in full.
fn feed(bytes: &[u8]) {
    feed_transport(bytes);
    let _ = CmMessage::parse(bytes).map(|(_, message)| message.to_string());
    let _ = MadPacket::new_checked(bytes).map(|mad| (mad.header(), mad.data().len()));
    let _ = MadHeaderRepr::parse(bytes);
    let _ = RmppHeader::parse(bytes);
    let _ = CmaHeader::parse(bytes).map(|cma| cma.to_string());
    let _ = IpRepr::parse(bytes);
    let _ = UdpRepr::parse(bytes);
    if let Ok(Some(datagram)) = Datagram::parse(bytes) {
        let _ = (datagram.flow(), datagram.src(), datagram.dst());
        feed_transport(datagram.payload);
    }
}

fn feed_transport(bytes: &[u8]) {
    if let Ok(packet) = Packet::parse(bytes) {
        let _ = packet.to_string();
        if packet.bth().dest_qp == Qpn::GSI {
            let _ = CmMessage::parse(packet.payload()).map(|(_, message)| message.to_string());
        }
    }
    let _ = Headers::parse(bytes);
    let _ = BthRepr::parse(bytes);
    let _ = DethRepr::parse(bytes);
    let _ = FethRepr::parse(bytes);
    let _ = RethRepr::parse(bytes);
    let _ = AtomicEthRepr::parse(bytes);
    let _ = AethRepr::parse(bytes).map(|aeth| aeth.syndrome.to_string());
    let _ = AtomicAckEthRepr::parse(bytes);
    let _ = ImmDtRepr::parse(bytes);
    let _ = IethRepr::parse(bytes);
    let _ = GrhRepr::parse(bytes);
    for flow in flows() {
        for identification in [
            Identification::Known(1),
            Identification::Hidden,
            Identification::Guessed(1),
        ] {
            let _ = icrc::verify(&flow, identification, bytes);
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..400)) {
        feed(&bytes);
    }

    #[test]
    fn real_packets_with_bytes_changed_and_cut_off_never_panic(
        which: Index,
        changes in vec((any::<Index>(), any::<u8>()), 0..8),
        cut: Index,
    ) {
        let packets = golden_packets();
        let mut bytes = packets[which.index(packets.len())].clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        feed(&bytes);
    }
}

#[test]
fn every_prefix_of_every_real_packet_is_an_error_or_parses() {
    for packet in golden_packets() {
        for len in 0..=packet.len() {
            feed(&packet[..len]);
        }
    }
}

#[test]
fn a_truncated_packet_reports_how_much_is_missing() {
    assert_eq!(
        Packet::parse(&[0x04; 11]),
        Err(Error::Truncated {
            what: "BTH",
            needed: 12,
            got: 11
        })
    );
    let error = Packet::parse(&[0x04, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "RoCEv2 packet truncated: needs 16 bytes, got 15"
    );
}

#[test]
fn padding_beyond_the_payload_is_truncation_not_a_wrapped_length() {
    // SEND Only that announces three bytes of padding and has none.
    let packet = [0x04, 0x30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];
    assert!(matches!(
        Packet::parse(&packet),
        Err(Error::Truncated {
            needed: 19,
            got: 16,
            ..
        })
    ));
}

#[test]
fn an_acknowledgement_with_payload_is_malformed() {
    let mut packet = [0; 12 + 4 + 4 + 4];
    packet[0] = 0x11;
    assert!(matches!(
        Packet::parse(&packet),
        Err(Error::Malformed { got: 4, .. })
    ));
}

#[test]
fn other_classes_versions_and_methods_are_unsupported_not_misread() {
    let mut mad = [0u8; 256];
    (mad[0], mad[1], mad[2], mad[3], mad[17]) = (1, 7, 2, 3, 0x14);
    assert!(CmMessage::parse(&mad).is_ok());
    for (at, what) in [
        (0, "MAD base version"),
        (1, "MAD class"),
        (2, "CM class version"),
        (3, "CM method"),
        (17, "CM attribute"),
    ] {
        let mut other = mad;
        other[at] = 0x7F;
        assert_eq!(
            CmMessage::parse(&other),
            Err(Error::Unsupported { what, got: 0x7F })
        );
    }
    let long = [mad.as_slice(), &[0]].concat();
    assert!(matches!(
        CmMessage::parse(&long),
        Err(Error::Malformed { got: 257, .. })
    ));
}

#[test]
fn a_first_fragment_is_a_specific_error_and_later_fragments_are_ignored() {
    let packet = golden_packets()
        .into_iter()
        .find(|packet| matches!(Datagram::parse(packet), Ok(Some(_))))
        .unwrap();
    let flags_at = 6;
    let mut first = packet.clone();
    first[flags_at] = 0x20;
    assert!(matches!(
        Datagram::parse(&first),
        Err(Error::Unsupported { .. })
    ));
    let mut later = packet;
    later[flags_at + 1] = 0x10;
    assert_eq!(Datagram::parse(&later), Ok(None));
}
