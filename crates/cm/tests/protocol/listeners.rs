//! Which listener gets a request, which requests are refused, and what happens to them.

use std::net::SocketAddr;
use std::time::Duration;

use portolan_cm::{Config, DropReason, State};
use portolan_provider::cm::{Ece, EventType, IdOption, UserId};
use portolan_provider::error::Cause;
use portolan_wire::cm::{
    AttributeId, CmMessage, PathMtu, PrivateData, RejMessage, RejectReason, ReqRepr,
    TransportService,
};
use portolan_wire::{Gid, PortSpace, Qpn, ServiceId};

use crate::net::*;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Host 1's answer to an ordinary REQ modified by `change`.
fn answer_to(change: impl FnOnce(&mut ReqRepr)) -> (Net, Option<CmMessage>) {
    let mut net = Net::new();
    net.listen(0);
    net.disturb(|_| Fate::Drop);
    net.connecting(10, 0x10);
    net.drain();
    let CmMessage::Req(mut req) = net.log[0].message else {
        panic!("a REQ")
    };
    change(&mut req);
    let mut mad = [0; 256];
    CmMessage::from(req).emit(net.log[0].tid, &mut mad).unwrap();
    let now = net.now;
    net.cm(1).handle_mad(now, &path(1), &mad);
    let answer = net
        .cm(1)
        .poll_transmit()
        .map(|transmit| CmMessage::parse(&transmit.mad).unwrap().1);
    (net, answer)
}

#[track_caller]
fn assert_refused(change: impl FnOnce(&mut ReqRepr), reason: RejectReason, info: &[u8]) {
    let (mut net, answer) = answer_to(change);
    let Some(CmMessage::Rej(rej)) = answer else {
        panic!("a REJ expected, found {answer:?}")
    };
    assert_eq!((rej.reason, rej.message), (reason, RejMessage::Req));
    assert_eq!(rej.additional_info.as_slice(), info);
    net.drain();
    net.expect_silence(1);
    assert_eq!(net.cm(1).table_sizes().ids, 1, "no child is left behind");
}

#[test]
fn a_request_to_a_port_without_listener_is_rejected_with_reason_8() {
    let mut net = Net::new();
    let active = net.connecting(10, 0x10);
    net.exchange();
    let rejected = net.expect(0, EventType::Rejected);
    assert_eq!((rejected.id, rejected.status), (active, 8));
}

#[test]
fn an_ordinary_request_is_admitted() {
    let (mut net, answer) = answer_to(|_| {});
    assert_eq!(answer, None);
    net.drain();
    net.expect(1, EventType::ConnectRequest);
}

#[test]
fn a_foreign_service_id_has_no_listener_even_if_its_low_bits_look_like_ours() {
    let foreign = ServiceId(0x1000_0000_0000_0000 | ServiceId::from_port(PortSpace::Tcp, PORT).0);
    assert_refused(
        |req| req.service_id = foreign,
        RejectReason::INVALID_SERVICE_ID,
        &[],
    );
}

#[test]
fn addresses_of_an_unknown_version_are_refused() {
    let version_1 = |req: &mut ReqRepr| {
        let mut data = *req.private_data.as_array();
        data[0] = 1;
        req.private_data = PrivateData::new(data);
    };
    assert_refused(version_1, RejectReason::CONSUMER_DEFINED, &[]);
}

#[test]
fn addresses_other_than_those_of_the_request_are_refused() {
    let another_source = |req: &mut ReqRepr| {
        let mut data = *req.private_data.as_array();
        data[19] ^= 1;
        req.private_data = PrivateData::new(data);
    };
    assert_refused(another_source, RejectReason::CONSUMER_DEFINED, &[]);
}

#[test]
fn another_transport_service_than_the_listeners_is_refused() {
    let reason = RejectReason::INVALID_TRANSPORT_TYPE;
    assert_refused(|req| req.transport = TransportService::Uc, reason, &[]);
    assert_refused(
        |req| req.transport = TransportService::Extended,
        reason,
        &[],
    );
}

#[test]
fn gids_of_other_hosts_are_refused_and_the_right_one_is_returned() {
    let (reason, own) = (RejectReason::INVALID_GID, Gid::from(ip(1)));
    assert_refused(
        |req| req.primary.remote_gid = Gid::from(ip(0)),
        reason,
        &own.0,
    );
    assert_refused(
        |req| req.primary.local_gid = Gid::from(ip(1)),
        reason,
        &own.0,
    );
}

