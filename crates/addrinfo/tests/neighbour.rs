//! The resolver's thread and its guarantees, on loopback.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc::channel;
use std::time::Duration;

use portolan_addrinfo::neighbour::DEADLINE_MAX;
use portolan_addrinfo::{LinkAddress, Query, Resolver, lookup};
use portolan_provider::Cause;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const DEADLINE: Duration = Duration::from_secs(5);

fn loopback_index() -> u32 {
    lookup(&Query::to(LOCALHOST))
        .expect("loopback is up")
        .interface_index
}

fn resolve(resolver: &Resolver, next_hop: IpAddr, index: u32) -> Result<LinkAddress, Cause> {
    let (send, receive) = channel();
    let done = Box::new(move |outcome| send.send(outcome).expect("the test waits"));
    resolver.resolve(next_hop, index, DEADLINE, done)?;
    receive
        .recv_timeout(DEADLINE * 2)
        .expect("every look-up ends by its deadline")
}

#[test]
fn loopback_needs_no_address() {
    let resolver = Resolver::shared().expect("resolver");
    assert_eq!(
        resolve(resolver, LOCALHOST, loopback_index()),
        Ok(LinkAddress::NONE)
    );
}

#[test]
fn a_missing_interface_is_no_device() {
    let resolver = Resolver::shared().expect("resolver");
    let outcome = resolve(resolver, LOCALHOST, i32::MAX as u32);
    assert!(
        matches!(outcome, Err(Cause::NoDevice { .. })),
        "{outcome:?}"
    );
}

#[test]
fn an_address_that_cannot_be_a_next_hop_is_refused_at_once() {
    let resolver = Resolver::shared().expect("resolver");
    let index = loopback_index();
    for address in ["0.0.0.0", "::", "239.1.2.3", "ff02::1", "255.255.255.255"] {
        let outcome = resolve(resolver, address.parse().expect("address"), index);
        assert!(
            matches!(outcome, Err(Cause::InvalidArgument { .. })),
            "{address}: {outcome:?}"
        );
    }
    let outcome = resolve(resolver, LOCALHOST, 0);
    assert!(
        matches!(outcome, Err(Cause::InvalidArgument { .. })),
        "{outcome:?}"
    );
    let too_long = DEADLINE_MAX + Duration::from_nanos(1);
    let outcome = resolver.resolve(LOCALHOST, index, too_long, Box::new(|_| {}));
    assert!(
        matches!(outcome, Err(Cause::InvalidArgument { .. })),
        "{outcome:?}"
    );
}

#[test]
fn a_completion_may_call_the_resolver_and_may_panic() {
    let resolver = Resolver::shared().expect("resolver");
    let index = loopback_index();
    let (send, receive) = channel();
    let again = move |_| {
        let done = Box::new(move |outcome| send.send(outcome).expect("the test waits"));
        resolver
            .resolve(LOCALHOST, index, DEADLINE, done)
            .expect("accepted");
        panic!("a completion panics");
    };
    resolver
        .resolve(LOCALHOST, index, DEADLINE, Box::new(again))
        .expect("accepted");
    let outcome = receive
        .recv_timeout(DEADLINE)
        .expect("the thread survives the panic");
    assert_eq!(outcome, Ok(LinkAddress::NONE));
}

#[test]
fn the_thread_is_named_and_takes_no_signals() {
    let resolver = Resolver::shared().expect("resolver");
    let (send, receive) = channel();
    let done = Box::new(move |_| {
        let name = std::thread::current().name().map(String::from);
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("procfs");
        send.send((name, status)).expect("the test waits");
    });
    resolver
        .resolve(LOCALHOST, loopback_index(), DEADLINE, done)
        .expect("accepted");
    let (name, status) = receive.recv_timeout(DEADLINE).expect("called");
    assert_eq!(name.as_deref(), Some("portolan-neigh"));
    let mask = |field: &str| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(field))
            .expect("field");
        u64::from_str_radix(line.trim(), 16).expect("hexadecimal")
    };
    // SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGALRM.
    for signal in [2, 15, 10, 17, 14] {
        assert_ne!(
            mask("SigBlk:") & (1 << (signal - 1)),
            0,
            "signal {signal} is blocked"
        );
    }
    let own = std::fs::read_to_string("/proc/thread-self/status").expect("procfs");
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("SigBlk:"))
        .expect("field");
    assert_eq!(
        u64::from_str_radix(own.trim(), 16),
        Ok(0),
        "the caller's mask is as it was"
    );
}

#[test]
fn an_idle_resolver_sleeps() {
    let resolver = Resolver::start().expect("resolver");
    let (send, receive) = channel();
    let done = Box::new(move |_| {
        send.send(rustix::thread::gettid()).expect("the test waits");
    });
    resolver
        .resolve(LOCALHOST, loopback_index(), DEADLINE, done)
        .expect("accepted");
    let thread = receive
        .recv_timeout(DEADLINE)
        .expect("called")
        .as_raw_nonzero();
    let switches = || {
        let path = format!("/proc/self/task/{thread}/status");
        let status = std::fs::read_to_string(path).expect("the thread lives");
        let field = "voluntary_ctxt_switches:";
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(field))
            .expect("field");
        line.trim().parse::<u64>().expect("number")
    };
    std::thread::sleep(Duration::from_millis(100));
    let before = switches();
    std::thread::sleep(Duration::from_millis(500));
    assert!(switches() - before <= 1, "an idle thread must not wake up");
}
