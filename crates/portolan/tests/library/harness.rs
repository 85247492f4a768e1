//! Providers, connected pairs, and byte patterns that depend on their offset.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use portolan::provider::traits::Provider;
use portolan::software::{SoftwareConfig, SoftwareProvider};
use portolan::{Connection, Connector, Listener, Options};

/// Time limit for anything that should take milliseconds, because the tests share few cores.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Prefix of the names of the tests' groups.
pub(crate) const GROUP_PREFIX: &str = "portolan-library-test";

/// The provider that most tests share, like the connections of a program.
pub(crate) fn provider() -> Arc<dyn Provider> {
    static SHARED: OnceLock<Arc<SoftwareProvider>> = OnceLock::new();
    SHARED.get_or_init(|| start(free_port())).clone()
}

/// A provider in its own group.
pub(crate) fn own_provider() -> Arc<SoftwareProvider> {
    start(free_port())
}

/// A provider in the group of a UDP port.
pub(crate) fn start(port: u16) -> Arc<SoftwareProvider> {
    start_with(port, SoftwareConfig::default())
}

/// A provider that gives up on a silent peer within a second.
pub(crate) fn start_impatient(port: u16) -> Arc<SoftwareProvider> {
    let mut config = SoftwareConfig::default();
    // 4.096 µs × 2^13, 34 ms.
    config.cm.response_timeout_exp = 13;
    config.cm.packet_lifetime_exp = 8;
    config.cm.max_cm_retries = 3;
    start_with(port, config)
}

pub(crate) fn start_with(port: u16, mut config: SoftwareConfig) -> Arc<SoftwareProvider> {
    config.stack.group.port = port;
    config.stack.group.name_prefix = GROUP_PREFIX.into();
    config.stack.group.join_timeout = PATIENCE;
    SoftwareProvider::start(config).expect("the software device starts")
}

/// An unused UDP port; each call returns another.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        // Below the kernel's ephemeral ports.
        let port = 10_000 + ((std::process::id() * 97 + step * 13) % 20_000) as u16;
        if UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}

pub(crate) fn connector() -> Connector {
    connector_on(provider())
}

pub(crate) fn connector_on(provider: Arc<dyn Provider>) -> Connector {
    Connector::new().provider(provider).timeout(PATIENCE)
}

pub(crate) fn listener(address: &str) -> Listener {
    listener_on(provider(), address)
}

pub(crate) fn listener_on(provider: Arc<dyn Provider>, address: &str) -> Listener {
    Listener::bind_on(provider, address.parse().unwrap()).expect("the address is free")
}

/// Both ends of a connection over IPv4 loopback: active, passive.
pub(crate) fn pair() -> (Connection, Connection) {
    pair_with(&options(), &options())
}

pub(crate) fn pair_with(active: &Options, passive: &Options) -> (Connection, Connection) {
    let listener = listener("127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    pair_at(
        connector().options(active.clone()),
        &listener,
        address,
        passive,
    )
}

/// Connects to `address` of `listener`, and accepts.
pub(crate) fn pair_at(
    connector: Connector,
    listener: &Listener,
    address: SocketAddr,
    passive: &Options,
) -> (Connection, Connection) {
    thread::scope(|scope| {
        let active = scope.spawn(move || connector.connect_to(address));
        let incoming = listener.accept_within(PATIENCE).expect("a request comes");
        let passive = incoming.accept_with(passive).expect("the peer confirms");
        (active.join().unwrap().expect("the peer accepts"), passive)
    })
}

pub(crate) fn options() -> Options {
    Options::default().timeout(PATIENCE)
}

/// Bytes that depend on the offset and the seed.
pub(crate) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    let byte = |at: usize| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0];
    (0..length)
        .map(|at| byte(at.wrapping_add(usize::from(seed) << 20)) ^ seed)
        .collect()
}

/// Waits until `done` returns true.
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Asserts that two byte sequences are equal, without printing megabytes.
#[track_caller]
pub(crate) fn assert_same(found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "lengths differ");
    if let Some(at) = (0..found.len()).find(|at| found[*at] != expected[*at]) {
        panic!(
            "byte {at} of {} is {:#04x}, expected {:#04x}",
            found.len(),
            found[at],
            expected[at]
        );
    }
}

/// Number of threads, except for the one that asks the kernel about barriers shortly after a device is opened.
pub(crate) fn lasting_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
    // A thread without a name to read has ended.
    names
        .filter(|name| {
            name.as_ref()
                .is_ok_and(|name| name.trim() != "portolan-ask")
        })
        .count()
}