#[test]
fn a_path_mtu_beyond_the_ports_is_refused_and_the_largest_is_returned() {
    let reason = RejectReason::INVALID_MTU;
    assert_refused(|req| req.path_mtu = PathMtu(4), reason, &[3 << 4]);
    assert_refused(|req| req.path_mtu = PathMtu(0), reason, &[3 << 4]);
}

#[test]
fn a_request_for_the_fabrics_own_queue_pairs_is_dropped_as_malformed() {
    let (mut net, answer) = answer_to(|req| req.local_qpn = Qpn::GSI);
    assert_eq!(answer, None);
    assert_eq!(net.cm(1).counters().dropped(DropReason::Malformed), 1);
    net.drain();
    net.expect_silence(1);
}

#[test]
fn the_listener_of_the_exact_address_precedes_the_wildcard() {
    let mut net = Net::new();
    let wildcard = net.listen_on(at("0.0.0.0:7471"), 0);
    let now = net.now;
    let specific = net.cm(1).create_id(UserId(2), RC).unwrap();
    net.cm(1)
        .bind(now, specific, SocketAddr::new(ip(1), PORT), Some(device(1)))
        .unwrap();
    net.cm(1).listen(now, specific, 0).unwrap();
    net.connecting(10, 0x10);
    net.exchange();
    assert_eq!(net.expect(1, EventType::ConnectRequest).uid, UserId(2));
    net.cm(1).destroy_id(now, specific).unwrap();
    net.drain();
    net.connecting(11, 0x11);
    net.exchange();
    assert_eq!(net.expect(1, EventType::ConnectRequest).uid, LISTENER_UID);
    net.cm(1).destroy_id(now, wildcard).unwrap();
    assert_eq!(net.cm(1).table_sizes().listeners, 0);
}

#[test]
fn a_wildcard_of_ipv6_serves_ipv4_unless_it_keeps_to_its_family() {
    for (af_only, served) in [(None, true), (Some(true), false)] {
        let mut net = Net::new();
        let now = net.now;
        let id = net.cm(1).create_id(LISTENER_UID, RC).unwrap();
        if let Some(only) = af_only {
            net.cm(1).set_option(id, IdOption::AfOnly(only)).unwrap();
        }
        net.cm(1).bind(now, id, at("[::]:7471"), None).unwrap();
        net.cm(1).listen(now, id, 0).unwrap();
        net.connecting(10, 0x10);
        net.exchange();
        if served {
            net.expect(1, EventType::ConnectRequest);
        } else {
            assert_eq!(net.expect(0, EventType::Rejected).status, 8);
        }
    }
}

#[test]
fn two_ids_cannot_listen_at_one_address_and_the_first_keeps_it() {
    let mut net = Net::new();
    let first = net.listen(0);
    let now = net.now;
    let second = net.cm(1).create_id(UserId(2), RC).unwrap();
    net.cm(1)
        .bind(now, second, at("0.0.0.0:7471"), None)
        .unwrap();
    let error = net.cm(1).listen(now, second, 0).unwrap_err();
    assert!(matches!(error.cause, Cause::AddressInUse { .. }), "{error}");
    net.assert_state(1, second, State::AddrBound);
    net.cm(1).destroy_id(now, second).unwrap();
    net.connecting(10, 0x10);
    net.exchange();
    assert_eq!(net.expect(1, EventType::ConnectRequest).uid, LISTENER_UID);
    net.cm(1).destroy_id(now, first).unwrap();
}

#[test]
fn an_id_without_a_port_cannot_listen() {
    let mut net = Net::new();
    let now = net.now;
    let id = net.cm(1).create_id(UserId(2), RC).unwrap();
    net.cm(1).bind(now, id, at("0.0.0.0:0"), None).unwrap();
    let error = net.cm(1).listen(now, id, 0).unwrap_err();
    assert!(
        matches!(error.cause, Cause::InvalidArgument { .. }),
        "{error}"
    );
}

#[test]
fn requests_beyond_the_backlog_are_dropped_silently_and_accepted_when_repeated_with_room() {
    let mut net = Net::new();
    net.listen(2);
    for request in 0..3 {
        net.connecting(10 + u64::from(request), 0x10 + request);
    }
    net.exchange();
    let first = net.expect(1, EventType::ConnectRequest).id;
    net.expect(1, EventType::ConnectRequest);
    net.expect_silence(1);
    net.expect_silence(0);
    assert_eq!(net.cm(1).counters().dropped(DropReason::BacklogFull), 1);
    assert_eq!(
        net.cm(1).table_sizes().ids,
        3,
        "a listener and two children"
    );
    net.cm(1).request_taken(first);
    // The third is repeated and finds room. The first two, still unanswered, are acknowledged and cause no
    // further events.
    net.run_for(Duration::from_secs(1));
    net.expect(1, EventType::ConnectRequest);
    net.expect_silence(1);
}

