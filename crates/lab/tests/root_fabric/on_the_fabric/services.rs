//! Services registered by one host and found by another.

use std::io::{BufRead, BufReader};
use std::net::Ipv6Addr;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use portolan_lab::fabric::{Fabric, Topology};

use super::HOST;

const ID: &str = "0x1000000000000099";
const NAME: &str = "harbour";
const LEASE_S: u64 = 2;
/// How long the administrator may take to forget an expired service.
const PATIENCE: Duration = Duration::from_secs(60);

fn service(fabric: &Fabric, what: &str) -> String {
    let output = fabric.at("Host4", HOST).args(["service", what]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The expected answer while `Host2` has the service registered.
fn offered(fabric: &Fabric) -> String {
    let gid = Ipv6Addr::from(fabric.topology().gid("Host2").unwrap());
    format!("{gid} {ID} {NAME} sixteen of bytes\n")
}

fn is_unknown(said: &str) -> bool {
    said.starts_with("6 ")
}

#[test]
fn a_service_is_found_by_name_and_by_id_for_as_long_as_it_is_held_and_then_not() {
    held_at_host2("register", "registered\n");
}

#[test]
fn a_listener_that_registers_its_service_is_found_renewed_and_withdrawn_when_it_is_dropped() {
    held_at_host2("offer", "offered\n");
}

/// `Host2` holds the service in the way `how` and prints `begun` when it does; `Host4` looks it up.
fn held_at_host2(how: &str, begun: &str) {
    let Some(fabric) = crate::fabric(Topology::two_switches_four_hosts()) else {
        return;
    };
    assert!(is_unknown(&service(&fabric, NAME)));
    let mut holder = fabric
        .at("Host2", HOST)
        .args([how, NAME, ID, &LEASE_S.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(holder.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, begun);
    for what in [NAME, ID] {
        assert_eq!(service(&fabric, what), offered(&fabric));
    }
    // Longer than the lease, so the service must be renewed.
    thread::sleep(Duration::from_secs(LEASE_S * 2));
    assert_eq!(service(&fabric, NAME), offered(&fabric));
    drop(holder.stdin.take());
    line.clear();
    output.read_line(&mut line).unwrap();
    assert!(line.starts_with("withdrawn after "), "{line}");
    assert!(holder.wait().unwrap().success());
    for what in [NAME, ID] {
        let said = service(&fabric, what);
        assert!(is_unknown(&said), "{said}");
    }
}

#[test]
fn a_service_that_nobody_renews_is_forgotten_after_its_lease() {
    let Some(fabric) = crate::fabric(Topology::two_switches_four_hosts()) else {
        return;
    };
    let registered = Instant::now();
    let set = fabric
        .at("Host2", HOST)
        .args(["set", NAME, ID, &LEASE_S.to_string()])
        .output()
        .unwrap();
    assert!(set.status.success(), "{set:?}");
    let first = service(&fabric, NAME);
    let in_time = registered.elapsed() < Duration::from_secs(LEASE_S);
    assert!(!in_time || first == offered(&fabric), "{first}");
    while !is_unknown(&service(&fabric, NAME)) {
        assert!(registered.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(100));
    }
    // Whole seconds: the first may be partial.
    assert!(registered.elapsed() >= Duration::from_secs(LEASE_S - 1));
}
