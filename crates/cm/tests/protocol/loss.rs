//! Lost, repeated and delayed messages, and slow or absent peers.

use std::time::Duration;

use portolan_cm::{Config, State, time_of_exponent};
use portolan_provider::cm::{Ece, EventType, UserId};
use portolan_provider::error::errno::ETIMEDOUT;
use portolan_wire::cm::{
    AttributeId, CmMessage, MraMessage, MraRepr, RejMessage, RejRepr, RejectReason, RepRepr,
};
use portolan_wire::{Qpn, cm::DreqRepr};

use crate::net::*;

/// Twice a packet's lifetime plus the peer's response time.
pub(crate) const REQ_TIMEOUT: Duration = Duration::from_millis(6144);
/// The response time that the passive side grants to the active side.
const REP_TIMEOUT: Duration = Duration::from_millis(4096);
const SENDS: usize = 16;

pub(crate) fn lose_first(kind: AttributeId) -> impl FnMut(&Passing) -> Fate {
    let mut lost = false;
    move |passing| {
        let lose = !lost && passing.kind() == kind;
        lost |= lose;
        if lose { Fate::Drop } else { Fate::Deliver }
    }
}

fn lose_all(kind: AttributeId) -> impl FnMut(&Passing) -> Fate {
    move |passing| {
        if passing.kind() == kind {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    }
}

#[test]
fn any_one_message_may_be_lost_and_the_connection_still_works() {
    use AttributeId::*;
    for kind in [Req, Rep, Rtu, Dreq, Drep] {
        let mut net = Net::new();
        net.listen(0);
        net.disturb(lose_first(kind));
        let active = net.connecting(10, 0x10);
        let passive = net.wait_for(1, EventType::ConnectRequest).id;
        net.accept(passive);
        net.wait_for(0, EventType::ConnectResponse);
        let now = net.now;
        net.cm(0).establish(now, active).unwrap();
        net.wait_for(1, EventType::Established);
        let now = net.now;
        net.cm(0).disconnect(now, active).unwrap();
        net.wait_for(1, EventType::Disconnected);
        let now = net.now;
        net.cm(1).disconnect(now, passive).unwrap();
        net.run_for(Duration::from_secs(10));
        assert_eq!(net.expect(0, EventType::Disconnected).status, 0, "{kind:?}");
        net.expect(0, EventType::TimewaitExit);
        net.expect(1, EventType::TimewaitExit);
        net.expect_silence(0);
        net.expect_silence(1);
    }
}

#[test]
fn every_message_may_be_duplicated_and_each_event_comes_once() {
    let mut net = Net::new();
    net.listen(0);
    net.disturb(|_| Fate::Duplicate);
    let (active, passive) = net.connected();
    net.expect_silence(0);
    let now = net.now;
    net.cm(0).disconnect(now, active).unwrap();
    net.exchange();
    net.expect(1, EventType::Disconnected);
    let now = net.now;
    net.cm(1).disconnect(now, passive).unwrap();
    net.exchange();
    net.expect(0, EventType::Disconnected);
    net.expect_silence(0);
    net.expect_silence(1);
    let duplicates = net.cm(1).counters().duplicates;
    assert!(duplicates[AttributeId::Req] >= 1 && duplicates[AttributeId::Dreq] >= 1);
}

#[test]
fn an_absent_peer_gets_sixteen_requests_and_is_unreachable_at_the_same_time_as_on_linux() {
    let mut net = Net::new();
    net.disturb(|_| Fate::Drop);
    let start = net.now;
    let active = net.connecting(10, 0x10);
    let end = start + REQ_TIMEOUT * SENDS as u32;
    net.run_until(end - Duration::from_millis(1));
    net.expect_silence(0);
    assert_eq!(net.sent(0, AttributeId::Req), SENDS);
    assert_eq!(
        net.cm(0).counters().retried[AttributeId::Req],
        SENDS as u64 - 1
    );
    net.run_until(end);
    let unreachable = net.expect(0, EventType::Unreachable);
    assert_eq!((unreachable.id, unreachable.status), (active, -ETIMEDOUT));
    net.assert_state(0, active, State::Closed);
    // The absent peer is sent a rejection.
    let CmMessage::Rej(rej) = net.log.last().unwrap().message else {
        panic!("the last message must be a REJ")
    };
    assert_eq!(
        (rej.reason, rej.message),
        (RejectReason::TIMEOUT, RejMessage::Other)
    );
    assert_eq!(
        rej.additional_info.as_slice(),
        device(0).node_guid.to_be_bytes()
    );
    net.run_for(Duration::from_secs(1000));
    net.expect_silence(0);
}

#[test]
fn requests_are_repeated_soon_at_first_and_then_at_the_kernels_interval() {
    let mut net = Net::new();
    net.disturb(|_| Fate::Drop);
    net.connecting(10, 0x10);
    net.run_for(Duration::from_secs(60));
    let at: Vec<_> = net.log.iter().map(|passing| passing.at).collect();
    let gaps: Vec<_> = at
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_millis())
        .collect();
    assert_eq!(gaps[..6], [768, 1536, 3072, 6144, 6144, 6144]);
}