#[test]
fn answering_or_destroying_a_child_frees_its_place_in_the_backlog() {
    let mut net = Net::new();
    net.listen(1);
    for round in 0..3u32 {
        net.connecting(10 + u64::from(round), 0x10 + round);
        net.exchange();
        let child = net.expect(1, EventType::ConnectRequest).id;
        let now = net.now;
        let reason = RejectReason::CONSUMER_DEFINED;
        match round {
            0 => net.cm(1).reject(now, child, reason, b"").unwrap(),
            1 => net.cm(1).destroy_id(now, child).unwrap(),
            _ => net.accept(child),
        }
        net.exchange();
        net.hosts[0].events.clear();
    }
    assert_eq!(net.cm(1).counters().dropped(DropReason::BacklogFull), 0);
}

#[test]
fn requests_that_were_not_taken_end_with_their_listener() {
    let mut net = Net::new();
    let listener = net.listen(0);
    let taken = net.connecting(10, 0x10);
    net.exchange();
    let child = net.expect(1, EventType::ConnectRequest).id;
    net.cm(1).request_taken(child);
    let untaken = net.connecting(11, 0x11);
    net.exchange();
    let lost = net.expect(1, EventType::ConnectRequest).id;
    let now = net.now;
    net.cm(1).destroy_id(now, listener).unwrap();
    net.exchange();
    let rejected = net.expect(0, EventType::Rejected);
    assert_eq!((rejected.id, rejected.status), (untaken, 28));
    net.expect_silence(0);
    assert!(net.cm(1).state(lost).is_err());
    // The request that was taken can still be accepted.
    net.accept(child);
    net.exchange();
    assert_eq!(net.expect(0, EventType::ConnectResponse).id, taken);
}

#[test]
fn an_event_of_a_request_whose_listener_is_gone_is_not_delivered() {
    let mut net = Net::new();
    let listener = net.listen(0);
    net.connecting(10, 0x10);
    net.drain();
    let mut mad = [0; 256];
    net.log[0].message.emit(net.log[0].tid, &mut mad).unwrap();
    let now = net.now;
    net.cm(1).handle_mad(now, &path(1), &mad);
    net.cm(1).destroy_id(now, listener).unwrap();
    assert_eq!(net.cm(1).poll_event(), None);
}

#[test]
fn a_child_has_no_events_until_it_is_accepted() {
    let mut net = Net::new();
    net.listen(0);
    let (active, child) = net.requested();
    let now = net.now;
    net.cm(0).destroy_id(now, active).unwrap();
    net.exchange();
    net.assert_state(1, child, State::Closed);
    net.expect_silence(1);
    assert_eq!(net.cm(1).counters().dropped(DropReason::NoOwner), 1);
}

#[test]
fn a_full_engine_drops_requests_and_answers_them_when_there_is_room_again() {
    let config = Config {
        max_ids: 2,
        ..Config::default()
    };
    let mut net = Net::with_config(config);
    net.listen(0);
    let first = net.connecting(10, 0x10);
    let _second = net.connecting(11, 0x11);
    net.exchange();
    let child = net.expect(1, EventType::ConnectRequest).id;
    net.expect_silence(1);
    assert_eq!(net.cm(1).counters().dropped(DropReason::IdsFull), 1);
    let full = net.cm(1).create_id(UserId(9), RC).unwrap_err();
    assert_eq!(
        full.cause,
        Cause::LimitReached {
            what: "ids",
            limit: 2
        }
    );
    let now = net.now;
    net.cm(1).destroy_id(now, child).unwrap();
    net.run_for(Duration::from_secs(2));
    assert_eq!(net.expect(0, EventType::Rejected).id, first);
    net.expect(1, EventType::ConnectRequest);
}

