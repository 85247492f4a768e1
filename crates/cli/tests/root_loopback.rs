//! The command in a network namespace whose loopback interface is down. Needs root.

mod common;
#[path = "../../addrinfo/tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader};
use std::sync::mpsc;
use std::thread;

use common::*;
use support::{Namespace, ip_batch};

const ADVICE: &str = "the loopback interface lo is down; bring it up: ip link set lo up";

/// Loopback is down, as in a new namespace, and never had an address.
const DOWN: &str = "link set lo down
    addr flush dev lo";
/// Loopback is down but kept its address.
const DOWN_WITH_ADDRESS: &str = "link set lo down";
/// Another kind of interface, so that the host has a device.
const UPLINK: &str = "link add up0 type veth peer name up1
    link set up1 up
    link set up0 up
    addr add 192.0.2.1/24 dev up0";

/// The error of a command that must fail in a namespace with these interfaces.
fn complaint(interfaces: &[&'static str], args: &'static [&'static str]) -> String {
    let interfaces = interfaces.join("\n");
    Namespace::new().run(move || {
        ip_batch(&interfaces);
        let output = run(args);
        assert!(!output.status.success(), "{args:?}: {}", stdout(&output));
        stderr(&output)
    })
}

#[test]
fn each_command_that_needs_loopback_reports_that_it_is_down_and_how_to_bring_it_up() {
    let demo: &[&str] = &["demo"];
    let ping: &[&str] = &["ping", "127.0.0.1:7471", "--count", "1", "--timeout", "1"];
    for interfaces in [&[DOWN][..], &[DOWN_WITH_ADDRESS], &[DOWN, UPLINK]] {
        for args in [demo, ping] {
            let text = complaint(interfaces, args);
            assert!(
                text.contains(ADVICE),
                "{args:?} with {interfaces:?}: {text}"
            );
        }
    }
}

#[test]
fn a_listener_that_is_unreachable_because_loopback_is_down_reports_it() {
    let listen: [&[&str]; 2] = [
        &["listen", "127.0.0.1:0"],
        &["listen", "--ud", "127.0.0.1:0"],
    ];
    let cases = listen.map(|args| [(DOWN, args), (DOWN_WITH_ADDRESS, args)]);
    for (interfaces, args) in cases.into_iter().flatten() {
        let told = Namespace::new().run(move || {
            ip_batch(interfaces);
            let mut listening = Listening::command(args);
            let complaints = listening.child.stderr.take().unwrap();
            let (tell, told) = mpsc::channel();
            thread::spawn(move || tell.send(BufReader::new(complaints).lines().next()));
            let line = told.recv_timeout(PATIENCE).expect("it complains in time");
            line.unwrap().unwrap()
        });
        assert!(
            told.contains(ADVICE),
            "{args:?} with {interfaces:?}: {told}"
        );
    }
}

#[test]
fn a_failure_unrelated_to_loopback_does_not_mention_it() {
    let text = complaint(&[DOWN, UPLINK], &["listen", "192.0.2.9:0"]);
    assert!(!text.contains("loopback"), "{text}");
    // Loopback is up, but there is no listener.
    let text = complaint(&[UPLINK], &["ping", "127.0.0.1:7471", "--count", "1"]);
    assert!(!text.contains("loopback"), "{text}");
}

#[test]
fn the_doctor_finds_that_loopback_is_down_whether_or_not_there_are_other_devices() {
    for (interfaces, destination, severity) in [
        (&[DOWN][..], "127.0.0.1:7471", "problem"),
        (&[DOWN, UPLINK], "127.0.0.1:7471", "problem"),
        (&[DOWN, UPLINK], "192.0.2.7:7471", "note"),
    ] {
        let script = interfaces.join("\n");
        let told = Namespace::new().run(move || {
            ip_batch(&script);
            stdout(&run(&["doctor", "--json", destination]))
        });
        let told = &objects(&told)[0];
        let mut findings = told["findings"].as_array().unwrap().iter();
        let found = findings.find(|finding| finding["code"] == "interface-down");
        let found = found.unwrap_or_else(|| panic!("{interfaces:?}: {told:#}"));
        assert_eq!(found["severity"], severity, "{interfaces:?} {destination}");
        let remedy = found["remedy"].as_str().unwrap();
        assert!(remedy.starts_with("ip link set lo up"), "{remedy}");
    }
}