#[test]
fn without_back_off_the_interval_is_the_kernels_from_the_start() {
    let config = Config {
        retry_backoff_shift: 0,
        ..Config::default()
    };
    let mut net = Net::with_config(config);
    net.disturb(|_| Fate::Drop);
    net.connecting(10, 0x10);
    net.run_for(Duration::from_secs(60));
    let at: Vec<_> = net.log.iter().map(|passing| passing.at).collect();
    assert!(at.windows(2).all(|pair| pair[1] - pair[0] == REQ_TIMEOUT));
}

#[test]
fn an_acceptor_whose_replies_are_lost_reports_unreachable_and_rejects_the_active_side() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.requested();
    net.disturb(lose_all(AttributeId::Rep));
    net.accept(passive);
    net.run_for(REP_TIMEOUT * SENDS as u32 + Duration::from_secs(1));
    // Each copy of the request was answered too.
    let copies = net.sent(0, AttributeId::Req) - 1;
    assert_eq!(net.sent(1, AttributeId::Rep), SENDS + copies);
    let unreachable = net.expect(1, EventType::Unreachable);
    assert_eq!((unreachable.id, unreachable.status), (passive, -ETIMEDOUT));
    let rejected = net.expect(0, EventType::Rejected);
    assert_eq!(
        (rejected.id, rejected.status),
        (active, i32::from(RejectReason::TIMEOUT.0))
    );
}

#[test]
fn an_unanswered_disconnect_ends_with_a_timeout_and_then_the_time_wait() {
    let mut net = Net::new();
    net.listen(0);
    let (active, _) = net.connected();
    net.disturb(|_| Fate::Drop);
    let now = net.now;
    net.cm(0).disconnect(now, active).unwrap();
    net.run_for(REQ_TIMEOUT * SENDS as u32);
    assert_eq!(net.sent(0, AttributeId::Dreq), SENDS);
    assert_eq!(net.expect(0, EventType::Disconnected).status, -ETIMEDOUT);
    net.assert_state(0, active, State::Timewait);
    // The ACK timeout of 2^19 × 4.096 µs.
    net.run_for(time_of_exponent(19));
    net.expect(0, EventType::TimewaitExit);
    net.assert_state(0, active, State::Closed);
}

#[test]
fn a_repeated_request_is_acknowledged_while_its_owner_thinks_and_the_active_side_waits() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.requested();
    // One repetition, which is answered with an MRA; then the time that it asks for passes without another.
    net.run_for(Duration::from_secs(60));
    assert_eq!(net.sent(0, AttributeId::Req), 2);
    assert_eq!(net.sent(1, AttributeId::Mra), 1);
    let CmMessage::Mra(mra) = net.log.last().unwrap().message else {
        panic!("an MRA")
    };
    assert_eq!((mra.message, mra.service_timeout), (MraMessage::Req, 24));
    net.assert_state(0, active, State::MraReqRcvd);
    net.expect_silence(0);
    net.expect_silence(1);
    net.accept(passive);
    net.exchange();
    net.expect(0, EventType::ConnectResponse);
}

