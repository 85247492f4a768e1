//! The client's thread: start, end, and transports that cannot be interrupted.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use portolan_sa::engine::{Failure, Request};
use portolan_sa::transport::Mad;
use portolan_sa::{
    Client, ClientConfig, MadAddress, Port, Received, Transport, TransportError, Wake,
};
use portolan_wire::sa::{NodeRecord, PathRecord, Query};

use crate::administrator::{PATIENCE, Subnet, gid, port};
use crate::scripted::{ScriptedTransport, pair};

fn node() -> Request {
    Request::get(&Query::<NodeRecord>::new().lid(5)).expect("fits")
}

#[test]
fn the_device_is_opened_by_the_first_query_which_fails_if_that_fails() {
    let opened = Arc::new(AtomicUsize::new(0));
    let count = opened.clone();
    let client = Client::new(ClientConfig::default(), move || {
        count.fetch_add(1, Ordering::Relaxed);
        let call = "open (scripted)";
        Err(TransportError::Os { call, errno: 13 })
    });
    assert_eq!(opened.load(Ordering::Relaxed), 0);
    for times in 1..3 {
        let failure = client.wait(node(), PATIENCE).expect_err("not opened");
        assert_eq!(failure.errno(), 13, "{failure}");
        assert_eq!(opened.load(Ordering::Relaxed), times);
    }
}

#[test]
fn dropping_the_last_handle_ends_the_thread_and_its_queries() {
    let mut subnet = Subnet::new(|_| None);
    let (send, receive) = channel();
    let pending = subnet.client().ask(node(), PATIENCE, move |outcome| {
        send.send(outcome.map(|_| ())).expect("the caller waits");
    });
    // A query holds its own handle to the client, unless it is detached.
    pending.detach();
    let another = subnet.client().clone();
    subnet.client = None;
    assert!(receive.recv_timeout(Duration::from_millis(50)).is_err());
    let start = Instant::now();
    drop(another);
    assert_eq!(
        receive.try_recv(),
        Ok(Err(Failure::Closed)),
        "the drop waited for the thread"
    );
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn a_callback_may_query_and_hold_the_last_handle_but_not_wait() {
    let mut subnet = Subnet::new(|question| Some((0, question.data.clone())));
    let client = subnet.client.take().expect("there");
    let (send, receive) = channel();
    let inner = client.clone();
    let pending = client.ask(node(), PATIENCE, move |outcome| {
        outcome.expect("answered");
        let waited = inner.wait(node(), PATIENCE);
        assert!(matches!(waited, Err(Failure::Invalid { .. })));
        let again = send.clone();
        let pending = inner.ask(node(), PATIENCE, move |outcome| {
            again.send(outcome.is_ok()).expect("the caller waits");
        });
        pending.detach();
        send.send(true).expect("the caller waits");
        // This may drop the last handle.
        drop(inner);
    });
    assert_eq!(receive.recv_timeout(PATIENCE), Ok(true));
    assert_eq!(receive.recv_timeout(PATIENCE), Ok(true));
    drop((pending, client));
}

#[test]
fn a_callback_that_panics_affects_no_other_query() {
    let subnet = Subnet::new(|question| Some((0, question.data.clone())));
    let pending = subnet
        .client()
        .ask(node(), PATIENCE, |_| panic!("on purpose"));
    let path = Query::<PathRecord>::new().dgid(gid(2));
    subnet.client().path(&path, PATIENCE).expect("found");
    drop(pending);
    let asked = subnet
        .client()
        .wait_of_port(|_| panic!("on purpose"), PATIENCE);
    assert_eq!(asked.expect_err("no question").errno(), 22);
    subnet.client().path(&path, PATIENCE).expect("found");
}

#[test]
fn a_blocking_callback_delays_a_waiting_caller_only_until_its_deadline() {
    let subnet = Subnet::new(|question| Some((0, question.data.clone())));
    let (release, held) = channel::<()>();
    let (started, start) = channel();
    let pending = subnet.client().ask(node(), PATIENCE, move |_| {
        started.send(()).expect("the caller waits");
        let _ = held.recv_timeout(PATIENCE);
    });
    start.recv_timeout(PATIENCE).expect("called back");
    let waited = subnet.client().wait(node(), Duration::from_millis(50));
    assert_eq!(waited.expect_err("held up").errno(), 110);
    release.send(()).expect("still held");
    drop(pending);
}

/// A transport whose wait cannot be interrupted, like the fabric simulator's.
#[derive(Debug)]
struct Deaf(ScriptedTransport);

impl Transport for Deaf {
    fn port(&mut self) -> Result<Port, TransportError> {
        self.0.port()
    }

    fn send(&mut self, to: &MadAddress, mad: &Mad, within: Duration) -> Result<(), TransportError> {
        self.0.send(to, mad, within)
    }

    fn receive(&mut self, wait: Duration) -> Result<Option<Received>, TransportError> {
        assert!(
            wait < Duration::from_millis(50),
            "a long wait that nothing ends"
        );
        self.0.receive(wait)
    }

    fn wake(&self) -> Option<Arc<dyn Wake>> {
        None
    }
}

#[test]
fn a_transport_that_cannot_be_interrupted_serves_many_parallel_queries() {
    let (transport, script) = pair(port());
    let transport = Mutex::new(Some(transport));
    let client = Client::new(ClientConfig::default(), move || {
        let transport = transport
            .lock()
            .expect("whole")
            .take()
            .expect("opened once");
        Ok(Box::new(Deaf(transport)))
    });
    let says = |question: &crate::administrator::Question| match question.mask {
        1 => None,
        _ => Some((0, question.data.clone())),
    };
    let subnet = Subnet::with(client, Arc::new(Mutex::new(script)), Box::new(says));
    // A query without an answer must not delay the others.
    let pending = subnet.client().ask(node(), PATIENCE, |_| {});
    for number in 1..20 {
        let path = Query::<PathRecord>::new().dgid(gid(number));
        let start = Instant::now();
        subnet.client().path(&path, PATIENCE).expect("found");
        assert!(start.elapsed() < PATIENCE / 2);
    }
    drop(pending);
}

#[test]
fn a_client_that_is_dropped_at_once_does_not_hang() {
    for _ in 0..50 {
        let subnet = Subnet::new(|question| Some((0, question.data.clone())));
        let pending = subnet.client().ask(node(), PATIENCE, |_| {});
        drop(pending);
        let future = subnet.client().start(node(), PATIENCE);
        drop(subnet);
        drop(future);
    }
}
