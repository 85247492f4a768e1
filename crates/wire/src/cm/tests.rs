//! Offsets of the messages that the captures do not contain, transcribed independently from the
//! standard's figures; and the display form of messages.

use super::*;
use crate::mad::MAD_LEN;
use crate::{Gid, PortSpace, Psn, Qpn, ServiceId};

/// The bytes of a message after the MAD header.
fn body(message: impl Into<CmMessage>) -> Vec<u8> {
    let mut mad = [0xA5; MAD_LEN];
    message.into().emit(0, &mut mad).unwrap();
    mad[MAD_LEN - BODY_LEN..].to_vec()
}

/// Checks that `body` has the `expected` bytes at their offsets and zeros elsewhere.
fn assert_bytes(body: &[u8], expected: &[(usize, &[u8])]) {
    let mut whole = vec![0; BODY_LEN];
    for (at, bytes) in expected {
        whole[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    assert_eq!(body, whole);
}

fn path() -> PathRepr {
    PathRepr {
        local_lid: 0x0102,
        remote_lid: 0x0304,
        local_gid: Gid([0x11; 16]),
        remote_gid: Gid([0x22; 16]),
        flow_label: 0xABCDE,
        packet_rate: 0x3F,
        traffic_class: 0x55,
        hop_limit: 0x40,
        service_level: 0xF,
        subnet_local: true,
        local_ack_timeout: 0x12,
    }
}

#[test]
fn mra_is_laid_out_as_in_ibta_12_6_6() {
    let mra = MraRepr {
        local_comm_id: 0x0102_0304,
        remote_comm_id: 0x0506_0708,
        message: MraMessage::Lap,
        service_timeout: 24,
        private_data: PrivateData::from_slice(b"data").unwrap(),
    };
    assert_bytes(
        &body(mra),
        &[
            (0, &[1, 2, 3, 4, 5, 6, 7, 8]),
            (8, &[0b1000_0000]),
            (9, &[24 << 3]),
            (10, b"data"),
        ],
    );
}

#[test]
fn lap_is_laid_out_as_in_ibta_12_8_1() {
    let lap = LapRepr {
        local_comm_id: 0x0102_0304,
        remote_comm_id: 0x0506_0708,
        remote_qpn: Qpn::new(0x0A_0B0C),
        remote_cm_response_timeout: 20,
        alternate: path(),
        private_data: PrivateData::from_slice(b"data").unwrap(),
    };
    assert_bytes(
        &body(lap),
        &[
            (0, &[1, 2, 3, 4, 5, 6, 7, 8]),
            (12, &[0x0A, 0x0B, 0x0C, 20 << 3]),
            (20, &[1, 2, 3, 4]),
            (24, &[0x11; 16]),
            (40, &[0x22; 16]),
            (56, &[0xAB, 0xCD, 0xE0, 0x55]),
            (60, &[0x40, 0x3F, 0xF8, 0x12 << 3]),
            (64, b"data"),
        ],
    );
}

#[test]
fn apr_is_laid_out_as_in_ibta_12_8_2() {
    let apr = AprRepr {
        local_comm_id: 0x0102_0304,
        remote_comm_id: 0x0506_0708,
        status: AprStatus::REJECT,
        additional_info: AdditionalInfo::from_slice(&[9, 9]).unwrap(),
        private_data: PrivateData::from_slice(b"data").unwrap(),
    };
    assert_bytes(
        &body(apr),
        &[
            (0, &[1, 2, 3, 4, 5, 6, 7, 8]),
            (8, &[2, 3]),
            (12, &[9, 9]),
            (84, b"data"),
        ],
    );
}

#[test]
fn a_req_holds_all_small_fields_in_their_bits() {
    let req = ReqRepr {
        ece: Ece {
            vendor_id: 0x0A_0B0C,
            options: 7,
        },
        local_eecn: 0x01_0203,
        remote_eecn: 0x04_0506,
        remote_cm_response_timeout: 20,
        transport: TransportService::Extended,
        end_to_end_flow_control: true,
        local_cm_response_timeout: 21,
        retry_count: 5,
        path_mtu: PathMtu(5),
        rdc_exists: true,
        rnr_retry_count: 6,
        max_cm_retries: 15,
        srq: true,
        extended_transport: 1,
        alternate: path(),
        ..ReqRepr::default()
    };
    assert_bytes(
        &body(req),
        &[
            (5, &[0x0A, 0x0B, 0x0C]),
            (36, &[1, 2, 3]),
            (40, &[4, 5, 6, 20 << 3 | 3 << 1 | 1]),
            (47, &[21 << 3 | 5, 0xFF, 0xFF]),
            (50, &[5 << 4 | 1 << 3 | 6, 15 << 4 | 1 << 3 | 1]),
            (96, &[1, 2, 3, 4]),
            (100, &[0x11; 16]),
            (116, &[0x22; 16]),
            (132, &[0xAB, 0xCD, 0xE0, 0x3F]),
            (136, &[0x55, 0x40, 0xF8, 0x12 << 3]),
        ],
    );
}

#[test]
fn the_vendor_id_is_split_in_rep_and_sidr_rep_and_its_options_are_in_the_mad_header() {
    let ece = Ece {
        vendor_id: 0x0A_0B0C,
        options: 0x0102_0304,
    };
    let rep = RepRepr {
        ece,
        ..RepRepr::default()
    };
    assert_bytes(&body(rep), &[(15, &[0x0A]), (19, &[0x0B]), (23, &[0x0C])]);
    let sidr = SidrRepRepr {
        ece,
        ..SidrRepRepr::default()
    };
    assert_bytes(&body(sidr), &[(6, &[0x0B, 0x0C]), (11, &[0x0A])]);

    let mut mad = [0; MAD_LEN];
    CmMessage::Rep(rep).emit(0, &mut mad).unwrap();
    assert_eq!(mad[20..24], [1, 2, 3, 4]);
}

#[test]
fn messages_are_readable_in_a_trace() {
    let req = ReqRepr {
        local_comm_id: 0x1234,
        service_id: ServiceId::from_port(PortSpace::Tcp, 7471),
        local_qpn: Qpn::new(0x12),
        starting_psn: Psn::new(100),
        path_mtu: PathMtu(3),
        primary: PathRepr {
            local_gid: Gid::from_ipv4([192, 168, 7, 2].into()),
            remote_gid: Gid::from_ipv4([192, 168, 7, 1].into()),
            ..PathRepr::default()
        },
        ..ReqRepr::default()
    };
    assert_eq!(
        CmMessage::from(req).to_string(),
        "CM REQ id 0x00001234 sid tcp:7471 from qp 0x000012 psn 100 mtu 1024 192.168.7.2 -> 192.168.7.1"
    );
    let rej = RejRepr {
        remote_comm_id: 0x1234,
        reason: RejectReason::INVALID_SERVICE_ID,
        ..RejRepr::default()
    };
    assert_eq!(
        CmMessage::from(rej).to_string(),
        "CM REJ id 0x00000000 -> 0x00001234 of REQ, reason 8: invalid service id (nothing listens there)"
    );
}

#[test]
fn a_request_of_xrc_is_marked_in_its_transport_bits() {
    let plain = body(ReqRepr::default());
    let mut xrc = body(ReqRepr {
        transport: TransportService::Extended,
        extended_transport: EXTENDED_XRC,
        ..ReqRepr::default()
    });
    // Two bits after the response timeout's five, and the last three of byte 51 (IBTA 12.6.5, annex A14).
    assert_eq!((xrc[43], xrc[51]), (0b0000_0110, 0b0000_0001));
    (xrc[43], xrc[51]) = (plain[43], plain[51]);
    assert_eq!(xrc, plain);
}
