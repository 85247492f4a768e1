//! A listener that closes and reopens, or an id that is bound and then listens: requests that arrive in between wait
//! for a moment.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use portolan_cm::{Config, State};
use portolan_provider::cm::{EventType, IdNumber, IdOption, UserId};
use portolan_wire::cm::{AttributeId, RejectReason};

use crate::net::*;

const WAIT: Duration = Duration::from_millis(500);
/// How long perftest has no listener.
const CLOSED: Duration = Duration::from_secs(1);
const GAP: Duration = Duration::from_millis(50);

/// Two hosts; host 1's listener has just closed.
fn just_closed(mut net: Net) -> Net {
    let listener = net.listen(0);
    close(&mut net, listener);
    net.run_for(CLOSED);
    net
}

fn close(net: &mut Net, listener: IdNumber) {
    let now = net.now;
    net.cm(1).destroy_id(now, listener).unwrap();
}

#[test]
fn a_request_just_after_its_listener_has_closed_waits_for_the_next() {
    let mut net = just_closed(Net::new());
    let active = net.connecting(10, 0x10);
    net.run_for(GAP);
    net.expect_silence(0);
    net.expect_silence(1);
    assert_eq!(net.cm(1).table_sizes().held, 1);
    net.listen(0);
    net.exchange();
    let request = net.expect(1, EventType::ConnectRequest);
    assert_eq!(*conn(&request).private_data.get(..7).unwrap(), *b"request");
    assert_eq!(net.cm(1).table_sizes().held, 0);
    net.accept(request.id);
    net.exchange();
    assert_eq!(net.expect(0, EventType::ConnectResponse).id, active);
    assert_eq!(
        net.sent(0, AttributeId::Req),
        1,
        "it need not repeat the request"
    );
}

#[test]
fn a_request_is_refused_if_the_listener_does_not_reopen_in_time() {
    let mut net = just_closed(Net::new());
    let active = net.connecting(10, 0x10);
    net.run_for(WAIT);
    net.expect_silence(0);
    net.run_for(LATENCY * 2);
    let rejected = net.expect(0, EventType::Rejected);
    let reason = i32::from(RejectReason::INVALID_SERVICE_ID.0);
    assert_eq!((rejected.id, rejected.status), (active, reason));
    // After a while the closed listener is forgotten.
    net.run_for(Duration::from_secs(5));
    net.connecting(11, 0x11);
    net.exchange();
    assert_eq!(net.expect(0, EventType::Rejected).status, reason);
    let sizes = net.cm(1).table_sizes();
    assert_eq!((sizes.held, sizes.ids), (0, 0));
    assert_eq!(net.cm(1).poll_timeout(), None);
}

/// An id of host 1 that is bound to `local` and does not listen.
fn bound(net: &mut Net, local: SocketAddr) -> IdNumber {
    let now = net.now;
    let id = net.cm(1).create_id(UserId(1), RC).unwrap();
    net.cm(1).bind(now, id, local, None).unwrap();
    id
}

#[test]
fn a_request_for_an_id_that_was_just_bound_waits_until_it_listens() {
    let mut net = Net::new();
    let id = bound(&mut net, SocketAddr::new([0, 0, 0, 0].into(), PORT));
    net.connecting(10, 0x10);
    net.run_for(GAP);
    net.expect_silence(0);
    assert_eq!(net.cm(1).table_sizes().held, 1);
    let now = net.now;
    net.cm(1).listen(now, id, 0).unwrap();
    net.exchange();
    let request = net.expect(1, EventType::ConnectRequest);
    net.accept(request.id);
    net.exchange();
    net.expect(0, EventType::ConnectResponse);
}

#[test]
fn a_request_for_an_id_that_is_bound_and_does_not_listen_is_refused_in_time() {
    let mut net = Net::new();
    bound(&mut net, SocketAddr::new([0, 0, 0, 0].into(), PORT));
    net.connecting(10, 0x10);
    net.run_for(WAIT);
    net.expect_silence(0);
    net.run_for(LATENCY * 2);
    assert_eq!(net.expect(0, EventType::Rejected).status, 8);
    // Later requests are refused at once.
    net.run_for(Duration::from_secs(5));
    assert_refused_at_once(&mut net);
}

#[test]
fn an_id_that_was_bound_and_connects_or_is_destroyed_is_not_expected_to_listen() {
    for is_destroyed in [false, true] {
        let mut net = Net::new();
        let id = bound(&mut net, SocketAddr::new([0, 0, 0, 0].into(), PORT));
        let now = net.now;
        match is_destroyed {
            true => net.cm(1).destroy_id(now, id).unwrap(),
            false => {
                let to = SocketAddr::new(ip(0), PORT);
                let patience = Duration::from_secs(2);
                let resolved = net.cm(1).resolve_addr(now, id, None, to, patience);
                resolved.unwrap();
            }
        }
        assert_refused_at_once(&mut net);
    }
}

