//! The ICRC against an independent computation.

mod common;

use common::{icrc_bitwise, udp_packet};
use portolan_wire::icrc::{
    self, Flow, FlowV4, FlowV6, IcrcError, IcrcHasher, IcrcOk, Identification,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

fn flow_v4() -> impl Strategy<Value = Flow> {
    any::<([u8; 4], [u8; 4], u16, u16, bool)>().prop_map(|(src, dst, src_port, dst_port, df)| {
        Flow::V4(FlowV4 {
            src: src.into(),
            dst: dst.into(),
            src_port,
            dst_port,
            dont_fragment: df,
        })
    })
}

fn flow_v6() -> impl Strategy<Value = Flow> {
    any::<(u128, u128, u16, u16)>().prop_map(|(src, dst, src_port, dst_port)| {
        Flow::V6(FlowV6 {
            src: src.into(),
            dst: dst.into(),
            src_port,
            dst_port,
        })
    })
}

fn flow() -> impl Strategy<Value = Flow> {
    prop_oneof![flow_v4(), flow_v6()]
}

/// A UDP payload followed by its ICRC, from shorter than a BTH to longer than an MTU.
fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 0..64), vec(any::<u8>(), 64..1600)]
}

/// `body` followed by its ICRC.
fn sealed(flow: &Flow, ip_id: u16, body: &[u8]) -> Vec<u8> {
    let mut packet = [body, &[0xA5; 4]].concat();
    icrc::append(flow, ip_id, &mut packet).unwrap();
    packet
}

