//! Ids before they connect: addresses, routes, options.

use std::net::SocketAddr;
use std::time::Duration;

use portolan_cm::{Config, MadPath, Query, ResolvedAddress, State};
use portolan_provider::cm::{Ece, EventParam, EventType, IdOption, Service, UserId};
use portolan_provider::error::errno;
use portolan_provider::verbs::{QpState, QpType};
use portolan_provider::{Address, Cause};
use portolan_wire::cm::CmMessage;
use portolan_wire::{Gid, PortSpace};

use crate::net::*;

#[test]
fn link_local_addresses_keep_their_scope_on_both_ends() {
    let (own, peer) = ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
    let mut cm = [1u8, 2].map(|seed| portolan_cm::Cm::new(Default::default(), [seed; 32]));
    let now = Duration::from_secs(1);
    let [client, server] = &mut cm;
    let listener = server.create_id(LISTENER_UID, RC).unwrap();
    server
        .bind(now, listener, "[::]:7471".parse().unwrap(), None)
        .unwrap();
    server.listen(now, listener, 0).unwrap();
    let active = client.create_id(UserId(2), RC).unwrap();
    let destination: SocketAddr = "[fe80::2%3]:7471".parse().unwrap();
    client
        .resolve_addr(now, active, None, destination, Duration::from_secs(1))
        .unwrap();
    let Some(Query::Address { query, .. }) = client.poll_query() else {
        panic!("no query")
    };
    let source = "[fe80::1%3]:4000".parse().unwrap();
    let device = device_with(own, 1);
    let dgid = Gid::from(peer);
    let answer = ResolvedAddress {
        source,
        destination,
        device,
        dgid,
        hop_limit: 64,
        neighbour: None,
    };
    client
        .address_resolved(now, active, query, Ok(answer))
        .unwrap();
    client
        .resolve_route(now, active, Duration::from_secs(1))
        .unwrap();
    client
        .connect(now, active, &param(0x10, b""), Ece::default())
        .unwrap();
    let req = client.poll_transmit().unwrap();
    assert_eq!(
        (req.path.local, req.path.remote, req.path.scope_id),
        (own, peer, 3)
    );
    let device = device_with(peer, 2);
    let path = MadPath {
        local: peer,
        remote: own,
        scope_id: 5,
        device,
        lids: None,
    };
    server.handle_mad(now, &path, &req.mad);
    let request = server.poll_event().unwrap();
    let addresses = server.addresses(request.id).unwrap();
    assert_eq!(
        addresses.remote,
        Some(Address::Inet("[fe80::1%5]:4000".parse().unwrap()))
    );
    assert_eq!(
        addresses.local,
        Some(Address::Inet("[fe80::2%5]:7471".parse().unwrap()))
    );
}

#[test]
fn an_ack_timeout_and_a_type_of_service_that_are_set_go_into_the_request() {
    let mut net = Net::new();
    net.listen(0);
    let active = net.cm(0).create_id(UserId(2), RC).unwrap();
    net.cm(0)
        .set_option(active, IdOption::AckTimeout(21))
        .unwrap();
    net.cm(0).set_option(active, IdOption::Tos(0x60)).unwrap();
    net.resolve(active);
    let now = net.now;
    net.cm(0)
        .connect(now, active, &param(0x10, b""), Ece::default())
        .unwrap();
    net.exchange();
    let CmMessage::Req(req) = net.log[0].message else {
        panic!("{}", net.log[0].message)
    };
    assert_eq!(
        (req.primary.local_ack_timeout, req.primary.traffic_class),
        (21, 0x60)
    );
    let passive = net.expect(1, EventType::ConnectRequest).id;
    assert_eq!(
        net.cm(1)
            .init_qp_attr(passive, QpState::Rts)
            .unwrap()
            .0
            .timeout,
        21
    );
    let too_large = net
        .cm(0)
        .set_option(active, IdOption::AckTimeout(32))
        .unwrap_err();
    assert_eq!(too_large.errno(), errno::EINVAL);
}

#[test]
fn an_address_that_cannot_be_resolved_is_an_event_and_the_id_may_try_again() {
    let mut net = Net::new();
    let id = net.cm(0).create_id(UserId(2), RC).unwrap();
    let destination = SocketAddr::new(ip(1), PORT);
    let now = net.now;
    net.cm(0)
        .resolve_addr(now, id, None, destination, Duration::from_secs(2))
        .unwrap();
    let Some(Query::Address { query, .. }) = net.cm(0).poll_query() else {
        panic!("no query")
    };
    net.cm(0)
        .address_resolved(now, id, query, Err(errno::EHOSTUNREACH))
        .unwrap();
    net.drain();
    let error = net.expect(0, EventType::AddrError);
    assert_eq!(
        (error.status, error.param),
        (-errno::EHOSTUNREACH, EventParam::None)
    );
    net.resolve(id);
}

