//! Rejections that are lost: a copy of the request gets the same one again.

use std::net::SocketAddr;
use std::time::Duration;

use portolan_cm::{Config, time_of_exponent};
use portolan_provider::cm::EventType;
use portolan_wire::cm::{AttributeId, CmMessage, RejectReason, ReqRepr};
use portolan_wire::{PortSpace, Psn, Qpn, ServiceId};

use crate::datagrams::hand;
use crate::loss::{REQ_TIMEOUT, lose_first};
use crate::net::*;

#[test]
fn the_copy_of_a_rejected_request_gets_the_lost_rejection_again_and_is_not_reported() {
    for destroyed in [false, true] {
        let mut net = Net::new();
        net.listen(0);
        let (active, passive) = net.requested();
        net.disturb(lose_first(AttributeId::Rej));
        let now = net.now;
        net.cm(1)
            .reject(now, passive, RejectReason::CONSUMER_DEFINED, b"no")
            .unwrap();
        if destroyed {
            net.cm(1).destroy_id(now, passive).unwrap();
        }
        net.run_for(REQ_TIMEOUT);
        net.expect_silence(1);
        let rejected = net.expect(0, EventType::Rejected);
        assert_eq!(rejected.id, active);
        assert!(conn(&rejected).private_data.starts_with(b"no"));
        assert_eq!(net.cm(1).counters().duplicates[AttributeId::Req], 1);
        assert_eq!(net.cm(1).table_sizes().rejections, 1);
    }
}

#[test]
fn a_request_that_is_destroyed_unanswered_with_its_id_or_its_listener_is_rejected_again_as_well() {
    for with_listener in [false, true] {
        let mut net = Net::new();
        let listener = net.listen(0);
        let (_, passive) = net.requested();
        net.disturb(lose_first(AttributeId::Rej));
        let now = net.now;
        let destroyed = if with_listener { listener } else { passive };
        net.cm(1).destroy_id(now, destroyed).unwrap();
        assert_eq!(net.cm(1).table_sizes().rejections, 1);
        if with_listener {
            net.listen(0);
        }
        net.run_for(REQ_TIMEOUT);
        net.expect_silence(1);
        let rejected = net.expect(0, EventType::Rejected);
        let reason = RejectReason::CONSUMER_DEFINED;
        assert_eq!(rejected.status, i32::from(reason.0));
    }
}

#[test]
fn a_rejection_is_kept_as_long_as_the_request_says_that_it_may_be_repeated() {
    for (retries, put_off) in [(15, false), (3, false), (3, true)] {
        let mut net = Net::new();
        net.listen(0);
        let req = ReqRepr {
            max_cm_retries: retries,
            ..sent_request(&mut net)
        };
        let tid = net.log[0].tid + 1;
        hand(&mut net, 1, &path(1), tid, req);
        let passive = net.expect(1, EventType::ConnectRequest).id;
        let mut interval = REQ_TIMEOUT;
        if put_off {
            hand(&mut net, 1, &path(1), tid, req);
            interval += time_of_exponent(Config::default().mra_timeout_exp);
        }
        let now = net.now;
        let reason = RejectReason::CONSUMER_DEFINED;
        net.cm(1).reject(now, passive, reason, b"no").unwrap();
        let kept = interval * (u32::from(retries) + 1);
        net.run_until(now + kept - Duration::from_millis(1));
        hand(&mut net, 1, &path(1), tid, req);
        net.expect_silence(1);
        net.run_until(now + kept);
        hand(&mut net, 1, &path(1), tid, req);
        net.expect(1, EventType::ConnectRequest);
    }
}

#[test]
fn a_request_that_differs_from_the_rejected_one_is_reported() {
    type Change = fn(&mut u64, &mut ReqRepr);
    let changes: [(Change, usize); 5] = [
        (|_, _| {}, 0),
        (|tid, _| *tid += 1, 1),
        (
            |_, req| req.local_qpn = Qpn::new(req.local_qpn.value() + 1),
            1,
        ),
        (
            |_, req| req.starting_psn = Psn::new(req.starting_psn.value() + 1),
            1,
        ),
        (
            |_, req| req.service_id = ServiceId::from_port(PortSpace::Tcp, PORT + 1),
            1,
        ),
    ];
    for (change, reported) in changes {
        let mut net = Net::new();
        net.listen(0);
        net.listen_on(SocketAddr::new(ip(1), PORT + 1), 0);
        let mut req = sent_request(&mut net);
        let mut tid = net.log[0].tid;
        change(&mut tid, &mut req);
        hand(&mut net, 1, &path(1), tid, req);
        assert_eq!(net.hosts[1].events.len(), reported);
    }
}

/// The request of a client, which is rejected.
fn sent_request(net: &mut Net) -> ReqRepr {
    let (_, passive) = net.requested();
    let now = net.now;
    let reason = RejectReason::CONSUMER_DEFINED;
    net.cm(1).reject(now, passive, reason, b"").unwrap();
    net.exchange();
    net.expect(0, EventType::Rejected);
    match net.log[0].message {
        CmMessage::Req(req) => req,
        _ => panic!("the first message must be a REQ"),
    }
}
