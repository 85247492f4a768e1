//! Random bytes and random messages: nothing panics, and nothing grows beyond its bound.

use std::net::SocketAddr;
use std::time::Duration;

use portolan_cm::{Cm, Config, DropReason, Query, ResolvedAddress, State};
use portolan_provider::cm::{Ece, IdNumber, Service, UserId};
use portolan_wire::Gid;
use portolan_wire::cm::RejectReason;
use proptest::prelude::*;

use crate::net::*;

/// Small bounds that sequences of a few hundred steps reach.
pub(crate) fn tight() -> Config {
    Config {
        max_ids: 12,
        max_backlog: 3,
        max_events_queued: 6,
        max_transmits_queued: 8,
        max_timewait_remembered: 2,
        max_memberships: 4,
        ..Config::default()
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic_and_never_make_an_id(
        datagrams in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..40),
    ) {
        let mut cm = Cm::new(tight(), [1; 32]);
        let listener = listening(&mut cm);
        for datagram in &datagrams {
            cm.handle_mad(Duration::from_secs(1), &path(0), datagram);
        }
        prop_assert_eq!(cm.table_sizes().ids, 1);
        prop_assert_eq!(cm.state(listener).unwrap(), State::Listen);
        let dropped: u64 = DropReason::ALL.map(|reason| cm.counters().dropped(reason)).iter().sum();
        prop_assert_eq!(dropped, datagrams.len() as u64);
    }

    #[test]
    fn random_bodies_under_a_right_header_never_panic_and_stay_within_the_bounds(
        bodies in prop::collection::vec((0x0Fu8..0x1C, prop::collection::vec(any::<u8>(), 232)), 1..60),
        small_ids: bool,
    ) {
        let mut cm = Cm::new(tight(), [1; 32]);
        listening(&mut cm);
        listening_with(&mut cm, UDP, PORT);
        let mut now = Duration::from_secs(1);
        for (attribute, body) in &bodies {
            let mut mad = [0u8; 256];
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[17] = *attribute;
            mad[24..].copy_from_slice(body);
            if small_ids {
                // Few communication ids, so that messages refer to each other.
                mad[24..27].fill(0);
                mad[28..31].fill(0);
            }
            cm.handle_mad(now, &path(0), &mad);
            now += Duration::from_millis(700);
            cm.handle_timeout(now);
        }
        prop_assert!(cm.table_sizes().ids <= 12);
    }

    #[test]
    fn requests_with_random_fields_stay_within_the_bounds(
        requests in prop::collection::vec((0u32..6, 2u32..6, 0u8..32, 0u8..16), 1..80),
    ) {
        let mut net = Net::new();
        net.disturb(|_| Fate::Drop);
        net.connecting(10, 0x10);
        net.drain();
        let portolan_wire::cm::CmMessage::Req(req) = net.log[0].message else { panic!("a REQ") };
        let mut cm = Cm::new(tight(), [1; 32]);
        listening_on(&mut cm, PORT);
        let mut now = Duration::from_secs(1);
        let mut requested = 0;
        for (comm_id, qpn, exponent, retries) in requests {
            let req = portolan_wire::cm::ReqRepr {
                local_comm_id: comm_id,
                local_qpn: portolan_wire::Qpn::new(qpn),
                local_cm_response_timeout: exponent,
                max_cm_retries: retries,
                ..req
            };
            let mut mad = [0; 256];
            portolan_wire::cm::CmMessage::from(req).emit(9, &mut mad).unwrap();
            cm.handle_mad(now, &path(1), &mad);
            while cm.poll_transmit().is_some() {}
            while let Some(event) = cm.poll_event() {
                requested += 1;
                let uid = UserId(u64::from(event.id.0));
                let _ = cm.accept(now, event.id, uid, &param(qpn, b""), Ece::default());
            }
            now += Duration::from_millis(10);
            prop_assert!(cm.table_sizes().ids <= 12);
        }
        prop_assert!(requested > 0, "the first request at least is a good one");
    }
}

