//! Options of an id: when they may be set, and their effect.

use std::net::SocketAddr;
use std::time::Duration;

use portolan_cm::State;
use portolan_provider::cm::{Ece, EventType, IdOption, UserId};
use portolan_provider::error::Cause;
use portolan_provider::verbs::QpState;
use portolan_wire::cm::CmMessage;

use crate::net::*;

/// An id of host 0 with these options and a resolved route.
fn resolved_with(net: &mut Net, options: &[IdOption]) -> portolan_provider::cm::IdNumber {
    let service = net.service;
    let id = net.cm(0).create_id(UserId(10), service).unwrap();
    for option in options {
        net.cm(0).set_option(id, *option).unwrap();
    }
    net.resolve(id);
    id
}

#[test]
fn the_type_of_service_becomes_the_traffic_class_of_path_messages_and_queue_pair() {
    for service in [RC, UDP] {
        let mut net = Net::new();
        net.service = service;
        let id = resolved_with(&mut net, &[IdOption::Tos(0x68)]);
        assert_eq!(net.cm(0).paths(id).unwrap()[0].traffic_class, 0x68);
        let now = net.now;
        net.cm(0)
            .connect(now, id, &param(0x10, b""), Ece::default())
            .unwrap();
        let transmit = net.cm(0).poll_transmit().unwrap();
        assert_eq!(transmit.traffic_class, 0x68);
        if let (_, CmMessage::Req(req)) = CmMessage::parse(&transmit.mad).unwrap() {
            assert_eq!(req.primary.traffic_class, 0x68);
        }
    }
    let mut net = Net::datagrams();
    net.listen(0);
    let id = resolved_with(&mut net, &[IdOption::Tos(0x68)]);
    let now = net.now;
    net.cm(0)
        .connect(now, id, &param(0, b""), Ece::default())
        .unwrap();
    net.exchange();
    let passive = net.expect(1, EventType::ConnectRequest).id;
    net.accept(passive);
    net.exchange();
    let established = net.expect(0, EventType::Established);
    assert_eq!(ud(&established).ah_attr.traffic_class, 0x68);
}

#[test]
fn an_ack_timeout_goes_into_path_and_queue_pair_unless_it_is_none() {
    let lifetime_and_timeout = |options: &[IdOption]| {
        let mut net = Net::new();
        net.listen(0);
        let id = resolved_with(&mut net, options);
        let lifetime = net.cm(0).paths(id).unwrap()[0].packet_lifetime;
        let now = net.now;
        net.cm(0)
            .connect(now, id, &param(0x10, b""), Ece::default())
            .unwrap();
        net.exchange();
        let passive = net.expect(1, EventType::ConnectRequest).id;
        net.accept(passive);
        net.exchange();
        net.expect(0, EventType::ConnectResponse);
        let (attr, _) = net.cm(0).init_qp_attr(id, QpState::Rts).unwrap();
        (lifetime, attr.timeout)
    };
    assert_eq!(lifetime_and_timeout(&[]), (18, 19));
    assert_eq!(lifetime_and_timeout(&[IdOption::AckTimeout(12)]), (11, 12));
    // No timeout at all: the queue pair waits forever, the connection manager as usual.
    assert_eq!(lifetime_and_timeout(&[IdOption::AckTimeout(0)]), (18, 0));
}

#[test]
fn an_ack_timeout_has_five_bits_and_is_for_reliable_connections() {
    let mut net = Net::new();
    let reliable = net.cm(0).create_id(UserId(1), RC).unwrap();
    let datagrams = net.cm(0).create_id(UserId(2), UDP).unwrap();
    for (id, exponent) in [(reliable, 32), (datagrams, 12)] {
        let error = net
            .cm(0)
            .set_option(id, IdOption::AckTimeout(exponent))
            .unwrap_err();
        assert!(
            matches!(error.cause, Cause::InvalidArgument { .. }),
            "{error}"
        );
        assert_eq!(net.cm(0).options(id).unwrap().ack_timeout_exp, None);
    }
    net.cm(0)
        .set_option(reliable, IdOption::AckTimeout(31))
        .unwrap();
}

/// Ids of host 1 in the states that matter for binding options.
fn id_in(net: &mut Net, state: State) -> portolan_provider::cm::IdNumber {
    let now = net.now;
    let id = net.cm(1).create_id(UserId(3), RC).unwrap();
    if state != State::Idle {
        let local = SocketAddr::new(ip(1), PORT);
        net.cm(1).bind(now, id, local, Some(device(1))).unwrap();
    }
    match state {
        State::Listen => net.cm(1).listen(now, id, 0).unwrap(),
        State::AddrQuery => {
            let destination = SocketAddr::new(ip(0), PORT);
            let second = Duration::from_secs(1);
            net.cm(1)
                .resolve_addr(now, id, None, destination, second)
                .unwrap();
        }
        _ => {}
    }
    net.assert_state(1, id, state);
    id
}

#[test]
fn binding_options_may_be_set_in_the_states_in_which_linux_takes_them() {
    use IdOption::{AfOnly, ReuseAddr};
    use State::{AddrBound, AddrQuery, Idle, Listen};
    for (option, takes) in [
        (ReuseAddr(true), &[Idle, AddrBound, AddrQuery][..]),
        (ReuseAddr(false), &[Idle]),
        (AfOnly(true), &[Idle, AddrBound]),
        (AfOnly(false), &[Idle, AddrBound]),
    ] {
        for state in [Idle, AddrBound, AddrQuery, Listen] {
            let mut net = Net::new();
            let id = id_in(&mut net, state);
            let before = net.cm(1).options(id).unwrap();
            match net.cm(1).set_option(id, option) {
                Ok(()) => assert!(takes.contains(&state), "{option:?} in {state:?}"),
                Err(error) => {
                    assert!(!takes.contains(&state), "{option:?} in {state:?}: {error}");
                    assert!(matches!(error.cause, Cause::InvalidState { .. }), "{error}");
                    assert_eq!(net.cm(1).options(id).unwrap(), before);
                }
            }
        }
    }
}
