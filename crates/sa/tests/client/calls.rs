//! The three kinds of calls: blocking, callbacks and futures.

use std::sync::mpsc::channel;

use portolan_sa::engine::{Failure, Request};
use portolan_wire::mad::Method;
use portolan_wire::sa::{JoinState, McMemberRecord, NodeRecord, PathRecord, Query, ServiceRecord};
use portolan_wire::{PKey, ServiceId};

use crate::administrator::{PATIENCE, Subnet, gid};

#[test]
fn each_query_has_its_method_and_is_answered_with_its_record() {
    let subnet = Subnet::new(|question| Some((0, question.data.clone())));
    let client = subnet.client();
    let path = Query::<PathRecord>::new().dgid(gid(2)).numb_path(1);
    assert_eq!(client.path(&path, PATIENCE).as_ref(), Ok(path.record()));
    let name = ServiceRecord::name_field("harbour").expect("fits");
    let service = Query::<ServiceRecord>::new()
        .service_id(ServiceId(9))
        .pkey(PKey::DEFAULT)
        .name(name);
    assert_eq!(
        client.service(&service, PATIENCE).as_ref(),
        Ok(service.record())
    );
    assert_eq!(
        client.set_service(&service, PATIENCE).as_ref(),
        Ok(service.record())
    );
    assert_eq!(client.delete_service(&service, PATIENCE), Ok(()));
    let group = Query::<McMemberRecord>::new()
        .mgid(gid(3))
        .join_state(JoinState::FULL_MEMBER);
    assert_eq!(client.group(&group, PATIENCE).as_ref(), Ok(group.record()));
    assert_eq!(client.join(&group, PATIENCE).as_ref(), Ok(group.record()));
    assert_eq!(client.leave(&group, PATIENCE), Ok(()));
    let node = Query::<NodeRecord>::new().lid(5);
    assert_eq!(client.node(&node, PATIENCE).as_ref(), Ok(node.record()));
    let methods: Vec<_> = subnet
        .questions()
        .iter()
        .map(|question| question.method)
        .collect();
    let (get, set, delete) = (Method::GET, Method::SET, Method::DELETE);
    assert_eq!(methods, [get, get, set, delete, get, set, delete, get]);
    assert_eq!(subnet.questions()[0].mask, 1 << 2 | 1 << 12);
}

#[test]
fn a_value_that_its_field_does_not_hold_is_refused_before_anything_is_sent() {
    let subnet = Subnet::new(|question| Some((0, question.data.clone())));
    let wide = Query::<PathRecord>::new().sl(16);
    let refused = subnet.client().path(&wide, PATIENCE);
    assert!(matches!(refused, Err(Failure::Invalid { .. })));
    assert_eq!(refused.expect_err("wide").errno(), 22);
    assert!(subnet.questions().is_empty());
}

#[test]
fn a_known_path_is_not_queried_again_until_the_subnet_changes() {
    let subnet = Subnet::new(|question| Some((0, question.data.clone())));
    let client = subnet.client();
    let path = Query::<PathRecord>::new().dgid(gid(2));
    for _ in 0..5 {
        client.path(&path, PATIENCE).expect("found");
    }
    assert_eq!(subnet.questions().len(), 1);
    client.subnet_changed();
    client.path(&path, PATIENCE).expect("found");
    assert_eq!(subnet.questions().len(), 2);
    // The port gets a new LID without an event; the client notices at its next periodic read.
    subnet.script().change_port(|port| port.lid = 44);
    std::thread::sleep(std::time::Duration::from_millis(600));
    client.path(&path, PATIENCE).expect("found");
    assert_eq!(subnet.questions().len(), 3);
    assert_eq!(client.port(PATIENCE).expect("there").lid, 44);
}

#[test]
fn each_of_a_thousand_parallel_queries_gets_its_own_answer() {
    let subnet = Subnet::new(|question| Some((0, question.data.clone())));
    let (send, receive) = channel();
    let mut pending = Vec::new();
    for number in 0..1000u16 {
        let request = Request::get(&Query::<PathRecord>::new().dlid(number)).expect("fits");
        let send = send.clone();
        pending.push(subnet.client().ask(request, PATIENCE, move |outcome| {
            send.send((number, outcome)).expect("the caller waits");
        }));
    }
    for _ in 0..1000 {
        let (number, outcome) = receive.recv_timeout(PATIENCE).expect("answered");
        let records = outcome.expect("found").records::<PathRecord>();
        assert_eq!(records[0].dlid, number);
    }
    drop(pending);
    assert_eq!(subnet.questions().len(), 1000);
}

#[test]
fn a_dropped_query_is_never_answered_and_others_continue() {
    let subnet = Subnet::new(|question| match question.mask {
        1 => None,
        _ => Some((0, question.data.clone())),
    });
    let (send, receive) = channel();
    let silent = Request::get(&Query::<NodeRecord>::new().lid(5)).expect("fits");
    let pending = subnet.client().ask(silent.clone(), PATIENCE, move |_| {
        send.send(()).expect("the caller waits");
    });
    let future = subnet.client().start(silent, PATIENCE);
    drop((pending, future));
    let path = Query::<PathRecord>::new().dgid(gid(2));
    subnet.client().path(&path, PATIENCE).expect("found");
    let dropped = portolan_sa::engine::Counters {
        unknown_transaction: 1,
        ..Default::default()
    };
    let mut stray = [0; 256];
    stray[..4].copy_from_slice(&[1, 3, 2, 0x81]);
    subnet.script().say(crate::administrator::SA, &stray);
    crate::administrator::until("a stray", || subnet.client().counters() == dropped);
    // The callback was dropped, and with it its end of the channel.
    assert!(receive.recv_timeout(PATIENCE).is_err());
}
