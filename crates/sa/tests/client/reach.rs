//! Reachability of GIDs: the result and its errno arrive within the deadline.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use portolan_sa::engine::{Failure, Problem};
use portolan_sa::reach::{Unreachable, gid_reachable, gid_reachable_async};
use portolan_sa::{Client, ClientConfig, LinkLayer, PortState, TransportError};
use portolan_wire::Gid;
use portolan_wire::sa::PathRecord;

use crate::administrator::{PATIENCE, Subnet, gid, port, until};

const EIO: i32 = 5;
const ENXIO: i32 = 6;
const EINVAL: i32 = 22;
const SHORT: Duration = Duration::from_millis(300);

/// An administrator that has paths only to the GIDs that `known` accepts.
fn subnet(known: fn(&Gid) -> bool) -> Subnet {
    Subnet::new(move |question| {
        let path = PathRecord::parse(&question.data).expect("long enough");
        match known(&path.dgid) {
            true => Some((0, question.data.clone())),
            false => Some((0x0300, Vec::new())),
        }
    })
}

#[test]
fn a_gid_with_a_path_is_reachable_and_one_without_is_enxio() {
    let subnet = subnet(|dgid| *dgid == gid(2));
    let path = gid_reachable(subnet.client(), gid(2), PATIENCE).expect("reachable");
    assert_eq!((path.sgid, path.dgid), (gid(1), gid(2)));
    assert!(path.reversible && path.numb_path == 1);
    let mask = subnet.questions()[0].mask;
    assert_eq!(mask, 1 << 2 | 1 << 3 | 1 << 11 | 1 << 12);
    let error = gid_reachable(subnet.client(), gid(9), PATIENCE).expect_err("no path");
    assert!(matches!(error, Unreachable::NoPath { .. }), "{error}");
    assert_eq!(error.errno(), ENXIO);
}

#[test]
fn a_link_local_gid_is_reachable_in_a_subnet_with_another_prefix() {
    let mut of_subnet = gid(2);
    of_subnet.0[..8].copy_from_slice(&[0xFE, 0xC0, 0, 0, 0, 0, 0, 1]);
    let subnet = Subnet::new(move |question| {
        let asked = PathRecord::parse(&question.data).expect("long enough");
        let path = PathRecord {
            dgid: of_subnet,
            ..asked
        };
        let mut data = vec![0; PathRecord::LEN];
        path.emit(&mut data).expect("long enough");
        Some((0, data))
    });
    let path = gid_reachable(subnet.client(), gid(2), PATIENCE).expect("reachable");
    assert_eq!(path.dgid, of_subnet);
    let of_another_port = gid_reachable(subnet.client(), gid(3), PATIENCE);
    assert_eq!(of_another_port.expect_err("bad").errno(), EIO);
}

#[test]
fn zero_groups_and_ports_of_ethernet_are_einval_without_a_query() {
    let subnet = subnet(|_| true);
    let group = Gid::from_ipv6("ff12:401b:ffff::1".parse().expect("an address"));
    for bad in [Gid::UNSPECIFIED, group] {
        let error = gid_reachable(subnet.client(), bad, PATIENCE).expect_err("bad");
        assert_eq!(error.errno(), EINVAL, "{error}");
    }
    subnet.client().port(PATIENCE).expect("there");
    subnet
        .script()
        .change_port(|port| port.link_layer = LinkLayer::Ethernet);
    subnet.client().subnet_changed();
    let error = gid_reachable(subnet.client(), gid(2), PATIENCE).expect_err("bad");
    assert_eq!(error.errno(), EINVAL, "{error}");
    assert!(subnet.questions().is_empty());
}

#[test]
fn a_port_that_is_down_or_without_a_manager_is_eio_at_once() {
    let subnet = subnet(|_| true);
    subnet.client().port(PATIENCE).expect("there");
    type Change = fn(&mut portolan_sa::Port);
    let changes: [Change; 4] = [
        |port| port.state = PortState::Down,
        |port| port.state = PortState::Init,
        |port| port.sm_lid = 0,
        |port| port.gids.clear(),
    ];
    for change in changes {
        subnet.script().change_port(|now| {
            *now = port();
            change(now);
        });
        subnet.client().subnet_changed();
        let error = gid_reachable(subnet.client(), gid(2), PATIENCE).expect_err("nobody to ask");
        let failure = Failure::NoAdministrator;
        assert_eq!(
            error,
            Unreachable::NotKnown {
                dgid: gid(2),
                failure
            }
        );
        assert_eq!(error.errno(), EIO);
    }
    assert!(subnet.questions().is_empty());
}