#[test]
fn a_peer_that_acknowledged_and_died_is_given_up_in_the_end() {
    let mut net = Net::new();
    net.listen(0);
    net.requested();
    net.run_for(Duration::from_secs(1));
    net.disturb(|_| Fate::Drop);
    // The time that it asked for, once, in addition to the ordinary time.
    net.run_for(time_of_exponent(24) + REQ_TIMEOUT * (SENDS as u32 + 1));
    net.expect(0, EventType::Unreachable);
}

#[test]
fn endless_acknowledgements_do_not_extend_the_wait_endlessly() {
    let mut net = Net::new();
    let active = net.connecting(10, 0x10);
    net.disturb(|_| Fate::Drop);
    net.drain();
    let CmMessage::Req(req) = net.log[0].message else {
        panic!("a REQ")
    };
    let mra = MraRepr {
        local_comm_id: 9,
        remote_comm_id: req.local_comm_id,
        message: MraMessage::Req,
        service_timeout: 31,
        ..MraRepr::default()
    };
    let mut mad = [0; 256];
    CmMessage::from(mra).emit(1, &mut mad).unwrap();
    let grant = time_of_exponent(24) + REQ_TIMEOUT;
    let deadline = net.now + grant * SENDS as u32;
    while net.hosts[0].events.is_empty() {
        assert!(net.now < deadline, "still waiting");
        let now = net.now;
        net.cm(0).handle_mad(now, &path(0), &mad);
        net.run_for(Duration::from_secs(10));
    }
    assert_eq!(net.expect(0, EventType::Unreachable).id, active);
}

#[test]
fn a_repeated_reply_is_acknowledged_before_and_answered_after_the_active_side_is_ready() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.replied();
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.sent(0, AttributeId::Mra), 1);
    net.assert_state(1, passive, State::MraRepRcvd);
    net.disturb(lose_first(AttributeId::Rtu));
    let now = net.now;
    net.cm(0).establish(now, active).unwrap();
    net.run_for(time_of_exponent(24) + REP_TIMEOUT * 2);
    assert_eq!(net.sent(0, AttributeId::Rtu), 2);
    net.expect(1, EventType::Established);
    net.expect_silence(0);
}

#[test]
fn a_copy_of_the_request_makes_a_lost_reply_come_again_at_once() {
    let mut net = Net::new();
    net.listen(0);
    let (_, passive) = net.requested();
    net.disturb(lose_first(AttributeId::Rep));
    net.accept(passive);
    // The active side repeats after 768 ms, the passive side after 512 ms more.
    net.exchange();
    net.expect_silence(0);
    let req = net.log[0].message;
    let mut mad = [0; 256];
    req.emit(net.log[0].tid, &mut mad).unwrap();
    let now = net.now;
    net.cm(1).handle_mad(now, &path(1), &mad);
    net.exchange();
    net.expect(0, EventType::ConnectResponse);
    assert_eq!(net.sent(1, AttributeId::Rep), 2);
}

#[test]
fn both_sides_may_disconnect_at_once() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.connected();
    let now = net.now;
    net.cm(0).disconnect(now, active).unwrap();
    net.cm(1).disconnect(now, passive).unwrap();
    net.exchange();
    for host in 0..2 {
        assert_eq!(net.expect(host, EventType::Disconnected).status, 0);
        assert_eq!(net.sent(host, AttributeId::Dreq), 1);
        assert_eq!(net.sent(host, AttributeId::Drep), 1);
    }
    net.run_for(Duration::from_secs(5));
    for host in 0..2 {
        net.expect(host, EventType::TimewaitExit);
        net.expect_silence(host);
    }
}