proptest! {
    #[test]
    fn questions_with_random_fields_stay_within_the_bounds(
        questions in prop::collection::vec((0u32..6, 0u64..3, any::<bool>(), 0u8..4), 1..80),
    ) {
        let mut net = Net::datagrams();
        net.disturb(|_| Fate::Drop);
        net.connecting(10, 0x10);
        net.drain();
        let portolan_wire::cm::CmMessage::SidrReq(req) = net.log[0].message else { panic!("a SIDR REQ") };
        let mut cm = Cm::new(tight(), [1; 32]);
        listening_with(&mut cm, UDP, PORT);
        let mut now = Duration::from_secs(1);
        let (mut requested, mut answered) = (0, 0);
        for (request_id, tid, take, what) in questions {
            let req = portolan_wire::cm::SidrReqRepr { request_id, ..req };
            let mut mad = [0; 256];
            portolan_wire::cm::CmMessage::from(req).emit(tid, &mut mad).unwrap();
            cm.handle_mad(now, &path(1), &mad);
            while take && let Some(event) = cm.poll_event() {
                requested += 1;
                let uid = UserId(u64::from(event.id.0));
                match what {
                    0 => cm.accept(now, event.id, uid, &param(2, b""), Ece::default()).unwrap(),
                    1 => cm.reject(now, event.id, RejectReason::CONSUMER_DEFINED, b"no").unwrap(),
                    2 => cm.destroy_id(now, event.id).unwrap(),
                    _ => {
                        cm.accept(now, event.id, uid, &param(2, b""), Ece::default()).unwrap();
                        cm.destroy_id(now, event.id).unwrap();
                    }
                }
                answered += 1;
            }
            while cm.poll_transmit().is_some() {}
            now += Duration::from_millis(10);
            cm.handle_timeout(now);
            let sizes = cm.table_sizes();
            prop_assert!(sizes.ids <= 12 && sizes.answers <= 2, "{sizes:?}");
        }
        prop_assert_eq!(requested, answered);
        prop_assert!(cm.table_sizes().ids > 1 || requested > 0, "the first is a good one");
    }
}

fn listening(cm: &mut Cm) -> IdNumber {
    listening_on(cm, PORT)
}

fn listening_on(cm: &mut Cm, port: u16) -> IdNumber {
    listening_with(cm, RC, port)
}

fn listening_with(cm: &mut Cm, service: Service, port: u16) -> IdNumber {
    let now = Duration::from_secs(1);
    let id = cm.create_id(LISTENER_UID, service).unwrap();
    cm.bind(now, id, SocketAddr::new([0, 0, 0, 0].into(), port), None)
        .unwrap();
    cm.listen(now, id, 0).unwrap();
    id
}

#[test]
fn different_seeds_draw_different_numbers() {
    let numbers = |seed: u8| {
        let mut cm = Cm::new(
            Config {
                comm_id_block: 0xAB,
                ..Config::default()
            },
            [seed; 32],
        );
        let now = Duration::from_secs(1);
        let id = cm.create_id(UserId(1), RC).unwrap();
        let destination = SocketAddr::new(ip(1), PORT);
        cm.resolve_addr(now, id, None, destination, Duration::from_secs(1))
            .unwrap();
        let Some(Query::Address { query, .. }) = cm.poll_query() else {
            panic!("no query")
        };
        let source = SocketAddr::new(ip(0), 40_000);
        let dgid = Gid::from(ip(1));
        let answer = ResolvedAddress {
            source,
            destination,
            device: device(0),
            dgid,
            hop_limit: 64,
            neighbour: None,
        };
        cm.address_resolved(now, id, query, Ok(answer)).unwrap();
        cm.resolve_route(now, id, Duration::from_secs(1)).unwrap();
        cm.connect(now, id, &param(0x10, b""), Ece::default())
            .unwrap();
        let mad = cm.poll_transmit().unwrap().mad;
        let (header, message) = portolan_wire::cm::CmMessage::parse(&mad).unwrap();
        let portolan_wire::cm::CmMessage::Req(req) = message else {
            panic!("a REQ")
        };
        assert_eq!(req.local_comm_id >> 24, 0xAB, "the block is the high byte");
        (header.tid, req.local_comm_id, req.starting_psn)
    };
    let (one, two) = (numbers(1), numbers(2));
    assert!(
        one.0 != two.0 && one.1 != two.1 && one.2 != two.2,
        "{one:?} {two:?}"
    );
    assert_eq!(one, numbers(1));
}