#[test]
fn a_wildcard_of_one_family_holds_no_request_of_the_other() {
    for (af_only, is_held) in [(None, true), (Some(true), false)] {
        let mut net = Net::new();
        let now = net.now;
        let id = net.cm(1).create_id(UserId(1), RC).unwrap();
        if let Some(only) = af_only {
            net.cm(1).set_option(id, IdOption::AfOnly(only)).unwrap();
        }
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), PORT);
        net.cm(1).bind(now, id, any, None).unwrap();
        net.connecting(10, 0x10);
        net.run_for(GAP);
        assert_eq!(net.cm(1).table_sizes().held == 1, is_held);
    }
}

fn assert_refused_at_once(net: &mut Net) {
    let held = net.cm(1).table_sizes().held;
    net.connecting(11, 0x11);
    net.exchange();
    assert_eq!(net.expect(0, EventType::Rejected).status, 8);
    assert_eq!(net.cm(1).table_sizes().held, held);
}

#[test]
fn other_ports_than_the_closed_one_refuse_at_once() {
    let mut net = Net::new();
    let beside = net.listen_on(SocketAddr::new(ip(1), PORT + 1), 0);
    close(&mut net, beside);
    net.connecting(10, 0x10);
    net.exchange();
    assert_eq!(net.expect(0, EventType::Rejected).status, 8);
}

#[test]
fn without_a_waiting_time_a_request_is_refused_at_once() {
    let mut net = just_closed(Net::with_config(Config {
        listener_wait: Duration::ZERO,
        ..Config::default()
    }));
    net.connecting(10, 0x10);
    net.exchange();
    assert_eq!(net.expect(0, EventType::Rejected).status, 8);
}

#[test]
fn copies_of_a_waiting_request_count_as_one_request() {
    let mut net = Net::new();
    net.disturb(|passing| match passing.kind() {
        AttributeId::Req => Fate::Duplicate,
        _ => Fate::Deliver,
    });
    let mut net = just_closed(net);
    net.connecting(10, 0x10);
    net.run_for(GAP);
    assert_eq!(net.cm(1).table_sizes().held, 1);
    assert_eq!(net.cm(1).counters().duplicates[AttributeId::Req], 1);
    net.listen(0);
    net.exchange();
    net.expect(1, EventType::ConnectRequest);
    net.expect_silence(1);
}

#[test]
fn a_withdrawn_request_stops_waiting() {
    let mut net = just_closed(Net::new());
    let active = net.connecting(10, 0x10);
    net.run_for(GAP);
    let now = net.now;
    net.cm(0).destroy_id(now, active).unwrap();
    net.exchange();
    assert_eq!(net.cm(1).table_sizes().held, 0);
    net.listen(0);
    net.exchange();
    net.expect_silence(1);
}

#[test]
fn the_number_of_waiting_requests_is_bounded() {
    let mut net = just_closed(Net::with_config(Config {
        max_held_requests: 3,
        ..Config::default()
    }));
    for number in 0..5 {
        net.connecting(10 + u64::from(number), 0x10 + number);
    }
    net.exchange();
    for _ in 0..2 {
        assert_eq!(net.expect(0, EventType::Rejected).status, 8);
    }
    net.expect_silence(0);
    net.listen(0);
    net.exchange();
    for _ in 0..3 {
        net.expect(1, EventType::ConnectRequest);
    }
    net.expect_silence(1);
}

#[test]
fn only_the_listeners_that_closed_last_are_remembered() {
    let mut net = Net::with_config(Config {
        max_expected_listeners: 2,
        ..Config::default()
    });
    let listeners = [PORT, PORT + 1, PORT + 2].map(|port| {
        let now = net.now;
        let id = net.cm(1).create_id(UserId(port.into()), RC).unwrap();
        let local = SocketAddr::new([0, 0, 0, 0].into(), port);
        net.cm(1).bind(now, id, local, None).unwrap();
        net.cm(1).listen(now, id, 0).unwrap();
        id
    });
    for listener in listeners {
        close(&mut net, listener);
    }
    net.connecting(10, 0x10);
    net.exchange();
    assert_eq!(net.expect(0, EventType::Rejected).status, 8);
}

#[test]
fn a_reopened_listener_takes_no_more_than_its_backlog() {
    let mut net = just_closed(Net::new());
    for number in 0..4 {
        net.connecting(10 + u64::from(number), 0x10 + number);
    }
    net.run_for(GAP);
    net.listen(2);
    net.exchange();
    net.expect(1, EventType::ConnectRequest);
    net.expect(1, EventType::ConnectRequest);
    net.expect_silence(1);
    net.expect_silence(0);
}

#[test]
fn a_question_for_a_datagram_service_waits_in_the_same_way() {
    for is_back in [true, false] {
        let mut net = just_closed(Net::datagrams());
        let active = net.connecting(10, 0x10);
        net.run_for(GAP);
        net.expect_silence(0);
        if is_back {
            net.listen(0);
            net.exchange();
            let request = net.expect(1, EventType::ConnectRequest);
            net.assert_state(1, request.id, State::SidrReqRcvd);
        } else {
            net.run_for(WAIT);
            let refused = net.expect(0, EventType::Unreachable);
            assert_eq!((refused.id, refused.status), (active, 1), "unsupported");
        }
    }
}
