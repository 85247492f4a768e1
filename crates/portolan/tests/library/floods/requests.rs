//! Floods of connection requests to one listener, which seem to come from many peers.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use portolan::Listener;
use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::EventType;
use portolan::wire::cm::CmMessage;

use super::forged::{Source, request};
use super::*;
use crate::low::next;
use crate::survey::look;

/// Number of source sockets, used in turn.
const SOURCES: u64 = 64;
/// Private data of an honest client.
const FRIEND: &[u8] = b"friend";
const BACKLOG: usize = 16;
/// The backlog of [`Listener`].
const LISTENER_BACKLOG: usize = 128;
/// The counter of requests that arrived while the backlog was full.
const DROPPED: &str = "cm_dropped_backlog_full";
/// Requests of a flood sent at once, and the pause after them: 10,000 per second, ten times a storm's rate. A
/// listener that takes requests then sometimes falls behind. With a faster flood the senders would use up the
/// machine, and the listener would show nothing.
const BURST: u64 = 200;
const PAUSE: Duration = Duration::from_millis(20);

/// Sends the requests of a flood, each with a new communication id, queue pair and device.
fn requester(port: u16, listener: SocketAddr) -> impl Fn(u64) + Sync {
    let ip = |number: u64| Ipv4Addr::new(127, 0, 0, 2 + (number % 8) as u8);
    let sources: Vec<_> = (0..SOURCES).map(|number| Source::new(ip(number))).collect();
    move |number| {
        let source = &sources[(number % SOURCES) as usize];
        let request = request(source.ip(), listener, number);
        source.send_message(target(port), number, &CmMessage::Req(request));
    }
}

/// The sum of a counter over all processes of a port.
pub(super) fn counted(port: u16, name: &str) -> u64 {
    let seen = look(port).unwrap().expect("a group");
    let reports = seen
        .members
        .iter()
        .filter_map(|member| member.report.as_ref());
    reports.filter_map(|report| report.counters.get(name)).sum()
}

/// A connector with the honest client's private data.
fn friend(port: u16) -> portolan::Connector {
    connector_on(start(port)).private_data(FRIEND)
}

/// Rejects requests until the honest client's arrives, which it accepts.
fn accept_friend(listener: &Listener) -> (Connection, u64) {
    let mut rejected = 0;
    loop {
        let incoming = listener.accept_within(PATIENCE).unwrap();
        if incoming.private_data().starts_with(FRIEND) {
            return (incoming.accept_with(&options()).unwrap(), rejected);
        }
        incoming.reject(b"stranger").unwrap();
        rejected += 1;
    }
}

fn are_connected(near: &Connection, far: &Connection) {
    let sent = near.send(near.buffer_from(b"ahoy").unwrap()).unwrap();
    assert_eq!(&far.receive_within(PATIENCE).unwrap()[..], b"ahoy");
    sent.wait().unwrap();
}

#[test]
fn requests_beyond_a_full_backlog_are_dropped_without_an_answer_and_not_stored() {
    let port = free_port();
    let _coordinator = start(port);
    let server = start(port);
    let channel = EventChannel::open_on(server.clone()).unwrap();
    let id = CmId::new(&channel).unwrap();
    id.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    id.listen(BACKLOG as i32).unwrap();
    let listener = id.addresses().unwrap().local.unwrap().inet().unwrap();
    let mut most = 0;
    let sent = flood(requester(port, listener), || {
        let deadline = Instant::now() + PATIENCE;
        // Far more than may wait, over some time.
        let end = Instant::now() + FLOOD / 2;
        while Instant::now() < end || counted(port, DROPPED) < 10 * BACKLOG as u64 {
            assert!(Instant::now() < deadline, "too few arrived");
            most = most.max(server.usage().ids);
            thread::sleep(Duration::from_millis(5));
        }
    });
    let dropped = counted(port, DROPPED);
    println!("{sent} requests sent, {dropped} dropped at the listener, {most} ids at most");
    // The listener's id, and one for each waiting request.
    assert_eq!(most, 1 + BACKLOG);
    // Not even a rejection, after which the sender would give up instead of retrying.
    assert_eq!(counted(port, "cm_sent"), 0);
    for _ in 0..BACKLOG {
        next(&channel, EventType::ConnectRequest);
    }
    drop(id);
    eventually("an end of all ids", || server.usage().ids == 0);
}

#[test]
fn a_connect_that_finds_the_backlog_full_completes_once_the_listener_takes_requests() {
    let port = free_port();
    let server = start(port);
    let listener = listener_on(server, "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let friend = friend(port);
    thread::scope(|scope| {
        let mut connecting = None;
        flood(requester(port, address), || {
            eventually("a full backlog", || counted(port, DROPPED) > 0);
            // It has sent its request to a full backlog by now.
            connecting = Some(scope.spawn(|| friend.connect_to(address)));
            let before = counted(port, DROPPED);
            eventually("more", || counted(port, DROPPED) > before + 1000);
        });
        let (far, rejected) = accept_friend(&listener);
        let near = connecting.unwrap().join().unwrap().unwrap();
        are_connected(&near, &far);
        assert!(rejected > 0, "none waited before it");
    });
}

#[test]
fn a_connect_completes_during_a_flood_of_requests_to_its_listener_and_another_after_it() {
    let port = free_port();
    let _coordinator = start(port);
    let server = start(port);
    let listener = listener_on(server.clone(), "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let friend = friend(port);
    let send = requester(port, address);
    let paced = |number| {
        send(number);
        if number % BURST == 0 {
            thread::sleep(PAUSE);
        }
    };
    let connect = || {
        thread::scope(|scope| {
            let started = Instant::now();
            let connecting = scope.spawn(|| friend.connect_to(address));
            let (far, rejected) = accept_friend(&listener);
            are_connected(&connecting.join().unwrap().unwrap(), &far);
            (rejected, started.elapsed())
        })
    };
    let (mut connects, mut rejected, mut longest, mut most) = (0, 0, Duration::ZERO, 0);
    let over = AtomicBool::new(false);
    let sent = flood(paced, || {
        thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut most = 0;
                while !over.load(Ordering::Relaxed) {
                    most = most.max(server.usage().ids);
                    thread::sleep(Duration::from_millis(1));
                }
                most
            });
            let ends_watch = Over(&over);
            // The flood is in progress.
            eventually("a full backlog", || counted(port, DROPPED) > BURST);
            let end = Instant::now() + FLOOD / 2;
            while connects == 0 || Instant::now() < end {
                let (turned_away, took) = connect();
                (connects, rejected) = (connects + 1, rejected + turned_away);
                longest = longest.max(took);
            }
            drop(ends_watch);
            most = watch.join().unwrap();
        });
    });
    println!(
        "{sent} requests sent, {rejected} rejected; {connects} connects, the longest {longest:?}"
    );
    assert!(rejected > 100, "{rejected} rejected requests are no flood");
    // Besides the waiting ones: the listener, the request being answered, and ended connections.
    let most_allowed = LISTENER_BACKLOG + 2 + connects;
    assert!(most <= most_allowed, "{most} ids");
    // The rest of the flood is handled first.
    connect();
    drop(listener);
    eventually("an end of all ids", || server.usage().ids == 0);
}