#[test]
fn a_dreq_before_the_rtu_ends_a_connection_that_was_never_established() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.replied();
    net.disturb(lose_all(AttributeId::Rtu));
    let now = net.now;
    net.cm(0).establish(now, active).unwrap();
    net.cm(0).disconnect(now, active).unwrap();
    net.exchange();
    assert_eq!(net.expect(1, EventType::Disconnected).id, passive);
    net.assert_state(1, passive, State::DreqRcvd);
}

#[test]
fn a_cancelled_request_that_crosses_the_reply_ends_both_sides() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.requested();
    net.accept(passive);
    net.drain();
    // The active side gives up while the REP is in flight.
    let now = net.now;
    net.cm(0).destroy_id(now, active).unwrap();
    net.exchange();
    let rejected = net.expect(1, EventType::Rejected);
    assert_eq!(
        (rejected.id, rejected.status),
        (passive, i32::from(RejectReason::TIMEOUT.0))
    );
    net.expect_silence(0);
    net.run_for(Duration::from_secs(200));
    net.expect_silence(1);
}

#[test]
fn a_reply_to_a_forgotten_request_is_refused_so_that_the_peer_does_not_wait() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.requested();
    // The REJ with which the active side leaves is lost.
    net.disturb(lose_first(AttributeId::Rej));
    let now = net.now;
    net.cm(0).destroy_id(now, active).unwrap();
    net.exchange();
    net.accept(passive);
    net.exchange();
    let rejected = net.expect(1, EventType::Rejected);
    assert_eq!(rejected.status, i32::from(RejectReason::INVALID_COMM_ID.0));
}

#[test]
fn a_request_cancelled_while_its_owner_thinks_makes_the_accept_fail_with_the_state() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.requested();
    let now = net.now;
    net.cm(0).destroy_id(now, active).unwrap();
    net.exchange();
    net.expect_silence(1);
    let now = net.now;
    let late = net
        .cm(1)
        .accept(now, passive, UserId(20), &param(0x20, b""), Ece::default());
    let late = late.unwrap_err();
    assert_eq!(
        late.cause.to_string(),
        "expected REQ received or SIDR REQ received, found closed"
    );
    assert!(late.context.local.is_some() && late.context.remote.is_some());
}

#[test]
fn a_dreq_for_an_unknown_id_is_answered_and_one_for_another_queue_pair_is_not() {
    let mut net = Net::new();
    net.listen(0);
    let (_, passive) = net.connected();
    let passive_comm_id = net.log[1].message.local_comm_id();
    let active_comm_id = net.log[0].message.local_comm_id();
    let dreq = |remote_comm_id, qpn| DreqRepr {
        local_comm_id: active_comm_id,
        remote_comm_id,
        remote_qpn: Qpn::new(qpn),
        ..DreqRepr::default()
    };
    let mut send = |dreq: DreqRepr| {
        let mut mad = [0; 256];
        CmMessage::from(dreq).emit(3, &mut mad).unwrap();
        let now = net.now;
        net.cm(1).handle_mad(now, &path(1), &mad);
        net.cm(1)
            .poll_transmit()
            .map(|transmit| CmMessage::parse(&transmit.mad).unwrap().1)
    };
    let answer = send(dreq(passive_comm_id ^ 1, 0x20));
    assert!(matches!(answer, Some(CmMessage::Drep(_))), "{answer:?}");
    assert_eq!(send(dreq(passive_comm_id, 0x21)), None);
    net.assert_state(1, passive, State::Established);
}

#[test]
fn a_second_reply_from_another_queue_pair_does_not_take_the_connection_over() {
    let mut net = Net::new();
    net.listen(0);
    let (active, _) = net.replied();
    let CmMessage::Rep(rep) = net.log[1].message else {
        panic!("a REP")
    };
    for forged in [
        RepRepr {
            local_qpn: Qpn::new(0x666),
            ..rep
        },
        RepRepr {
            local_comm_id: 0x666,
            ..rep
        },
    ] {
        let mut mad = [0; 256];
        CmMessage::from(forged).emit(3, &mut mad).unwrap();
        let now = net.now;
        net.cm(0).handle_mad(now, &path(0), &mad);
        assert_eq!(net.cm(0).poll_transmit(), None);
    }
    let attr = net
        .cm(0)
        .init_qp_attr(active, portolan_provider::verbs::QpState::Rtr)
        .unwrap()
        .0;
    assert_eq!(attr.dest_qpn, Qpn::new(0x20));
}

