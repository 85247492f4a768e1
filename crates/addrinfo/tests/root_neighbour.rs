//! Neighbours on a real link: two namespaces joined by a veth pair. Needs root.

mod support;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use portolan_addrinfo::neighbour::Watch;
use portolan_addrinfo::{LinkAddress, Resolver, Ticket};
use portolan_provider::Cause;
use support::Namespace;

type Outcome = Result<LinkAddress, Cause>;

/// Longer than discovery takes, however busy the machine.
const DEADLINE: Duration = Duration::from_secs(10);

/// Two hosts on one link: 192.0.2.1 and fe80::1 here, 192.0.2.2 and fe80::2 there.
fn link() -> (Namespace, Namespace, u32) {
    let (here, there) = (Namespace::new(), Namespace::new());
    // Without waiting for duplicate address detection.
    for namespace in [&here, &there] {
        for name in [
            "net/ipv6/conf/default/accept_dad",
            "net/ipv6/conf/all/accept_dad",
        ] {
            namespace.sysctl(name, "0");
        }
    }
    here.join(&there);
    here.sysctl("net/ipv4/neigh/eth0/retrans_time_ms", "100");
    here.sysctl("net/ipv6/neigh/eth0/retrans_time_ms", "100");
    here.ip("link set eth0 address 02:00:00:00:00:01\n\
             addr add 192.0.2.1/24 dev eth0\n\
             addr add fe80::1/64 dev eth0 nodad\n\
             addr add 2001:db8::1/64 dev eth0 nodad");
    there.ip("link set eth0 address 02:00:00:00:00:02\n\
              addr add 192.0.2.2/24 dev eth0\n\
              addr add fe80::2/64 dev eth0 nodad\n\
              addr add 2001:db8::2/64 dev eth0 nodad");
    probe(&here, PROBES_MANY);
    let index = here.index("eth0");
    (here, there, index)
}

/// For a host that is there: a busy machine may take long to answer.
const PROBES_MANY: &str = "50";
/// For a host that is not there.
const PROBES_FEW: &str = "3";

