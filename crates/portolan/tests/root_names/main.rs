//! Names in a network namespace with two uplinks, policy rules, both families, its own `/etc/hosts` and its own
//! name server. Needs root, and dnsmasq (package dnsmasq-base).
//!
//! All tests run in one namespace: process-wide objects (the pool, routes) belong to the namespace where they
//! were first used.

mod addresses;
mod dns;
mod failures;
#[path = "../library/harness.rs"]
#[allow(dead_code, reason = "shared with the tests on loopback")]
mod harness;
#[path = "../library/low.rs"]
#[allow(dead_code, reason = "shared with the tests on loopback")]
mod low;
mod many;
mod pending;
mod racing;
#[path = "../../../addrinfo/tests/support/mod.rs"]
mod support;

use std::process::Child;
use std::sync::{Mutex, OnceLock, PoisonError};

use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::EventType;
use portolan_addrinfo::{AddrInfo, AddrInfoError, Hints, get_addrinfo};

use harness::PATIENCE;
use support::{Namespace, TWO_UPLINKS};

/// The files that libc's resolver reads.
const FILES: &[(&str, &str)] = &[
    (
        "/etc/hosts",
        "127.0.0.1 localhost
::1 localhost
192.0.2.77 filed.lab.test filed
2001:db8:1::77 filed.lab.test filed
",
    ),
    (
        "/etc/resolv.conf",
        "nameserver 127.0.0.1\noptions timeout:5 attempts:1\n",
    ),
    ("/etc/nsswitch.conf", "hosts: files dns\nservices: files\n"),
];

/// The name server has this many names `n0`, `n1` and so on.
const NUMBERED: u32 = 1000;

/// Runs a test in the namespace, one at a time.
fn on_network<R: Send + 'static>(test: impl FnOnce() -> R + Send + 'static) -> R {
    static ALONE: Mutex<()> = Mutex::new(());
    static NETWORK: OnceLock<(Namespace, Child)> = OnceLock::new();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (namespace, _) = NETWORK.get_or_init(|| {
        let namespace = Namespace::with_files(FILES);
        namespace.ip(TWO_UPLINKS);
        namespace.ip("rule add to 203.0.113.0/24 lookup 1234
            -6 rule add to 2001:db8:ffff::/48 lookup 1234");
        namespace.ip("addr add fe80::77/64 dev one nodad");
        // Discovery of an absent host takes a minute instead of three seconds.
        namespace.sysctl("net/ipv6/neigh/one/mcast_solicit", "60");
        let server = namespace.run(|| dns::serve(NUMBERED));
        (namespace, server)
    });
    namespace.run(test)
}

/// Resolves a name for an id. Returns the result that the event reports.
fn outcome(id: &CmId, channel: &EventChannel) -> Result<Vec<AddrInfo>, AddrInfoError> {
    let event = channel.next_event_within(PATIENCE).expect("an event");
    assert_eq!(event.id().number(), id.number());
    match event.event_type() {
        EventType::AddrinfoResolved => Ok(id.query_addrinfo().expect("the event reported success")),
        EventType::AddrinfoError => Err(event.addrinfo_error().expect("the reason").clone()),
        other => panic!("{other}"),
    }
}

/// Resolves a name with and without an id. Both must agree.
fn resolve(node: &str, hints: Option<&Hints>) -> Result<Vec<AddrInfo>, AddrInfoError> {
    let alone = get_addrinfo(Some(node), Some("7471"), hints);
    let channel = low::channel();
    let id = CmId::new(&channel).expect("an id");
    id.resolve_addrinfo(Some(node), Some("7471"), hints)
        .expect("started");
    let for_id = outcome(&id, &channel);
    let code = |outcome: &Result<_, AddrInfoError>| outcome.as_ref().err().map(AddrInfoError::code);
    assert_eq!(code(&alone), code(&for_id), "{node}");
    let count = |outcome: &Result<Vec<_>, _>| outcome.as_ref().map_or(0, Vec::len);
    assert_eq!(count(&alone), count(&for_id), "{node}");
    for_id
}
