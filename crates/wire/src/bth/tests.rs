//! Opcodes against a second, independent list of their headers, and the BTH against literal bytes.

use super::*;

/// IBTA 9.2: opcodes and the headers after the BTH, transcribed independently of the code.
const TABLE: &[(u8, &str)] = &[
    (0x00, "payload"),
    (0x01, "payload"),
    (0x02, "payload"),
    (0x03, "immdt payload"),
    (0x04, "payload"),
    (0x05, "immdt payload"),
    (0x06, "reth payload"),
    (0x07, "payload"),
    (0x08, "payload"),
    (0x09, "immdt payload"),
    (0x0A, "reth payload"),
    (0x0B, "reth immdt payload"),
    (0x0C, "reth"),
    (0x0D, "aeth payload"),
    (0x0E, "payload"),
    (0x0F, "aeth payload"),
    (0x10, "aeth payload"),
    (0x11, "aeth"),
    (0x12, "aeth atomicack"),
    (0x13, "atomic"),
    (0x14, "atomic"),
    (0x16, "ieth payload"),
    (0x17, "ieth payload"),
    (0x1C, "feth reth"),
    (0x1D, "reth payload"),
    (0x20, "payload"),
    (0x21, "payload"),
    (0x22, "payload"),
    (0x23, "immdt payload"),
    (0x24, "payload"),
    (0x25, "immdt payload"),
    (0x26, "reth payload"),
    (0x27, "payload"),
    (0x28, "payload"),
    (0x29, "immdt payload"),
    (0x2A, "reth payload"),
    (0x2B, "reth immdt payload"),
    (0x64, "deth payload"),
    (0x65, "deth immdt payload"),
    (0x81, "payload"),
    (0xA0, "xrceth payload"),
    (0xA1, "xrceth payload"),
    (0xA2, "xrceth payload"),
    (0xA3, "xrceth immdt payload"),
    (0xA4, "xrceth payload"),
    (0xA5, "xrceth immdt payload"),
    (0xA6, "xrceth reth payload"),
    (0xA7, "xrceth payload"),
    (0xA8, "xrceth payload"),
    (0xA9, "xrceth immdt payload"),
    (0xAA, "xrceth reth payload"),
    (0xAB, "xrceth reth immdt payload"),
    (0xAC, "xrceth reth"),
    (0xAD, "aeth payload"),
    (0xAE, "payload"),
    (0xAF, "aeth payload"),
    (0xB0, "aeth payload"),
    (0xB1, "aeth"),
    (0xB2, "aeth atomicack"),
    (0xB3, "xrceth atomic"),
    (0xB4, "xrceth atomic"),
    (0xB6, "xrceth ieth payload"),
    (0xB7, "xrceth ieth payload"),
];

#[test]
fn every_opcode_has_the_headers_of_the_standards_table() {
    for (value, headers) in TABLE {
        let opcode = Opcode::from_value(*value).unwrap();
        let brings = [
            (opcode.has_deth(), "deth"),
            (opcode.has_xrceth(), "xrceth"),
            (opcode.has_feth(), "feth"),
            (opcode.has_reth(), "reth"),
            (opcode.has_atomic_eth(), "atomic"),
            (opcode.has_aeth(), "aeth"),
            (opcode.has_atomic_ack_eth(), "atomicack"),
            (opcode.has_immdt(), "immdt"),
            (opcode.has_ieth(), "ieth"),
            (opcode.has_payload(), "payload"),
        ];
        let names: Vec<_> = brings
            .iter()
            .filter(|(has, _)| *has)
            .map(|(_, name)| *name)
            .collect();
        assert_eq!(names.join(" "), *headers, "{opcode}");
    }
    assert_eq!(TABLE.len(), Opcode::ALL.len());
}

#[test]
fn an_opcode_outside_of_the_table_is_unsupported() {
    for value in 0..=u8::MAX {
        let known = TABLE.iter().any(|(opcode, _)| *opcode == value);
        assert_eq!(Opcode::from_value(value).is_ok(), known, "{value:#04x}");
    }
}

