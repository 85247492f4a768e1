//! Everything is released at its end: ids, ports, queues and memory, in every state.

use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::{EventType, UserId};
use portolan::provider::traits::Provider;
use portolan::software::{SoftwareProvider, Usage};
use portolan::{Access, Listener};

use crate::harness::*;
use crate::low::TCP;

/// Checks that nothing is held. Rejections and disconnects take a moment to be read.
#[track_caller]
fn assert_all_given_back(provider: &SoftwareProvider) {
    let started = Instant::now();
    while provider.usage() != Usage::default() {
        let usage = provider.usage();
        assert!(started.elapsed() < PATIENCE, "still held: {usage:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn next(channel: &EventChannel) -> portolan::cm::Event {
    channel.next_event_within(PATIENCE).unwrap()
}

/// An id is brought into each state on the way to a connection and dropped there.
#[test]
fn ids_and_channels_dropped_in_every_state_leave_nothing_behind() {
    let provider = own_provider();
    let listener = Listener::bind_on(provider.clone(), "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    for channel_first in [false, true] {
        for state in 0..7 {
            let channel = EventChannel::open_on(provider.clone()).unwrap();
            let id = CmId::new(&channel).unwrap();
            match state {
                0 => {}
                1 => id.bind(any).unwrap(),
                2 => {
                    id.bind(any).unwrap();
                    id.listen(0).unwrap();
                }
                // The event waits in the channel when the channel is dropped.
                3 => id.resolve_addr(None, address, PATIENCE).unwrap(),
                _ => {
                    id.resolve_addr(None, address, PATIENCE).unwrap();
                    assert_eq!(next(&channel).event_type(), EventType::AddrResolved);
                }
            }
            if state >= 5 {
                id.resolve_route(PATIENCE).unwrap();
                assert_eq!(next(&channel).event_type(), EventType::RouteResolved);
            }
            if state == 6 {
                let param = portolan::provider::cm::ConnParam {
                    qp_num: portolan::wire::addr::Qpn::new(0x1234),
                    ..Default::default()
                };
                id.connect(&param).unwrap();
                // The request is taken, so that it exists, and dropped: the peer gets a rejection.
                drop(listener.accept_within(PATIENCE).unwrap());
            }
            if channel_first {
                drop(channel);
                drop(id);
            } else {
                drop(id);
                drop(channel);
            }
        }
    }
    drop(listener);
    assert_all_given_back(&provider);
}

#[test]
fn connections_leave_nothing_behind_however_they_end() {
    let provider = own_provider();
    let listener = listener_on(provider.clone(), "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let connect = || {
        pair_at(
            connector_on(provider.clone()),
            &listener,
            address,
            &options(),
        )
    };
    {
        let (active, passive) = connect();
        std::thread::scope(|scope| {
            scope.spawn(|| active.close(PATIENCE).unwrap());
            passive.close(PATIENCE).unwrap();
        });
    }
    {
        // Dropped with posted work, a held message and shared memory.
        let (active, passive) = connect();
        let memory = passive.share(1 << 20, Access::REMOTE_WRITE).unwrap();
        let buffer = active.buffer(1 << 20).unwrap();
        let transfer = active.write(buffer, memory.remote()).unwrap();
        passive
            .send(passive.buffer(8).unwrap())
            .unwrap()
            .wait()
            .unwrap();
        let message = active.receive_within(PATIENCE).unwrap();
        drop((active, passive));
        drop((message, transfer, memory));
    }
    {
        // Broken by a message that does not fit.
        let (active, passive) = connect();
        let sent = active.send(active.buffer(1 << 16).unwrap()).unwrap();
        assert!(sent.wait().is_err());
        assert!(passive.receive_within(PATIENCE).is_err());
    }
    drop(listener);
    assert_all_given_back(&provider);
}

#[test]
fn refused_and_failed_connects_leave_nothing_behind() {
    let provider = own_provider();
    let listener = listener_on(provider.clone(), "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let connector = connector_on(provider.clone());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            listener
                .accept_within(PATIENCE)
                .unwrap()
                .reject(b"no")
                .unwrap()
        });
        connector.connect_to(address).unwrap_err();
    });
    let absurd = options().send_depth(u32::MAX);
    connector
        .clone()
        .options(absurd)
        .connect_to(address)
        .unwrap_err();
    connector
        .private_data(vec![0; 57])
        .connect_to(address)
        .unwrap_err();
    drop(listener);
    assert_all_given_back(&provider);
}

