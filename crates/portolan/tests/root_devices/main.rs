//! Devices that follow the interfaces of a network namespace, and the events of ids and connections. Needs
//! root, because loopback cannot be removed.
//!
//! All tests run in one namespace, one at a time: process-wide objects (routes, neighbours) belong to the
//! namespace where they were first used.

mod addr_change;
mod addr_error;
mod datagrams;
mod device_removal;
mod domains;
mod follow;
#[path = "../library/harness.rs"]
#[allow(dead_code, reason = "shared with the tests on loopback")]
mod harness;
mod keepalive;
mod link_local;
mod lost_messages;
#[path = "../library/low.rs"]
#[allow(dead_code, reason = "shared with the tests on loopback")]
mod low;
mod multicast_error;
mod rounds;
mod route_error;
#[path = "../../../addrinfo/tests/support/mod.rs"]
mod support;
mod unreachable;

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use portolan::cm::{CmId, Event, EventChannel};
use portolan::provider::cm::EventType;
use portolan::provider::traits::{Device, Provider};
use portolan::software::SoftwareProvider;

use harness::{PATIENCE, eventually};
use support::{Namespace, ip_batch};

/// Runs a test in the namespace, alone, on fresh interfaces created by the ip(8) `commands`. Afterwards
/// interfaces whose names begin with `t` are deleted, with the other ends of their pairs.
fn on_interfaces(commands: &'static str, test: impl FnOnce() + Send + 'static) {
    static ALONE: Mutex<()> = Mutex::new(());
    static NAMESPACE: OnceLock<Namespace> = OnceLock::new();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let namespace = NAMESPACE.get_or_init(|| {
        let namespace = Namespace::new();
        // Interfaces have only the addresses that tests give them.
        namespace.sysctl("net/ipv6/conf/default/disable_ipv6", "1");
        namespace
    });
    namespace.run(move || {
        remove_interfaces();
        ip_batch(commands);
        test();
        remove_interfaces();
    });
}

fn remove_interfaces() {
    let entries = std::fs::read_dir("/proc/sys/net/ipv4/conf").unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    for name in names.filter(|name| name.starts_with('t')) {
        let is_there = || std::fs::exists(format!("/proc/sys/net/ipv4/conf/{name}")).unwrap();
        // It may disappear meanwhile: with the other end of its pair, or when the kernel cleans up the
        // namespace of that end.
        if is_there() {
            let mut delete = Command::new("ip");
            delete.args(["link", "del", &name]).stderr(Stdio::null());
            delete
                .status()
                .expect("ip(8) is installed (package iproute2)");
        }
        eventually("the end of the interface", || !is_there());
    }
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// An id on its own channel, bound to an address.
fn bound(provider: &Arc<SoftwareProvider>, local: &str) -> (EventChannel, CmId) {
    let channel = EventChannel::open_on(provider.clone()).unwrap();
    let id = CmId::new(&channel).unwrap();
    id.bind(addr(local)).unwrap();
    (channel, id)
}

fn device(provider: &SoftwareProvider, ip: &str) -> Arc<dyn Device> {
    provider.device_of(ip.parse().unwrap()).unwrap().0
}

/// Checks that an event carries its type and status and nothing else: rdma_get_cm_event(3) has event data for
/// other types.
#[track_caller]
fn assert_bare(event: &Event, id: &CmId, expected: EventType, status: i32) {
    assert_eq!((event.event_type(), event.status()), (expected, status));
    assert_eq!(event.id().number(), id.number());
    assert!(event.listener().is_none());
    assert_eq!((event.conn(), event.ud(), event.arg()), (None, None, None));
    assert!(event.private_data().is_empty() && event.membership().is_none());
}

/// Takes the next event of a channel, which must be bare and for this id.
#[track_caller]
fn hear(channel: &EventChannel, id: &CmId, expected: EventType, status: i32) {
    let event = channel.next_event_within(PATIENCE).unwrap();
    assert_bare(&event, id, expected, status);
}

#[track_caller]
fn assert_silent(channel: &EventChannel) {
    let event = channel.try_next_event().unwrap();
    assert!(event.is_none(), "{event:?}");
}
