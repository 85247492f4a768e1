//! Emitted values parse to the same value, and emitting writes all of its bytes and no others.

mod common;

use common::strategies;
use portolan_wire::bth::{self, BthRepr, Opcode, Payload};
use portolan_wire::cm::CmMessage;
use portolan_wire::cma::CmaHeader;
use portolan_wire::eth::*;
use portolan_wire::mad::{MAD_LEN, MadHeaderRepr, RmppHeader};
use portolan_wire::rocev2::{Headers, ICRC_LEN, MAX_HEADERS_LEN, Packet, pad_len};
use portolan_wire::{Error, Psn, Qpn};
use proptest::collection::vec;
use proptest::prelude::*;

/// Fills output buffers before emitting, so that an unwritten byte is noticed.
const POISON: u8 = 0xA5;

/// Emits over poison, then over its complement: a byte that differs was not written. Then parses
/// the result, and emits into a buffer that is one byte short.
macro_rules! check_round_trip {
    ($repr:expr, $type:ident) => {{
        let repr = $repr;
        let mut out = [POISON; $type::LEN + 1];
        let mut complement = [!POISON; $type::LEN + 1];
        prop_assert_eq!(repr.emit(&mut out).unwrap(), $type::LEN);
        repr.emit(&mut complement).unwrap();
        prop_assert_eq!(&out[..$type::LEN], &complement[..$type::LEN]);
        prop_assert_eq!(out[$type::LEN], POISON);
        prop_assert_eq!($type::parse(&out).unwrap(), repr);
        prop_assert!($type::parse(&out[..$type::LEN - 1]).is_err());
        prop_assert!(repr.emit(&mut out[..$type::LEN - 1]).is_err());
    }};
}

