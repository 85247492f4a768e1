//! Services that the client keeps registered and withdraws.

use std::sync::mpsc::channel;
use std::time::Duration;

use portolan_sa::Port;
use portolan_sa::engine::Failure;
use portolan_wire::mad::Method;
use portolan_wire::sa::ServiceRecord;
use portolan_wire::{PKey, ServiceId};

use crate::administrator::{PATIENCE, Subnet, gid, until};

/// Maximum number of queries queued for the client's thread.
const QUESTIONS_MAX: usize = 65_536;

fn service(lease_s: u32) -> ServiceRecord {
    ServiceRecord {
        service_id: ServiceId(0x1234),
        pkey: PKey::DEFAULT,
        lease_s,
        name: ServiceRecord::name_field("harbour").expect("fits"),
        data8: [5; 16],
        ..Default::default()
    }
}

#[test]
fn a_registration_whose_answers_are_lost_fails_and_is_withdrawn() {
    let subnet = Subnet::new(|question| match question.method {
        // The administrator registers the service but its answer is lost.
        Method::SET => None,
        _ => Some((0, question.data.clone())),
    });
    let within = Duration::from_secs(2);
    let error = subnet.client().register(service(60), within);
    assert!(matches!(error, Err(Failure::TimedOut { .. })), "{error:?}");
    until("a withdrawal", || {
        subnet.methods().contains_key(&Method::DELETE)
    });
    let questions = subnet.questions();
    let (first, last) = (&questions[0], &questions[questions.len() - 1]);
    let ids = [first, last].map(|question| {
        let record = ServiceRecord::parse(&question.data).expect("long enough");
        (record.service_id, record.gid, record.name)
    });
    assert_eq!(ids[0], ids[1]);
}

#[test]
fn a_service_is_registered_renewed_before_its_lease_ends_and_withdrawn_when_it_is_dropped() {
    let mut subnet = Subnet::new(|question| Some((0, question.data.clone())));
    let registration = subnet
        .client()
        .register(service(1), PATIENCE)
        .expect("taken");
    assert_eq!(registration.record().gid, gid(1), "the port's own");
    until("two renewals", || registration.state().renewals >= 2);
    let questions = subnet.questions();
    assert!(
        questions
            .iter()
            .all(|question| question.method == Method::SET)
    );
    assert!(
        questions
            .windows(2)
            .all(|pair| pair[0].data == pair[1].data)
    );
    let registered = ServiceRecord::parse(&questions[0].data).expect("long enough");
    assert_eq!(registered, *registration.record());
    // Dropping the client together with its registration still withdraws the service.
    subnet.client = None;
    drop(registration);
    until("a withdrawal", || {
        subnet.methods().get(&Method::DELETE) == Some(&1)
    });
    let withdrawn = subnet.questions().pop().expect("the last");
    assert_eq!(withdrawn.method, Method::DELETE);
    let record = ServiceRecord::parse(&withdrawn.data).expect("long enough");
    assert_eq!(
        (record.service_id, record.gid, record.name),
        (registered.service_id, gid(1), registered.name)
    );
}

#[test]
fn a_withdrawn_service_is_not_renewed_while_the_client_continues() {
    let subnet = Subnet::new(|question| Some((0, question.data.clone())));
    let registration = subnet
        .client()
        .register(service(1), PATIENCE)
        .expect("taken");
    until("a renewal", || registration.state().renewals >= 1);
    drop(registration);
    until("a withdrawal", || {
        subnet.methods().get(&Method::DELETE) == Some(&1)
    });
    // Two renewals would fall into this time; the thread that would send them is running.
    std::thread::sleep(Duration::from_millis(700));
    subnet.client().port(PATIENCE).expect("the thread runs");
    assert_eq!(
        subnet.questions().last().map(|last| last.method),
        Some(Method::DELETE)
    );
}