#[test]
fn while_events_are_not_taken_messages_count_as_lost_and_nothing_is_forgotten() {
    let config = Config {
        max_events_queued: 1,
        ..Config::default()
    };
    let mut net = Net::with_config(config);
    net.listen(0);
    let mut mads = Vec::new();
    for request in 0..2 {
        net.connecting(10 + request, 0x10 + request as u32);
        let transmit = net.cm(0).poll_transmit().unwrap();
        mads.push(transmit.mad);
    }
    let now = net.now;
    for mad in &mads {
        net.cm(1).handle_mad(now, &path(1), mad);
    }
    assert_eq!(net.cm(1).counters().dropped(DropReason::EventsFull), 1);
    assert!(net.cm(1).poll_event().is_some());
    assert!(net.cm(1).poll_event().is_none());
    net.cm(1).handle_mad(now, &path(1), &mads[1]);
    assert!(
        net.cm(1).poll_event().is_some(),
        "the copy is taken because the first was not"
    );
}

#[test]
fn while_the_messages_are_not_sent_commands_are_refused_and_change_nothing() {
    let config = Config {
        max_transmits_queued: 2,
        ..Config::default()
    };
    let mut net = Net::with_config(config);
    let ids = [net.resolved(10), net.resolved(11), net.resolved(12)];
    let now = net.now;
    let mut connect = |id, qpn| net.cm(0).connect(now, id, &param(qpn, b""), Ece::default());
    connect(ids[0], 0x10).unwrap();
    let refused = connect(ids[1], 0x11).unwrap_err();
    let limit = Cause::LimitReached {
        what: "messages waiting to be sent",
        limit: 2,
    };
    assert_eq!(refused.cause, limit);
    net.assert_state(0, ids[1], State::RouteResolved);
    assert!(net.cm(0).poll_transmit().is_some());
    net.cm(0)
        .connect(now, ids[1], &param(0x11, b""), Ece::default())
        .unwrap();
}

#[test]
fn private_data_that_does_not_fit_is_an_error_of_the_command_and_the_id_stays_usable() {
    let mut net = Net::new();
    net.listen(0);
    let long = |length| param(0x10, &vec![7; length]);
    let active = net.resolved(10);
    let now = net.now;
    let error = net
        .cm(0)
        .connect(now, active, &long(57), Ece::default())
        .unwrap_err();
    let text = "private data: expected at most 56 bytes, found 57 bytes";
    assert_eq!(error.cause.to_string(), text);
    net.cm(0)
        .connect(now, active, &long(56), Ece::default())
        .unwrap();
    net.exchange();
    let request = net.expect(1, EventType::ConnectRequest);
    assert_eq!(*conn(&request).private_data, [7; 56]);
    let now = net.now;
    let error = net
        .cm(1)
        .accept(now, request.id, UserId(2), &long(197), Ece::default());
    assert!(matches!(
        error.unwrap_err().cause,
        Cause::InvalidArgument { .. }
    ));
    let error = net
        .cm(1)
        .reject(now, request.id, RejectReason::CONSUMER_DEFINED, &[7; 149]);
    assert!(matches!(
        error.unwrap_err().cause,
        Cause::InvalidArgument { .. }
    ));
    net.cm(1)
        .accept(now, request.id, UserId(2), &long(196), Ece::default())
        .unwrap();
    net.exchange();
    assert_eq!(
        *conn(&net.expect(0, EventType::ConnectResponse)).private_data,
        [7; 196]
    );
}

#[test]
fn impossible_queue_pair_numbers_and_vendor_ids_are_refused() {
    let mut net = Net::new();
    let active = net.resolved(10);
    let now = net.now;
    let error = net
        .cm(0)
        .connect(now, active, &param(1, b""), Ece::default())
        .unwrap_err();
    assert!(
        matches!(error.cause, Cause::InvalidArgument { .. }),
        "{error}"
    );
    let ece = Ece {
        vendor_id: 1 << 24,
        ..Ece::default()
    };
    let error = net
        .cm(0)
        .connect(now, active, &param(2, b""), ece)
        .unwrap_err();
    assert!(
        matches!(error.cause, Cause::InvalidArgument { .. }),
        "{error}"
    );
    net.assert_state(0, active, State::RouteResolved);
}

#[test]
fn alternate_paths_are_counted_and_dropped() {
    let mut net = Net::new();
    for attribute in [0x19u8, 0x1A] {
        let mut mad = [0; 256];
        CmMessage::from(ReqRepr::default())
            .emit(1, &mut mad)
            .unwrap();
        mad[17] = attribute;
        let now = net.now;
        net.cm(0).handle_mad(now, &path(0), &mad);
    }
    assert_eq!(net.cm(0).counters().dropped(DropReason::Unsupported), 2);
    assert_eq!(net.cm(0).poll_transmit(), None);
    assert_eq!(net.cm(0).counters().received[AttributeId::Lap], 1);
}