#[test]
fn the_name_contains_transport_and_operation() {
    for opcode in Opcode::ALL {
        let name = opcode.name();
        assert!(name.starts_with(&opcode.transport().to_string()), "{name}");
        assert_eq!(opcode.is_first(), name.contains("First"), "{name}");
        assert_eq!(opcode.is_middle(), name.contains("Middle"), "{name}");
        assert_eq!(opcode.is_last(), name.contains("Last"), "{name}");
        assert_eq!(opcode.has_immdt(), name.contains("Immediate"), "{name}");
        assert_eq!(opcode.has_ieth(), name.contains("Invalidate"), "{name}");
        assert_eq!(opcode.is_send(), name.contains("SEND"), "{name}");
        assert_eq!(opcode.is_write(), name.contains("RDMA WRITE"), "{name}");
        assert_eq!(
            opcode.is_read_response(),
            name.contains("READ Response"),
            "{name}"
        );
        let parts = [
            opcode.is_first(),
            opcode.is_middle(),
            opcode.is_last(),
            opcode.is_only(),
        ];
        assert_eq!(parts.iter().filter(|part| **part).count(), 1, "{name}");
        let [rc, xrc] = [opcode.as_rc(), opcode.as_xrc()];
        if rc != *opcode {
            assert_eq!(format!("X{}", rc.name()), name);
            assert_eq!(rc.as_xrc(), *opcode);
        }
        if xrc != *opcode {
            assert_eq!(xrc.as_rc(), *opcode);
        }
        let response = name.contains("Response") || name.contains("Acknowledge");
        assert_eq!(opcode.is_response(), response, "{name}");
        assert_eq!(
            opcode.is_request(),
            !response && *opcode != Opcode::Cnp,
            "{name}"
        );
    }
}

#[test]
fn the_header_is_parsed_from_its_bits() {
    let bytes = [
        0x04, 0xD0, 0xFF, 0xFF, 0x80, 0x00, 0x00, 0x12, 0x80, 0x00, 0x00, 0x64,
    ];
    let bth = BthRepr::parse(&bytes).unwrap();
    assert_eq!(
        bth,
        BthRepr {
            solicited: true,
            pad_count: 1,
            fecn: true,
            ack_request: true,
            ..BthRepr::new(Opcode::RcSendOnly, Qpn::new(0x12), Psn::new(100))
        }
    );
    let mut out = [0xA5; LEN];
    assert_eq!(bth.emit(&mut out), Ok(LEN));
    assert_eq!(out, bytes);
}

#[test]
fn values_wider_than_their_fields_are_refused() {
    let mut bth = BthRepr::new(Opcode::RcAck, Qpn::new(1), Psn::new(1));
    bth.pad_count = 4;
    assert!(matches!(
        bth.emit(&mut [0; LEN]),
        Err(Error::OutOfRange { max: 3, got: 4, .. })
    ));
}

#[test]
fn an_xrc_send_has_its_queue_right_after_the_base_header() {
    use crate::rocev2::Packet;
    let bytes = [
        0xA5, 0x40, 0xFF, 0xFF, 0x00, 0x01, 0x9C, 0xBF, 0x80, 0x97, 0x99, 0x40, // BTH
        0x00, 0x00, 0x00, 0x2A, // XRCETH
        0x01, 0x02, 0x03, 0x04, // immediate data
        b'd', b'a', b't', b'a', 0, 0, 0, 0, // payload, ICRC
    ];
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(packet.bth().opcode, Opcode::XrcSendOnlyImm);
    assert_eq!(packet.xrceth().map(|xrceth| xrceth.srqn), Some(42));
    assert_eq!(packet.immdt().map(|immdt| immdt.0), Some([1, 2, 3, 4]));
    assert_eq!(packet.payload(), b"data");
    let mut out = [0; 20];
    assert_eq!(packet.headers().emit(&mut out), Ok(20));
    assert_eq!(out, bytes[..20]);
}