/// How many probes, 100 ms apart, the kernel sends before it gives up.
fn probe(namespace: &Namespace, probes: &'static str) {
    namespace.sysctl("net/ipv4/neigh/eth0/mcast_solicit", probes);
    namespace.sysctl("net/ipv6/neigh/eth0/mcast_solicit", probes);
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

fn begin(resolver: &Resolver, next_hop: IpAddr, index: u32) -> (Ticket, Receiver<Outcome>) {
    begin_within(resolver, next_hop, index, DEADLINE)
}

fn begin_within(
    resolver: &Resolver,
    next_hop: IpAddr,
    index: u32,
    deadline: Duration,
) -> (Ticket, Receiver<Outcome>) {
    let (send, receive) = channel();
    let done = Box::new(move |outcome| {
        let _ = send.send(outcome);
    });
    let ticket = resolver
        .resolve(next_hop, index, deadline, done)
        .expect("accepted");
    (ticket, receive)
}

fn outcome(receiver: &Receiver<Outcome>) -> Outcome {
    receiver
        .recv_timeout(DEADLINE * 2)
        .expect("every look-up ends by its deadline")
}

fn there_address() -> Outcome {
    Ok(LinkAddress::new(&[2, 0, 0, 0, 0, 2]).expect("six bytes"))
}

#[test]
fn a_neighbour_that_answers_is_found_over_both_families() {
    let (here, _there, index) = link();
    let resolver = here.run(Resolver::start).expect("resolver");
    for next_hop in ["192.0.2.2", "fe80::2", "2001:db8::2"] {
        let (_, receiver) = begin(&resolver, ip(next_hop), index);
        assert_eq!(
            outcome(&receiver),
            there_address(),
            "{next_hop}, by discovery"
        );
        let (_, receiver) = begin(&resolver, ip(next_hop), index);
        assert_eq!(
            outcome(&receiver),
            there_address(),
            "{next_hop}, from the table"
        );
    }
}

#[test]
fn neighbours_are_found_and_missed_without_any_privilege() {
    let (here, _there, index) = link();
    let resolver = here
        .run(|| support::without_privilege(Resolver::start))
        .expect("resolver");
    for next_hop in ["192.0.2.2", "2001:db8::2"] {
        let (_, receiver) = begin(&resolver, ip(next_hop), index);
        assert_eq!(outcome(&receiver), there_address(), "{next_hop}");
    }
    probe(&here, PROBES_FEW);
    let (_, receiver) = begin(&resolver, ip("192.0.2.99"), index);
    assert_eq!(outcome(&receiver), Err(Cause::HostUnreachable));
}

#[test]
fn an_absent_neighbour_is_host_unreachable_before_the_deadline() {
    let (here, _there, index) = link();
    probe(&here, PROBES_FEW);
    let resolver = here.run(Resolver::start).expect("resolver");
    for next_hop in ["192.0.2.99", "fe80::99", "2001:db8::99"] {
        // The second look-up meets the failed entry of the first and tries again.
        for attempt in ["first", "second"] {
            let started = Instant::now();
            let (_, receiver) = begin(&resolver, ip(next_hop), index);
            let outcome = outcome(&receiver);
            assert_eq!(
                outcome,
                Err(Cause::HostUnreachable),
                "{next_hop}, {attempt}"
            );
            assert!(started.elapsed() < DEADLINE, "{next_hop}, {attempt}");
            // Three probes are 100 ms apart, so an earlier answer comes from an old entry.
            assert!(
                started.elapsed() > Duration::from_millis(150),
                "{next_hop}, {attempt}"
            );
        }
    }
}

#[test]
fn a_neighbour_that_comes_back_after_failing_is_found() {
    let (here, there, index) = link();
    probe(&here, PROBES_FEW);
    let resolver = here.run(Resolver::start).expect("resolver");
    let (_, receiver) = begin(&resolver, ip("192.0.2.3"), index);
    assert_eq!(outcome(&receiver), Err(Cause::HostUnreachable));
    there.ip("addr add 192.0.2.3/24 dev eth0");
    probe(&here, PROBES_MANY);
    let (_, receiver) = begin(&resolver, ip("192.0.2.3"), index);
    assert_eq!(outcome(&receiver), there_address());
}

#[test]
fn a_deadline_shorter_than_discovery_is_timed_out() {
    let (here, _there, index) = link();
    here.sysctl("net/ipv4/neigh/eth0/retrans_time_ms", "2000");
    let resolver = here.run(Resolver::start).expect("resolver");
    let started = Instant::now();
    let deadline = Duration::from_millis(100);
    let (_, receiver) = begin_within(&resolver, ip("192.0.2.99"), index, deadline);
    let expected = Cause::TimedOut {
        after_ms: 100,
        retries: 0,
    };
    assert_eq!(outcome(&receiver), Err(expected));
    assert!(started.elapsed() >= deadline && started.elapsed() < Duration::from_secs(2));
}

#[test]
fn many_look_ups_at_once_all_end_and_share_the_work() {
    let (here, _there, index) = link();
    let resolver = here.run(Resolver::start).expect("resolver");
    probe(&here, "10");
    // Four waiters for each of 200 hosts, most of which are absent.
    let pending: Vec<_> = (0..800)
        .map(|n| {
            let last = 2 + (n % 200) as u8;
            (
                last,
                begin(&resolver, IpAddr::from([192, 0, 2, last]), index).1,
            )
        })
        .collect();
    for (last, receiver) in pending {
        let expected = if last == 2 {
            there_address()
        } else {
            Err(Cause::HostUnreachable)
        };
        assert_eq!(outcome(&receiver), expected, "192.0.2.{last}");
    }
}

#[test]
fn a_cancelled_look_up_is_never_called() {
    let (here, _there, index) = link();
    probe(&here, PROBES_FEW);
    let resolver = here.run(Resolver::start).expect("resolver");
    let (cancelled, silent) = begin(&resolver, ip("192.0.2.99"), index);
    let (_, heard) = begin(&resolver, ip("192.0.2.99"), index);
    assert!(resolver.cancel(cancelled));
    assert!(!resolver.cancel(cancelled), "only once");
    assert_eq!(outcome(&heard), Err(Cause::HostUnreachable));
    assert!(
        silent.recv().is_err(),
        "the completion was dropped, not called"
    );
}

#[test]
fn dropping_the_resolver_fails_what_is_pending() {
    let (here, _there, index) = link();
    let resolver = here.run(Resolver::start).expect("resolver");
    let (_, receiver) = begin(&resolver, ip("192.0.2.99"), index);
    drop(resolver);
    assert_eq!(
        outcome(&receiver),
        Err(Cause::NoSuchObject("neighbour resolver"))
    );
}

#[test]
fn links_without_neighbours_need_no_address() {
    let namespace = Namespace::new();
    // One link has link-layer addresses but no ARP; a tunnel has neither.
    namespace.ip("link add quiet type veth peer name end\n\
                  link set quiet arp off up\n\
                  addr add 192.0.2.1/24 dev quiet\n\
                  tuntap add tunnel mode tun\n\
                  link set tunnel up\n\
                  addr add 198.51.100.1 peer 198.51.100.2 dev tunnel");
    let resolver = namespace.run(Resolver::start).expect("resolver");
    for (next_hop, name) in [("192.0.2.2", "quiet"), ("198.51.100.2", "tunnel")] {
        let (_, receiver) = begin(&resolver, ip(next_hop), namespace.index(name));
        let outcome = outcome(&receiver);
        assert!(outcome.is_ok(), "{name}: {outcome:?}");
    }
}

#[test]
fn permanent_entries_answer_for_absent_hosts() {
    let (here, _there, index) = link();
    here.ip("neigh add 192.0.2.50 lladdr 02:00:00:00:00:50 dev eth0 nud permanent");
    let resolver = here.run(Resolver::start).expect("resolver");
    let (_, receiver) = begin(&resolver, ip("192.0.2.50"), index);
    let expected = LinkAddress::new(&[2, 0, 0, 0, 0, 0x50]).expect("six bytes");
    assert_eq!(outcome(&receiver), Ok(expected));
}

#[test]
fn an_interface_that_is_down_or_goes_away_ends_the_look_up() {
    let (here, _there, index) = link();
    let resolver = here.run(Resolver::start).expect("resolver");
    here.ip("link set eth0 down");
    let (_, receiver) = begin(&resolver, ip("192.0.2.2"), index);
    let outcome_down = outcome(&receiver);
    assert!(
        matches!(
            outcome_down,
            Err(Cause::NetworkUnreachable | Cause::HostUnreachable)
        ),
        "{outcome_down:?}"
    );
    here.ip("link set eth0 up\nlink set eth0 down\nlink del eth0");
    let (_, receiver) = begin(&resolver, ip("192.0.2.2"), index);
    let outcome_gone = outcome(&receiver);
    assert!(
        matches!(outcome_gone, Err(Cause::NoDevice { .. })),
        "{outcome_gone:?}"
    );
}

#[test]
fn a_probe_that_the_system_refuses_is_an_error() {
    let (here, _there, index) = link();
    // A rule that prohibits the destination is an example of a local refusal.
    here.ip("-6 rule add to 2001:db8::2 prohibit pref 1");
    let resolver = here.run(Resolver::start).expect("resolver");
    let (_, receiver) = begin(&resolver, ip("2001:db8::2"), index);
    let outcome = outcome(&receiver);
    assert!(
        matches!(outcome, Err(Cause::Os { errno: 13, .. })),
        "{outcome:?}"
    );
}

#[test]
fn an_ipv4_next_hop_off_the_subnet_is_looked_for_on_the_link() {
    let (here, there, index) = link();
    // As after `ip route add … via 198.51.100.1 dev eth0 onlink`: no route leads to the router.
    there.ip("addr add 198.51.100.1/32 dev eth0");
    let resolver = here.run(Resolver::start).expect("resolver");
    let (_, receiver) = begin(&resolver, ip("198.51.100.1"), index);
    assert_eq!(outcome(&receiver), there_address());
}

#[test]
fn a_storm_of_other_changes_does_not_hide_the_answer() {
    let (here, there, index) = link();
    // The kernel still probes when the storm ends, however long that takes.
    probe(&here, "100");
    let resolver = here.run(Resolver::start).expect("resolver");
    let (_, receiver) = begin(&resolver, ip("192.0.2.77"), index);
    // A storm of changes on this link during the look-up.
    here.run(|| {
        for round in 0..3 {
            let nud = if round % 2 == 0 { "permanent" } else { "stale" };
            let batch: String = (0..2000)
                .map(|n| {
                    let (high, low) = (n / 250, n % 250 + 1);
                    format!("neigh replace 10.0.{high}.{low} lladdr 02:00:00:00:00:09 dev eth0 nud {nud}\n")
                })
                .collect();
            support::ip_batch(&batch);
        }
    });
    there.ip("addr add 192.0.2.77/24 dev eth0");
    let (_, second) = begin(&resolver, ip("192.0.2.77"), index);
    for receiver in [receiver, second] {
        assert_eq!(outcome(&receiver), there_address());
    }
}

/// A watch of the other host, with the addresses that it reports.
fn watch(resolver: &Resolver, index: u32) -> (Watch, Receiver<LinkAddress>) {
    let (send, receive) = channel();
    let send = std::sync::Mutex::new(send);
    let changed = move |next_hop, interface, address| {
        assert_eq!((next_hop, interface), (ip("192.0.2.2"), index));
        let _ = send.lock().expect("no panic").send(address);
    };
    let known = there_address().expect("an address");
    let watch = resolver.watch(ip("192.0.2.2"), index, known, Arc::new(changed));
    (watch.expect("accepted"), receive)
}

#[test]
fn a_watched_neighbours_new_address_is_reported_until_the_watch_ends() {
    let (here, _there, index) = link();
    let resolver = here.run(Resolver::start).expect("resolver");
    let (_, receiver) = begin(&resolver, ip("192.0.2.2"), index);
    assert_eq!(outcome(&receiver), there_address());
    let (watch, changes) = watch(&resolver, index);
    here.ip("neigh replace 192.0.2.2 lladdr 02:00:00:00:00:77 dev eth0 nud reachable");
    let new = LinkAddress::new(&[2, 0, 0, 0, 0, 0x77]).expect("six bytes");
    assert_eq!(changes.recv_timeout(DEADLINE), Ok(new));
    here.ip(
        "neigh replace 192.0.2.2 lladdr 02:00:00:00:00:77 dev eth0 nud stale\n\
             neigh replace 192.0.2.2 lladdr 02:00:00:00:00:78 dev eth0 nud permanent",
    );
    let newer = LinkAddress::new(&[2, 0, 0, 0, 0, 0x78]).expect("six bytes");
    assert_eq!(
        changes.recv_timeout(DEADLINE),
        Ok(newer),
        "and nothing in between"
    );
    drop(watch);
    here.ip("neigh replace 192.0.2.2 lladdr 02:00:00:00:00:79 dev eth0 nud permanent");
    assert!(
        changes.recv().is_err(),
        "the watcher is dropped, not called"
    );
}

#[test]
fn an_address_that_changed_before_the_watch_began_is_reported() {
    let (here, _there, index) = link();
    here.ip("neigh replace 192.0.2.2 lladdr 02:00:00:00:00:77 dev eth0 nud permanent");
    let resolver = here.run(Resolver::start).expect("resolver");
    let (_watch, changes) = watch(&resolver, index);
    let new = LinkAddress::new(&[2, 0, 0, 0, 0, 0x77]).expect("six bytes");
    assert_eq!(changes.recv_timeout(DEADLINE), Ok(new));
}