proptest! {
    #[test]
    fn it_is_the_bitwise_crc_of_the_masked_packet(flow in flow(), ip_id: u16, body in body()) {
        let packet = sealed(&flow, ip_id, &body);
        let ip_packet = udp_packet(&flow, ip_id, &packet);
        let covered = &ip_packet[..ip_packet.len() - 4];
        prop_assert_eq!(icrc::compute(&flow, ip_id, &body), icrc_bitwise(covered));
    }

    #[test]
    fn pieces_have_the_same_icrc_as_the_whole(flow in flow(), ip_id: u16, body in body(), cuts in vec(any::<Index>(), 0..6)) {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        cuts.extend([0, body.len()]);
        cuts.sort_unstable();
        let mut hasher = IcrcHasher::start(&flow, body.len() + 4, ip_id);
        for ends in cuts.windows(2) {
            hasher.update(&body[ends[0]..ends[1]]);
        }
        prop_assert_eq!(hasher.finish(), icrc::compute(&flow, ip_id, &body));
    }

    #[test]
    fn a_sealed_packet_verifies_and_the_hidden_identification_is_recovered(
        flow in flow(),
        ip_id: u16,
        guess: u16,
        body in body(),
    ) {
        let packet = sealed(&flow, ip_id, &body);
        let recovered = if matches!(flow, Flow::V4(_)) { ip_id } else { 0 };
        let ok = Ok(IcrcOk { identification: recovered });
        prop_assert_eq!(icrc::verify(&flow, Identification::Known(ip_id), &packet), ok);
        for hidden in [Identification::Hidden, Identification::Guessed(guess), Identification::Guessed(ip_id)] {
            prop_assert_eq!(icrc::verify(&flow, hidden, &packet), ok);
        }
    }

    #[test]
    fn a_guess_passes_no_packet_that_a_hidden_identification_does_not(
        flow in flow(),
        ip_id: u16,
        guess: u16,
        body in body(),
        damage: u32,
    ) {
        let mut packet = sealed(&flow, ip_id, &body);
        let icrc_at = packet.len() - 4;
        for (byte, damage) in packet[icrc_at..].iter_mut().zip(damage.to_le_bytes()) {
            *byte ^= damage;
        }
        let hidden = icrc::verify(&flow, Identification::Hidden, &packet);
        let guessed = icrc::verify(&flow, Identification::Guessed(guess), &packet);
        prop_assert_eq!(guessed.ok(), hidden.ok());
    }

    #[test]
    fn one_wrong_bit_is_always_detected_when_the_identification_is_known(
        flow in flow(),
        ip_id: u16,
        body in body(),
        at: Index,
        bit in 0..8u8,
    ) {
        let mut packet = sealed(&flow, ip_id, &body);
        let at = at.index(packet.len());
        // The BTH's congestion byte may change in transit.
        prop_assume!(at != 4 || body.len() <= 4);
        packet[at] ^= 1 << bit;
        let verdict = icrc::verify(&flow, Identification::Known(ip_id), &packet);
        prop_assert!(matches!(verdict, Err(IcrcError::Mismatch { .. })), "{:?}", verdict);
    }

    #[test]
    fn another_identification_or_flow_is_a_mismatch(flow in flow_v4(), other in flow_v4(), ip_id: u16, wrong in 1..=u16::MAX) {
        let packet = sealed(&flow, ip_id, b"some twelve bytes of header and some payload");
        let known = Identification::Known(ip_id ^ wrong);
        prop_assert!(icrc::verify(&flow, known, &packet).is_err());
        prop_assume!(flow != other);
        prop_assert!(icrc::verify(&other, Identification::Known(ip_id), &packet).is_err());
    }

    #[test]
    fn the_congestion_byte_may_change_in_transit(flow in flow(), ip_id: u16, body in vec(any::<u8>(), 12..99), ecn: u8) {
        let mut packet = sealed(&flow, ip_id, &body);
        packet[4] = ecn;
        prop_assert!(icrc::verify(&flow, Identification::Hidden, &packet).is_ok());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    /// Brute force: finds all identifications that produce the received ICRC.
    #[test]
    fn hidden_verification_agrees_with_trying_every_identification(
        flow in flow_v4(),
        ip_id: u16,
        body in vec(any::<u8>(), 0..80),
        damage in prop_oneof![Just(0u32), any::<u32>(), (0..32u32).prop_map(|bit| 1 << bit)],
    ) {
        let mut packet = sealed(&flow, ip_id, &body);
        let icrc_at = packet.len() - 4;
        let carried = u32::from_le_bytes(packet[icrc_at..].try_into().unwrap()) ^ damage;
        packet[icrc_at..].copy_from_slice(&carried.to_le_bytes());

        let candidates: Vec<_> = (0..=u16::MAX)
            .filter(|id| icrc::compute(&flow, *id, &body) == carried)
            .collect();
        prop_assert!(candidates.len() <= 1, "identifications must differ in their ICRC");
        let verified = icrc::verify(&flow, Identification::Hidden, &packet);
        prop_assert_eq!(verified.ok().map(|ok| ok.identification), candidates.first().copied());
    }
}

/// With a hidden identification, 2^-16 of random corruptions pass: about 16 of 2^20.
#[test]
fn hidden_verification_lets_pass_the_fraction_that_16_check_bits_let_pass() {
    let flow = Flow::V4(FlowV4 {
        src: [10, 0, 0, 1].into(),
        dst: [10, 0, 0, 2].into(),
        src_port: 0xC123,
        dst_port: 4791,
        dont_fragment: true,
    });
    let body = [0x42; 20];
    let sealed = sealed(&flow, 0x1234, &body);
    let icrc = u32::from_le_bytes(sealed[20..].try_into().unwrap());
    let mut packet = sealed;
    let mut passed = 0;
    let mut noise = 1u32;
    for _ in 0..1 << 20 {
        // Xorshift suffices: it has a full period and never yields zero, which would be no
        // corruption.
        noise ^= noise << 13;
        noise ^= noise >> 17;
        noise ^= noise << 5;
        packet[20..].copy_from_slice(&(icrc ^ noise).to_le_bytes());
        passed += u32::from(icrc::verify(&flow, Identification::Hidden, &packet).is_ok());
    }
    assert!(
        (4..=40).contains(&passed),
        "{passed} of 2^20 passed, expected about 16"
    );
}

#[test]
fn a_packet_too_short_for_an_icrc_is_truncated() {
    let flow = Flow::between(
        "10.0.0.1:49152".parse().unwrap(),
        "10.0.0.2:4791".parse().unwrap(),
    );
    assert_eq!(
        icrc::verify(&flow.unwrap(), Identification::Hidden, &[1, 2, 3]),
        Err(IcrcError::Truncated { got: 3 })
    );
}

#[test]
fn a_flow_between_families_does_not_exist_and_a_mapped_address_is_ipv4() {
    let v4 = "10.0.0.1:49152".parse().unwrap();
    let v6 = "[fe80::1]:4791".parse().unwrap();
    let mapped = "[::ffff:10.0.0.2]:4791".parse().unwrap();
    assert_eq!(Flow::between(v4, v6), None);
    assert!(matches!(Flow::between(v4, mapped), Some(Flow::V4(_))));
}