proptest! {
    #[test]
    fn every_extension_header_survives(
        deth in strategies::deth(),
        xrceth in strategies::xrceth(),
        feth in strategies::feth(),
        reth in strategies::reth(),
        atomic_eth in strategies::atomic_eth(),
        aeth in strategies::aeth(),
        atomic_ack in strategies::atomic_ack(),
        immdt in strategies::immdt(),
        ieth in strategies::ieth(),
        grh in strategies::grh(),
    ) {
        check_round_trip!(deth, DethRepr);
        check_round_trip!(xrceth, XrcEthRepr);
        check_round_trip!(feth, FethRepr);
        check_round_trip!(reth, RethRepr);
        check_round_trip!(atomic_eth, AtomicEthRepr);
        check_round_trip!(aeth, AethRepr);
        check_round_trip!(atomic_ack, AtomicAckEthRepr);
        check_round_trip!(immdt, ImmDtRepr);
        check_round_trip!(ieth, IethRepr);
        check_round_trip!(grh, GrhRepr);
    }

    #[test]
    fn management_headers_survive(
        header in strategies::mad_header(),
        rmpp in strategies::rmpp(),
        cma in strategies::cma_header(),
    ) {
        check_round_trip!(header, MadHeaderRepr);
        check_round_trip!(rmpp, RmppHeader);
        check_round_trip!(cma, CmaHeader);
    }

    #[test]
    fn the_base_header_survives(bth in strategies::bth()) {
        let mut out = [POISON; bth::LEN];
        bth.emit(&mut out).unwrap();
        prop_assert_eq!(BthRepr::parse(&out).unwrap(), bth);
    }

    #[test]
    fn whole_packets_survive(headers in strategies::headers(), data in vec(any::<u8>(), 0..200)) {
        let mut headers = headers;
        let payload = match headers.bth.opcode.payload() {
            Payload::None => &[][..],
            Payload::Any => &data,
            Payload::Exactly(len) => &[7; 64][..len],
        };
        headers.bth.pad_count = pad_len(payload.len()) as u8;
        let mut packet = vec![POISON; MAX_HEADERS_LEN];
        let len = headers.emit(&mut packet).unwrap();
        prop_assert_eq!(len, headers.len());
        packet.truncate(len);
        packet.extend_from_slice(payload);
        packet.resize(packet.len() + pad_len(payload.len()), 0);
        packet.extend_from_slice(&0x1234_5678u32.to_le_bytes());

        let parsed = Packet::parse(&packet).unwrap();
        prop_assert_eq!(parsed.headers(), headers);
        prop_assert_eq!(parsed.bth(), &headers.bth);
        prop_assert_eq!(parsed.deth(), headers.deth);
        prop_assert_eq!(parsed.xrceth(), headers.xrceth);
        prop_assert_eq!(parsed.feth(), headers.feth);
        prop_assert_eq!(parsed.reth(), headers.reth);
        prop_assert_eq!(parsed.atomic_eth(), headers.atomic_eth);
        prop_assert_eq!(parsed.aeth(), headers.aeth);
        prop_assert_eq!(parsed.atomic_ack(), headers.atomic_ack_eth);
        prop_assert_eq!(parsed.immdt(), headers.immdt);
        prop_assert_eq!(parsed.ieth(), headers.ieth);
        prop_assert_eq!(parsed.pad(), &[0; 3][..pad_len(payload.len())]);
        prop_assert_eq!(parsed.payload(), payload);
        prop_assert_eq!(parsed.icrc(), 0x1234_5678);
        let text = parsed.to_string();
        prop_assert!(text.starts_with(headers.bth.opcode.name()), "{}", text);

        let needed = len + pad_len(payload.len()) + ICRC_LEN;
        prop_assert!(Packet::parse(&packet[..needed - 1]).is_err());
    }

    #[test]
    fn headers_are_emitted_whole_or_not_at_all(headers in strategies::headers(), room in 0..MAX_HEADERS_LEN) {
        let mut out = [POISON; MAX_HEADERS_LEN];
        match headers.emit(&mut out[..room]) {
            Ok(len) => prop_assert!(len <= room),
            Err(error) => {
                let room_missing = matches!(error, Error::NoRoom { needed, got, .. } if needed == headers.len() && got == room);
                prop_assert!(room_missing, "{}", error);
                prop_assert_eq!(out, [POISON; MAX_HEADERS_LEN]);
            }
        }
    }

    #[test]
    fn every_cm_message_survives(message in strategies::cm_message(), tid: u64) {
        let mut mad = [POISON; MAD_LEN];
        let mut complement = [!POISON; MAD_LEN];
        message.emit(tid, &mut mad).unwrap();
        message.emit(tid, &mut complement).unwrap();
        prop_assert_eq!(mad, complement);
        let (header, parsed) = CmMessage::parse(&mad).unwrap();
        prop_assert_eq!(header.tid, tid);
        prop_assert_eq!(parsed, message);
        prop_assert!(parsed.to_string().starts_with("CM "));
    }
}

#[test]
fn no_opcode_has_headers_longer_than_the_maximum_and_one_reaches_it() {
    let longest = Opcode::ALL.iter().map(|opcode| opcode.headers_len()).max();
    assert_eq!(longest, Some(MAX_HEADERS_LEN));
}

#[test]
fn extension_headers_that_do_not_belong_to_the_opcode_are_refused() {
    let missing = Headers::new(Opcode::RcReadRequest, Qpn::new(2), Psn::new(3));
    assert_eq!(
        missing.emit(&mut [0; MAX_HEADERS_LEN]),
        Err(Error::HeaderMismatch {
            opcode: 0x0C,
            header: "RETH",
            required: true
        })
    );
    let mut surplus = Headers::new(Opcode::RcSendMiddle, Qpn::new(2), Psn::new(3));
    surplus.immdt = Some(ImmDtRepr([1, 2, 3, 4]));
    assert_eq!(
        surplus.emit(&mut [0; MAX_HEADERS_LEN]),
        Err(Error::HeaderMismatch {
            opcode: 0x01,
            header: "ImmDt",
            required: false
        })
    );
}

#[test]
fn a_value_wider_than_its_field_is_refused_and_nothing_is_written() {
    let message = CmMessage::Req(portolan_wire::cm::ReqRepr {
        retry_count: 8,
        ..Default::default()
    });
    let mut mad = [POISON; MAD_LEN];
    assert_eq!(
        message.emit(1, &mut mad),
        Err(Error::OutOfRange {
            what: "REQ retry_count",
            max: 7,
            got: 8
        })
    );
    assert_eq!(mad, [POISON; MAD_LEN]);
}
