//! Questions to datagram services and their answers: lost, repeated, late and from strangers.

use std::time::Duration;

use portolan_cm::{DropReason, MadPath, State};
use portolan_provider::cm::{EventParam, EventType};
use portolan_provider::error::errno::ETIMEDOUT;
use portolan_wire::cm::{
    AttributeId, CmMessage, PrivateData, RejectReason, SidrRepRepr, SidrReqRepr, SidrStatus,
};
use portolan_wire::{PortSpace, QKey, Qpn};

use crate::datagrams::{answers, hand, question};
use crate::net::*;

const TIMEOUT: Duration = Duration::from_millis(4096);
const SENDS: usize = 16;

/// Repeats host 0's question, as if the network had copied it.
fn repeat_question(net: &mut Net) {
    let (tid, req) = question(net);
    hand(net, 1, &path(1), tid, req);
}

#[test]
fn an_absent_peer_is_asked_sixteen_times_and_is_unreachable_at_the_same_time_as_on_linux() {
    let mut net = Net::datagrams();
    net.disturb(|_| Fate::Drop);
    let start = net.now;
    let active = net.connecting(10, 0);
    let end = start + TIMEOUT * SENDS as u32;
    net.run_until(end - Duration::from_millis(1));
    net.expect_silence(0);
    assert_eq!(net.sent(0, AttributeId::SidrReq), SENDS);
    net.run_until(end);
    let unreachable = net.expect(0, EventType::Unreachable);
    assert_eq!((unreachable.id, unreachable.status), (active, -ETIMEDOUT));
    assert_eq!(unreachable.param, EventParam::None);
    net.assert_state(0, active, State::Closed);
    assert_eq!(net.log.len(), SENDS, "and nothing else");
    assert_eq!(net.cm(0).poll_timeout(), None);
}

#[test]
fn either_message_may_be_lost_or_duplicated_and_each_event_comes_once() {
    for kind in [AttributeId::SidrReq, AttributeId::SidrRep] {
        for fate in [|| Fate::Drop, || Fate::Duplicate] {
            let mut net = Net::datagrams();
            net.listen(0);
            let mut first = true;
            net.disturb(move |passing| {
                let disturbed = passing.kind() == kind && std::mem::take(&mut first);
                if disturbed { fate() } else { Fate::Deliver }
            });
            net.connecting(10, 0);
            let passive = net.wait_for(1, EventType::ConnectRequest).id;
            net.accept(passive);
            net.wait_for(0, EventType::Established);
            net.run_for(Duration::from_secs(100));
            net.expect_silence(0);
            net.expect_silence(1);
        }
    }
}

#[test]
fn a_copy_of_a_question_waits_for_the_owner_and_then_gets_the_same_answer() {
    let mut net = Net::datagrams();
    net.listen(0);
    let (_, passive) = net.requested();
    repeat_question(&mut net);
    net.expect_silence(1);
    assert!(answers(&net).is_empty());
    net.accept(passive);
    net.exchange();
    repeat_question(&mut net);
    net.expect_silence(1);
    let given = answers(&net);
    assert_eq!(given.len(), 2);
    assert_eq!(given[0], given[1]);
    assert_eq!(net.cm(1).counters().duplicates[AttributeId::SidrReq], 2);
}

#[test]
fn an_answer_outlives_its_id_as_long_as_the_peer_may_ask() {
    for rejected in [false, true] {
        let mut net = Net::datagrams();
        net.listen(0);
        let (_, passive) = net.requested();
        let now = net.now;
        if rejected {
            net.cm(1)
                .reject(now, passive, RejectReason::CONSUMER_DEFINED, b"no")
                .unwrap();
        } else {
            net.accept(passive);
        }
        net.cm(1).destroy_id(now, passive).unwrap();
        assert_eq!(net.cm(1).table_sizes().answers, 1);
        net.exchange();
        net.run_for(TIMEOUT * (SENDS as u32 - 1));
        repeat_question(&mut net);
        net.expect_silence(1);
        let given = answers(&net);
        assert_eq!(given.len(), 2);
        assert_eq!(given[0], given[1]);
        net.run_for(TIMEOUT);
        repeat_question(&mut net);
        net.expect(1, EventType::ConnectRequest);
    }
}

#[test]
fn the_question_of_a_restarted_peer_with_the_same_number_is_reported_again() {
    let mut net = Net::datagrams();
    net.listen(0);
    net.served();
    let (tid, req) = question(&net);
    hand(&mut net, 1, &path(1), tid + 1, req);
    net.expect(1, EventType::ConnectRequest);
    // The same for another host that draws the same number.
    let stranger = [192, 168, 7, 77].into();
    let mut data = *req.private_data.as_array();
    data[19] = 77;
    let private_data = PrivateData::new(data);
    let path = MadPath {
        remote: stranger,
        ..path(1)
    };
    let mut mad = [0; 256];
    CmMessage::from(SidrReqRepr {
        private_data,
        ..req
    })
    .emit(tid, &mut mad)
    .unwrap();
    let now = net.now;
    net.cm(1).handle_mad(now, &path, &mad);
    net.drain();
    net.expect(1, EventType::ConnectRequest);
}

#[test]
fn only_the_first_answer_from_the_asked_host_counts() {
    let mut net = Net::datagrams();
    let active = net.connecting(10, 0);
    net.disturb(|_| Fate::Drop);
    net.drain();
    let (tid, req) = question(&net);
    let good = SidrRepRepr {
        request_id: req.request_id,
        status: SidrStatus::SUCCESS,
        qpn: Qpn::new(0x20),
        qkey: QKey::RDMA_CM,
        service_id: req.service_id,
        ..SidrRepRepr::default()
    };
    let stranger = MadPath {
        remote: [192, 168, 7, 9].into(),
        ..path(0)
    };
    let other_service = portolan_wire::ServiceId::from_port(PortSpace::Udp, PORT + 1);
    for (path, rep, reason) in [
        (stranger, good, DropReason::UnknownId),
        (
            path(0),
            SidrRepRepr {
                request_id: good.request_id ^ 1,
                ..good
            },
            DropReason::UnknownId,
        ),
        (
            path(0),
            SidrRepRepr {
                service_id: other_service,
                ..good
            },
            DropReason::Mismatch,
        ),
        (
            path(0),
            SidrRepRepr {
                qpn: Qpn::GSI,
                ..good
            },
            DropReason::Malformed,
        ),
    ] {
        let before = net.cm(0).counters().dropped(reason);
        hand(&mut net, 0, &path, tid, rep);
        assert_eq!(
            net.cm(0).counters().dropped(reason),
            before + 1,
            "{reason:?}"
        );
        net.expect_silence(0);
        net.assert_state(0, active, State::SidrReqSent);
    }
    hand(&mut net, 0, &path(0), tid, good);
    net.expect(0, EventType::Established);
    hand(
        &mut net,
        0,
        &path(0),
        tid,
        SidrRepRepr {
            status: SidrStatus::REJECT,
            ..good
        },
    );
    net.expect_silence(0);
    net.assert_state(0, active, State::SidrResolved);
}

#[test]
fn a_full_backlog_drops_the_question_and_its_repetition_gets_in() {
    let mut net = Net::datagrams();
    net.listen(1);
    net.connecting(10, 0);
    net.connecting(11, 0);
    net.exchange();
    let first = net.expect(1, EventType::ConnectRequest).id;
    net.expect_silence(1);
    assert_eq!(net.cm(1).counters().dropped(DropReason::BacklogFull), 1);
    net.cm(1).request_taken(first);
    net.wait_for(1, EventType::ConnectRequest);
}