#[test]
fn a_hundred_connections_in_a_row_hold_no_more_than_one() {
    let provider = own_provider();
    let listener = listener_on(provider.clone(), "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let connect = || {
        pair_at(
            connector_on(provider.clone()),
            &listener,
            address,
            &options(),
        )
    };
    for _ in 0..100 {
        drop(connect());
    }
    let both = connect();
    let mut one_connection = Usage::default();
    one_connection.ids = 3;
    one_connection.listeners = 1;
    one_connection.ports = 2;
    // Both ends are on the loopback device, whose connections share a protection domain.
    one_connection.protection_domains = 1;
    one_connection.completion_queues = 2;
    one_connection.queue_pairs = 2;
    one_connection.memory_regions = 2 * options().receive_depth;
    let started = Instant::now();
    while provider.usage() != one_connection && started.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(provider.usage(), one_connection);
    drop((both, listener));
    assert_all_given_back(&provider);
    let provider: Arc<SoftwareProvider> = provider;
    assert_eq!(
        Arc::strong_count(&provider),
        1,
        "the provider is still held"
    );
}

#[test]
fn an_id_bound_by_two_threads_at_once_has_one_port() {
    let provider = own_provider();
    let channel = EventChannel::open_on(provider.clone()).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    for _ in 0..200 {
        let id = CmId::new(&channel).unwrap();
        let barrier = std::sync::Barrier::new(2);
        let bind = || {
            barrier.wait();
            id.bind(any).is_ok()
        };
        let bound = std::thread::scope(|scope| {
            let other = scope.spawn(bind);
            [bind(), other.join().unwrap()]
        });
        assert_eq!(bound.iter().filter(|ok| **ok).count(), 1, "{bound:?}");
        assert_ne!(id.addresses().unwrap().local.unwrap().port(), 0);
    }
    drop(channel);
    assert_all_given_back(&provider);
}

/// Blocks the thread that shows it a packet.
#[derive(Debug, Default)]
struct Stall {
    is_shut: std::sync::Mutex<bool>,
    opened: std::sync::Condvar,
    met: std::sync::atomic::AtomicBool,
}

impl portolan::software::Tap for Stall {
    fn packet(&self, _: &portolan::software::TappedPacket<'_>) {
        self.met.store(true, std::sync::atomic::Ordering::Release);
        let mut is_shut = self.is_shut.lock().unwrap();
        while *is_shut {
            is_shut = self.opened.wait(is_shut).unwrap();
        }
    }
}

#[test]
fn ports_released_while_the_coordinator_is_busy_are_free_afterwards() {
    // More than may wait for the coordinator at a time.
    const PORTS: usize = 1100;
    let port = free_port();
    let (coordinator, member) = (start(port), start(port));
    let channel = EventChannel::open_on(member.clone()).unwrap();
    let bound = || {
        let id = CmId::new(&channel).unwrap();
        id.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        id
    };
    let ids: Vec<CmId> = (0..PORTS).map(|_| bound()).collect();
    let at = |id: &CmId| id.addresses().unwrap().local.unwrap().inet().unwrap();
    let addresses: Vec<SocketAddr> = ids.iter().map(at).collect();

    let stall = Arc::new(Stall::default());
    *stall.is_shut.lock().unwrap() = true;
    coordinator.set_tap(Some(stall.clone()));
    // The coordinator refuses requests to ports without listener.
    let connector = connector_on(member.clone()).timeout(Duration::from_secs(1));
    let nobody = SocketAddr::new(addresses[0].ip(), 1);
    assert!(connector.connect_to(nobody).is_err());
    assert!(stall.met.load(std::sync::atomic::Ordering::Acquire));
    drop(ids);
    *stall.is_shut.lock().unwrap() = false;
    stall.opened.notify_all();

    // However many releases wait, there is room for a request, which the coordinator answers in turn.
    let any = "127.0.0.1:0".parse().unwrap();
    CmId::new(&channel).unwrap().bind(any).unwrap();
    let other = EventChannel::open_on(coordinator.clone()).unwrap();
    for address in addresses {
        eventually("a free port", || {
            CmId::new(&other).unwrap().bind(address).is_ok()
        });
    }
}

/// C allows it: its ids are pointers.
#[test]
fn an_id_that_another_thread_destroys_while_it_begins_to_listen_keeps_no_port() {
    let provider = own_provider();
    let channel = provider.open_channel().unwrap();
    for uid in 1..300 {
        let id = channel.create_id(UserId(uid), TCP).unwrap();
        channel.bind(id, "127.0.0.1:0".parse().unwrap()).unwrap();
        let start = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                channel.listen(id, 0)
            });
            start.wait();
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(uid % 100) {}
            channel.destroy_id(id).unwrap();
        });
    }
    drop(channel);
    assert_all_given_back(&provider);
}
