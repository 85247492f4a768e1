//! How many descriptors the processes of a host have, as documented.

use crate::harness::*;
use crate::process::Peer;

const DOCUMENT: &str = include_str!("../../../../docs/compatibility.md");

/// Waits until a peer has this many descriptors more than before it joined. Some are open only for a moment.
fn has(peer: &mut Peer, count: usize) {
    let mut found = Vec::new();
    eventually(&format!("{count} descriptors"), || {
        let is: usize = peer.ask("descriptors").parse().unwrap();
        if found.last() != Some(&is) {
            found.push(is);
            println!("{found:?} instead of {count}");
        }
        is == count
    });
}

fn connect(from: &mut Peer, to: &mut Peer) {
    let address = to.listen();
    from.tell(&format!("connect {address}"));
    assert_eq!(to.ask("accept"), "ok");
    assert_eq!(from.answer(), "ok");
}

/// Two processes connect twice, then both to a third. `first` and `later` are the descriptors for the devices.
fn descriptors_are(local: &str, first: usize, later: usize, of_first: usize, of_each: usize) {
    let port = free_port();
    let start = || Peer::start_with(port, local);
    let (mut one, mut two, mut three) = (start(), start(), start());
    // The first one holds the port.
    let (first, of_holder) = (first, 2);
    has(&mut one, first + of_holder);
    has(&mut two, later);
    for _ in 0..2 {
        connect(&mut one, &mut two);
        has(&mut one, first + of_holder + of_first + of_each);
        has(&mut two, later + of_first + of_each);
    }
    connect(&mut three, &mut two);
    has(&mut two, later + of_first + 2 * of_each);
    has(&mut three, later + of_first + of_each);
    connect(&mut one, &mut three);
    has(&mut one, first + of_holder + of_first + 2 * of_each);
    has(&mut three, later + of_first + 2 * of_each);
}

#[test]
fn a_process_has_the_documented_number_of_descriptors() {
    descriptors_are("", 30, 28, 2, 3);
    descriptors_are("off", 25, 23, 2, 0);
    for line in [
        "30 for its devices as the first process of a network namespace, and 28 as a later one",
        "25 and 23 with `PORTOLAN_LOCAL=off`",
        "two for its first connection",
        "three for each process of the host that it has connections with; none with `PORTOLAN_LOCAL=off`",
        "one for each other process while it holds the port",
    ] {
        assert!(DOCUMENT.contains(line), "{line}");
    }
}