#[test]
fn a_silent_busy_or_nonsensical_administrator_is_eio_by_the_deadline() {
    type Says = fn() -> Option<(u16, Vec<u8>)>;
    let silent: Says = || None;
    let busy: Says = || Some((1, Vec::new()));
    let another_path: Says = || {
        let mut data = vec![0; PathRecord::LEN];
        let path = PathRecord {
            dgid: gid(77),
            ..Default::default()
        };
        path.emit(&mut data).expect("fits");
        Some((0, data))
    };
    for says in [silent, busy, another_path] {
        let subnet = Subnet::new(move |_| says());
        let start = Instant::now();
        let error = gid_reachable(subnet.client(), gid(2), SHORT).expect_err("no answer");
        assert_eq!(error.errno(), EIO, "{error}");
        let took = start.elapsed();
        // While an answer may still come, the call ends no earlier than the deadline, and not long
        // after it on a slow machine.
        let may_come = says() != another_path();
        assert!(!may_come || took >= SHORT, "{took:?}");
        assert!(took < SHORT * 30, "{took:?}");
        if says() == busy() {
            let Unreachable::NotKnown {
                failure: Failure::TimedOut { last, .. },
                ..
            } = error
            else {
                panic!("{error}");
            };
            assert_eq!(last, Some(Problem::Busy));
        }
    }
}

#[test]
fn errors_of_the_system_become_the_errno_of_the_manual() {
    for (errno, expected) in [(12, 12), (105, 12), (4, 4), (13, EIO)] {
        let client = Client::new(ClientConfig::default(), move || {
            let call = "open (scripted)";
            Err(TransportError::Os { call, errno })
        });
        let error = gid_reachable(&client, gid(2), PATIENCE).expect_err("not opened");
        assert_eq!(error.errno(), expected, "{error}");
    }
}

#[test]
fn the_longest_possible_deadline_works() {
    let subnet = subnet(|_| true);
    gid_reachable(subnet.client(), gid(2), Duration::MAX).expect("reachable");
}

#[test]
fn a_fabric_that_partitions_in_mid_query_is_eio_by_the_deadline() {
    let subnet = Subnet::new(|_| None);
    let script = subnet.script.clone();
    let cutter = std::thread::spawn(move || {
        std::thread::sleep(SHORT / 3);
        let script = script.lock().expect("whole").clone();
        script.change_port(|port| port.state = PortState::Down);
        script.refuse(Some(100));
    });
    let error = gid_reachable(subnet.client(), gid(2), 3 * SHORT).expect_err("cut off");
    assert_eq!(error.errno(), EIO, "{error}");
    cutter.join().expect("whole");
}

#[test]
fn a_port_that_goes_down_ends_queries_at_once_and_works_again_when_it_is_up() {
    let subnet = Subnet::new(|question| match question.mask {
        1 => None,
        _ => Some((0, question.data.clone())),
    });
    subnet.client().port(PATIENCE).expect("there");
    let script = subnet.script();
    let (send, receive) = std::sync::mpsc::channel();
    let query = portolan_wire::sa::Query::<portolan_wire::sa::NodeRecord>::new().lid(5);
    let request = portolan_sa::engine::Request::get(&query).expect("fits");
    let pending = subnet.client().ask(request, PATIENCE, move |outcome| {
        send.send(outcome).expect("the caller waits");
    });
    until("the question", || subnet.questions().len() == 1);
    script.remove_port();
    let outcome = receive.recv_timeout(PATIENCE).expect("over");
    assert_eq!(outcome.expect_err("gone").errno(), 19);
    drop(pending);
    gid_reachable(subnet.client(), gid(2), PATIENCE).expect("reopened");
}

#[test]
fn many_gids_are_queried_in_parallel() {
    let subnet = subnet(|dgid| dgid.0[15] % 3 != 0);
    let client = subnet.client();
    let all: Vec<_> = (1..=250)
        .map(|number| async move {
            (
                number,
                gid_reachable_async(client, gid(number), PATIENCE).await,
            )
        })
        .collect();
    for (number, outcome) in block_on_all(all) {
        match number % 3 {
            0 => assert_eq!(outcome.expect_err("no path").errno(), ENXIO),
            _ => assert_eq!(outcome.expect("reachable").dgid, gid(number)),
        }
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Drives all futures concurrently.
fn block_on_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut all = pin!(
        futures
            .into_iter()
            .map(Box::pin)
            .map(Some)
            .collect::<Vec<Option<Pin<Box<F>>>>>()
    );
    let mut outputs: Vec<Option<F::Output>> = all.iter().map(|_| None).collect();
    let end = Instant::now() + PATIENCE;
    while outputs.iter().any(Option::is_none) {
        assert!(Instant::now() < end, "never");
        for (future, output) in all.iter_mut().zip(&mut outputs) {
            if let Some(running) = future
                && let Poll::Ready(ready) = running.as_mut().poll(&mut context)
            {
                (*future, *output) = (None, Some(ready));
            }
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
    outputs.into_iter().flatten().collect()
}