#[test]
fn withdrawals_and_changes_of_the_subnet_are_not_lost_under_any_load() {
    let subnet = Subnet::new(|question| Some((0, question.data.clone())));
    let client = subnet.client();
    let register = |name: &str| {
        let name = ServiceRecord::name_field(name).expect("fits");
        let record = ServiceRecord {
            name,
            ..service(u32::MAX)
        };
        client.register(record, PATIENCE).expect("taken")
    };
    let (goes, stays) = (register("goes"), register("stays"));
    // A callback blocks the thread while other callers query.
    let (go_on, gate) = channel();
    let (inside, held) = channel();
    let nothing = |_: &Port| Err(Failure::Closed);
    let keeper = client.ask_of_port(nothing, PATIENCE, move |_| {
        inside.send(()).expect("the caller waits");
        let _ = gate.recv_timeout(PATIENCE);
    });
    held.recv_timeout(PATIENCE).expect("in the callback");
    let (refused, refusals) = channel();
    let ask = || {
        let refused = refused.clone();
        client.ask_of_port(nothing, PATIENCE, move |outcome| {
            if let Err(failure @ Failure::LimitReached { .. }) = outcome {
                refused.send(failure).expect("the caller waits");
            }
        })
    };
    let mut pending: Vec<_> = (0..QUESTIONS_MAX).map(|_| ask()).collect();
    assert!(refusals.try_recv().is_err(), "room for all");
    ask().detach();
    assert_eq!(refusals.try_recv().expect("no room").errno(), 12);
    // Cancelling one query frees its place in the queue.
    drop(pending.pop());
    pending.push(ask());
    assert!(refusals.try_recv().is_err(), "room for one");
    drop(goes);
    client.subnet_changed();
    go_on.send(()).expect("it waits");
    until("the withdrawal", || {
        subnet.methods().get(&Method::DELETE) == Some(&1)
    });
    until("the renewal", || stays.state().renewals == 1);
    drop((pending, keeper));
}

#[test]
fn waiting_for_a_withdrawal_returns_after_its_end() {
    let subnet = Subnet::new(|question| Some((0, question.data.clone())));
    let registration = subnet
        .client()
        .register(service(600), PATIENCE)
        .expect("taken");
    assert_eq!(registration.withdraw(PATIENCE), Ok(()));
    assert_eq!(
        subnet.methods(),
        [(Method::SET, 1), (Method::DELETE, 1)].into()
    );
}

#[test]
fn the_service_is_registered_with_a_new_administrator_at_once() {
    let subnet = Subnet::new(|question| Some((0, question.data.clone())));
    let registration = subnet
        .client()
        .register(service(u32::MAX), PATIENCE)
        .expect("taken");
    assert_eq!(subnet.methods()[&Method::SET], 1);
    subnet.script().change_port(|port| port.lid = 33);
    until("a renewal", || registration.state().renewals == 1);
    subnet.client().subnet_changed();
    until("another renewal", || registration.state().renewals == 2);
}

#[test]
fn a_failed_renewal_is_reported_and_retried() {
    let mut sets = 0;
    let subnet = Subnet::new(move |question| {
        sets += usize::from(question.method == Method::SET);
        match sets {
            2 => Some((0x0100, Vec::new())),
            _ => Some((0, question.data.clone())),
        }
    });
    let registration = subnet
        .client()
        .register(service(1), PATIENCE)
        .expect("taken");
    until("a failure", || registration.state().failure.is_some());
    until("a renewal", || registration.state().renewals >= 1);
    assert_eq!(registration.state().failure, None);
}

#[test]
fn a_service_that_is_refused_or_has_no_lease_is_not_registered() {
    let subnet = Subnet::new(|_| Some((0x0700, Vec::new())));
    let refused = subnet.client().register(service(60), PATIENCE);
    assert_eq!(refused.expect_err("denied").errno(), 13);
    let refused = subnet.client().register(service(0), PATIENCE);
    assert_eq!(refused.expect_err("no lease").errno(), 22);
    assert_eq!(subnet.questions().len(), 1);
}
