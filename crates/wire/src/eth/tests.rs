//! The headers against literal bytes from the standard's figures.

use super::*;
use crate::{Error, QKey, Qpn};

#[test]
fn a_deth_holds_key_reserved_byte_and_source() {
    let bytes = [0x80, 0x01, 0x00, 0x00, 0xFF, 0x00, 0x00, 0x01];
    let deth = DethRepr::parse(&bytes).unwrap();
    assert_eq!((deth.qkey, deth.src_qp), (QKey::GSI, Qpn::GSI));
    let mut out = [0xA5; 8];
    deth.emit(&mut out).unwrap();
    assert_eq!(
        out,
        [0x80, 0x01, 0, 0, 0, 0, 0, 1],
        "reserved bits are written as zero"
    );
}

#[test]
fn an_xrceth_holds_a_reserved_byte_and_the_queue() {
    let xrceth = XrcEthRepr::parse(&[0xFF, 0x01, 0x02, 0x03]).unwrap();
    assert_eq!(xrceth.srqn, 0x01_0203);
    let mut out = [0xA5; 4];
    xrceth.emit(&mut out).unwrap();
    assert_eq!(out, [0, 1, 2, 3], "reserved bits are written as zero");
    let wide = XrcEthRepr { srqn: 1 << 24 };
    assert!(matches!(wide.emit(&mut out), Err(Error::OutOfRange { .. })));
}

#[test]
fn syndromes_are_distinguished_by_their_class_bits() {
    assert_eq!(
        Syndrome::from_value(0x1F),
        Syndrome::Ack {
            credits: CREDITS_UNLIMITED
        }
    );
    assert_eq!(Syndrome::from_value(0x2E), Syndrome::RnrNak { timer: 14 });
    assert_eq!(
        Syndrome::from_value(0x60),
        Syndrome::Nak(NakCode::PsnSequenceError)
    );
    assert_eq!(
        Syndrome::from_value(0x62),
        Syndrome::Nak(NakCode::RemoteAccessError)
    );
    assert_eq!(Syndrome::from_value(0x65), Syndrome::Reserved(0x65));
    assert_eq!(Syndrome::from_value(0x40), Syndrome::Reserved(0x40));
    assert_eq!(Syndrome::from_value(0x80), Syndrome::Reserved(0x80));
}

#[test]
fn every_syndrome_byte_survives_and_wide_codes_are_refused() {
    for value in 0..=u8::MAX {
        assert_eq!(Syndrome::from_value(value).to_value(), Ok(value));
    }
    assert!(matches!(
        Syndrome::RnrNak { timer: 32 }.to_value(),
        Err(Error::OutOfRange {
            max: 31,
            got: 32,
            ..
        })
    ));
}

#[test]
fn a_reth_holds_address_key_and_length() {
    let mut bytes = [0; 16];
    bytes[7] = 1;
    bytes[11] = 2;
    bytes[15] = 3;
    assert_eq!(
        RethRepr::parse(&bytes),
        Ok(RethRepr {
            va: 1,
            rkey: 2,
            dma_len: 3
        })
    );
}