#[test]
fn a_lost_route_is_an_event_and_the_id_may_try_again() {
    let mut net = Net::new();
    let id = net.cm(0).create_id(UserId(2), RC).unwrap();
    let (now, timeout) = (net.now, Duration::from_secs(1));
    let too_early = net.cm(0).route_failed(now, id, timeout, errno::ENETUNREACH);
    assert!(matches!(
        too_early.unwrap_err().cause,
        Cause::InvalidState { .. }
    ));
    net.resolve_address(id);
    let in_no_time = net
        .cm(0)
        .route_failed(now, id, Duration::ZERO, errno::ENETUNREACH);
    assert_eq!(in_no_time.unwrap_err().errno(), errno::EINVAL);
    net.cm(0)
        .route_failed(now, id, timeout, errno::ENETUNREACH)
        .unwrap();
    net.drain();
    let error = net.expect(0, EventType::RouteError);
    assert_eq!(
        (error.id, error.status, error.param),
        (id, -errno::ENETUNREACH, EventParam::None)
    );
    net.cm(0).resolve_route(now, id, timeout).unwrap();
    net.drain();
    net.expect(0, EventType::RouteResolved);
}

#[test]
fn an_unanswered_address_query_times_out_and_its_late_answer_is_ignored() {
    let mut net = Net::new();
    let id = net.cm(0).create_id(UserId(2), RC).unwrap();
    let destination = SocketAddr::new(ip(1), PORT);
    let (now, second) = (net.now, Duration::from_secs(1));
    net.cm(0)
        .resolve_addr(now, id, None, destination, second)
        .unwrap();
    let Some(Query::Address { query, .. }) = net.cm(0).poll_query() else {
        panic!("no query")
    };
    net.cm(0)
        .handle_timeout(now + second - Duration::from_nanos(1));
    assert_eq!(net.cm(0).poll_event(), None);
    net.run_for(second);
    assert_eq!(
        net.expect(0, EventType::AddrError).status,
        -errno::ETIMEDOUT
    );
    // The id queries again. The answer to the first query must not serve for the second.
    let now = net.now;
    net.cm(0)
        .resolve_addr(now, id, None, destination, second)
        .unwrap();
    net.cm(0)
        .address_resolved(now, id, query, Err(errno::EHOSTUNREACH))
        .unwrap();
    net.drain();
    net.expect(0, EventType::AddrResolved);
    net.expect_silence(0);
}

#[test]
fn destinations_that_cannot_be_hosts_are_refused_at_once() {
    let mut net = Net::new();
    let now = net.now;
    for destination in ["0.0.0.0:1", "239.1.2.3:1", "[::]:1", "[ff02::1]:1"] {
        let id = net.cm(0).create_id(UserId(2), RC).unwrap();
        let destination: SocketAddr = destination.parse().unwrap();
        let second = Duration::from_secs(1);
        let error = net
            .cm(0)
            .resolve_addr(now, id, None, destination, second)
            .unwrap_err();
        assert!(
            matches!(error.cause, Cause::InvalidArgument { .. }),
            "{destination}: {error}"
        );
        net.assert_state(0, id, State::Idle);
    }
}

#[test]
fn each_port_space_serves_the_queue_pairs_that_linux_gives_it() {
    use PortSpace::*;
    use QpType::*;
    let mut net = Net::new();
    for (port_space, serves) in [
        (Tcp, &[Rc, Uc, XrcSend, XrcRecv][..]),
        (Udp, &[Ud]),
        (Ipoib, &[Ud]),
        (Ib, &[Rc, Uc, Ud, XrcSend, XrcRecv]),
    ] {
        for qp_type in [Rc, Uc, Ud, XrcSend, XrcRecv] {
            let service = Service {
                port_space,
                qp_type,
            };
            match net.cm(0).create_id(UserId(1), service) {
                Ok(id) => {
                    assert!(serves.contains(&qp_type), "{service:?}");
                    net.assert_state(0, id, State::Idle);
                }
                Err(error) => {
                    assert!(!serves.contains(&qp_type), "{service:?}");
                    assert!(matches!(error.cause, Cause::InvalidArgument { .. }));
                }
            }
        }
    }
}

#[test]
fn an_address_is_answered_while_messages_that_wait_to_be_sent_fill_the_queue() {
    let mut net = Net::with_config(Config {
        max_transmits_queued: 2,
        ..Config::default()
    });
    let connecting = net.resolved(10);
    let id = net.cm(0).create_id(UserId(11), RC).unwrap();
    let (now, destination) = (net.now, SocketAddr::new(ip(1), PORT));
    let cm = net.cm(0);
    cm.resolve_addr(now, id, None, destination, Duration::from_secs(1))
        .unwrap();
    cm.connect(now, connecting, &param(0x10, b""), Ece::default())
        .unwrap();
    let Some(Query::Address { query, .. }) = cm.poll_query() else {
        panic!("a query")
    };
    cm.address_resolved(now, id, query, Err(errno::EHOSTUNREACH))
        .unwrap();
    let event = cm.poll_event().expect("the answer");
    assert_eq!((event.id, event.event), (id, EventType::AddrError));
}