#[test]
fn messages_from_another_host_do_not_touch_a_connection() {
    let mut net = Net::new();
    net.listen(0);
    let (_, passive) = net.connected();
    let (active_comm_id, passive_comm_id) = (
        net.log[0].message.local_comm_id(),
        net.log[1].message.local_comm_id(),
    );
    let dreq = DreqRepr {
        local_comm_id: active_comm_id,
        remote_comm_id: passive_comm_id,
        remote_qpn: Qpn::new(0x20),
        ..DreqRepr::default()
    };
    let mut mad = [0; 256];
    CmMessage::from(dreq).emit(3, &mut mad).unwrap();
    let mut from_elsewhere = path(1);
    from_elsewhere.remote = [192, 168, 7, 99].into();
    let now = net.now;
    net.cm(1).handle_mad(now, &from_elsewhere, &mad);
    net.drain();
    net.expect_silence(1);
    net.assert_state(1, passive, State::Established);
}

#[test]
fn answers_from_another_host_do_not_touch_a_request() {
    let mut net = Net::new();
    let active = net.connecting(10, 0x10);
    net.disturb(|_| Fate::Drop);
    net.drain();
    let remote_comm_id = net.log[0].message.local_comm_id();
    let rej = RejRepr {
        remote_comm_id,
        reason: RejectReason(8),
        ..RejRepr::default()
    };
    let mra = MraRepr {
        remote_comm_id,
        service_timeout: 31,
        ..MraRepr::default()
    };
    let rep = RepRepr {
        remote_comm_id,
        local_qpn: Qpn::new(9),
        ..RepRepr::default()
    };
    let due = net.cm(0).poll_timeout();
    for message in [CmMessage::from(rej), mra.into(), rep.into()] {
        let mut mad = [0; 256];
        message.emit(3, &mut mad).unwrap();
        let mut from_elsewhere = path(0);
        from_elsewhere.remote = [192, 168, 7, 99].into();
        let now = net.now;
        net.cm(0).handle_mad(now, &from_elsewhere, &mad);
    }
    net.drain();
    net.expect_silence(0);
    net.assert_state(0, active, State::ReqSent);
    assert_eq!(net.cm(0).poll_timeout(), due);
}

#[test]
fn the_reply_to_a_request_that_grants_no_time_is_not_repeated_in_a_burst() {
    let mut net = Net::new();
    net.listen(0);
    net.disturb(|_| Fate::Drop);
    net.connecting(10, 0x10);
    net.drain();
    let CmMessage::Req(req) = net.log[0].message else {
        panic!("a REQ")
    };
    let hasty = portolan_wire::cm::ReqRepr {
        local_comm_id: req.local_comm_id ^ 1,
        local_cm_response_timeout: 0,
        max_cm_retries: 15,
        ..req
    };
    let mut mad = [0; 256];
    CmMessage::from(hasty).emit(9, &mut mad).unwrap();
    let start = net.now;
    net.cm(1).handle_mad(start, &path(1), &mad);
    net.drain();
    let passive = net.expect(1, EventType::ConnectRequest).id;
    net.accept(passive);
    let shortest = time_of_exponent(Config::default().shortest_response_exp);
    net.run_until(start + shortest);
    let early = net.sent(1, AttributeId::Rep);
    assert!(early <= 5, "{early} replies within {shortest:?}");
    net.run_for(shortest * SENDS as u32);
    assert_eq!(
        net.sent(1, AttributeId::Rep),
        SENDS,
        "as many as it requested"
    );
    net.expect(1, EventType::Unreachable);
}
