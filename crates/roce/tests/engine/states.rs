//! The packets and posts that each state accepts, and the permitted kinds of queue pairs.

use std::time::Duration;

use portolan_provider::error::errno;
use portolan_provider::verbs::{
    AsyncEvent, QpAttr, QpCap, QpState, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr,
    WcStatus,
};
use portolan_roce::engine::{DropReason, FlowConfig, PdId, QpConfig, QpLimits, QueuePair};
use portolan_wire::bth::Opcode;
use portolan_wire::rocev2::Headers;
use portolan_wire::{PKey, Psn};

use crate::harness::*;

/// A right host in `state`, connected with the default options.
fn host_in(state: QpState) -> Host {
    let options = Options::default();
    let attr = connect_attr(1, &options);
    let mut host = Host::new(1, &options);
    for step in [QpState::Init, QpState::Rtr, QpState::Rts] {
        if step <= state {
            host.modify(&QpAttr {
                state: step,
                ..attr
            });
        }
    }
    if state == QpState::Err {
        host.modify(&QpAttr { state, ..attr });
    }
    host
}

fn send_only() -> Headers {
    Headers::new(Opcode::RcSendOnly, Host::qpn(1), Psn::new(100))
}

#[test]
fn requests_are_accepted_only_in_rtr_and_rts() {
    for (state, taken) in [
        (QpState::Reset, false),
        (QpState::Init, false),
        (QpState::Rtr, true),
        (QpState::Rts, true),
        (QpState::Err, false),
    ] {
        let mut host = host_in(state);
        if state != QpState::Reset {
            post_recv(&mut host, 1, &[]);
        }
        host.receives.clear();
        host.receive_headers(&send_only(), &[]);
        assert_eq!(!host.receives.is_empty(), taken, "{state}");
        let dropped = host.qp.counters().drops(DropReason::State);
        assert_eq!(dropped, u64::from(!taken), "{state}");
        let answered = host.next_packet(Duration::ZERO).is_some();
        assert!(!answered, "none was asked for, {state}");
    }
}

#[test]
fn the_first_packet_before_rts_reports_an_established_connection_once() {
    let mut host = host_in(QpState::Rtr);
    for wr_id in [1, 2] {
        post_recv(&mut host, wr_id, &[]);
    }
    host.receive_headers(&send_only(), &[]);
    let mut second = send_only();
    second.bth.psn = Psn::new(101);
    host.receive_headers(&second, &[]);
    assert_eq!(
        receives(&host),
        [(1, WcStatus::Success), (2, WcStatus::Success)]
    );
    assert_eq!(host.events, [AsyncEvent::CommEst(host.qp.qpn())]);

    let mut host = host_in(QpState::Rts);
    post_recv(&mut host, 1, &[]);
    host.receive_headers(&send_only(), &[]);
    assert!(host.events.is_empty());
}

#[test]
fn a_stray_packet_before_rts_does_not_report_an_established_connection() {
    let mut host = host_in(QpState::Rtr);
    post_recv(&mut host, 1, &[]);
    for psn in [99, 101] {
        let mut stray = send_only();
        stray.bth.psn = Psn::new(psn);
        host.receive_headers(&stray, &[]);
    }
    assert!(host.events.is_empty());
    host.receive_headers(&send_only(), &[]);
    assert_eq!(host.events, [AsyncEvent::CommEst(host.qp.qpn())]);
}

#[test]
fn a_queue_pair_answers_in_rtr() {
    let mut host = host_in(QpState::Rtr);
    post_recv(&mut host, 1, &[]);
    let mut headers = send_only();
    headers.bth.ack_request = true;
    host.receive_headers(&headers, &[]);
    let bytes = host
        .next_packet(Duration::ZERO)
        .expect("an acknowledgement");
    assert_eq!(parse(&bytes).bth().opcode, Opcode::RcAck);
}

#[test]
fn packets_of_other_transports_versions_and_partitions_are_dropped() {
    let mut host = host_in(QpState::Rts);
    post_recv(&mut host, 1, &[]);
    let mut other_transport = send_only();
    other_transport.bth.opcode = Opcode::UcSendOnly;
    let mut other_version = send_only();
    other_version.bth.tver = 1;
    let mut other_partition = send_only();
    other_partition.bth.pkey = PKey(0x8001);
    for (headers, reason) in [
        (other_transport, DropReason::Transport),
        (other_version, DropReason::Version),
        (other_partition, DropReason::PKey),
    ] {
        host.receive_headers(&headers, &[]);
        assert_eq!(host.qp.counters().drops(reason), 1, "{reason:?}");
    }
    assert!(host.receives.is_empty());
    assert_eq!(host.qp.counters().drops_total(), 3);
}

#[test]
fn sends_are_posted_from_rts_and_receives_from_init() {
    for state in [
        QpState::Reset,
        QpState::Init,
        QpState::Rtr,
        QpState::Rts,
        QpState::Err,
    ] {
        let mut host = host_in(state);
        let (data, flags) = (SendData::Sges(&[]), SendFlags::empty());
        let send = host.qp.post_send(&SendWr {
            wr_id: 1,
            op: SendOp::Send,
            data,
            flags,
            ud: None,
            srq: None,
        });
        let receive = host.qp.post_recv(&RecvWr {
            wr_id: 1,
            sges: &[],
        });
        assert_eq!(send.is_ok(), state >= QpState::Rts, "{state}: {send:?}");
        assert_eq!(
            receive.is_ok(),
            state >= QpState::Init,
            "{state}: {receive:?}"
        );
        for error in [send.err(), receive.err()].into_iter().flatten() {
            assert_eq!(error.errno(), errno::EINVAL);
            assert!(error.to_string().contains(state.name()), "{error}");
        }
    }
}

#[test]
fn receives_posted_before_rtr_are_used() {
    let options = Options::default();
    let mut host = Host::new(1, &options);
    let attr = connect_attr(1, &options);
    host.modify(&QpAttr {
        state: QpState::Init,
        ..attr
    });
    post_recv(&mut host, 5, &[]);
    host.modify(&QpAttr {
        state: QpState::Rtr,
        ..attr
    });
    host.receive_headers(&send_only(), &[]);
    assert_eq!(receives(&host), [(5, WcStatus::Success)]);
}

#[test]
fn absurd_sizes_and_other_types_are_refused_at_creation() {
    let modest = Options::default().cap;
    let config = |cap, qp_type| QpConfig {
        qpn: Host::qpn(0),
        pd: PdId(1),
        init: portolan_provider::verbs::QpInit {
            qp_type,
            cap,
            sq_sig_all: false,
        },
        limits: QpLimits::default(),
        flow: FlowConfig::default(),
    };
    for cap in [
        QpCap {
            max_send_wr: u32::MAX,
            ..modest
        },
        QpCap {
            max_recv_wr: (1 << 14) + 1,
            ..modest
        },
        QpCap {
            max_send_sge: 33,
            ..modest
        },
        QpCap {
            max_recv_sge: 33,
            ..modest
        },
        QpCap {
            max_inline_data: 1 << 20,
            ..modest
        },
        QpCap {
            max_send_wr: 0,
            max_recv_wr: 0,
            ..modest
        },
    ] {
        let error = QueuePair::new(config(cap, QpType::Rc)).expect_err("absurd");
        assert_eq!(error.errno(), errno::EINVAL, "{error}");
    }
    let receive_only = QpCap {
        max_send_wr: 0,
        ..modest
    };
    assert!(QueuePair::new(config(receive_only, QpType::Rc)).is_ok());
}
