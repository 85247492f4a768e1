//! Connecting to a name with several addresses, some of which do not work.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use portolan::software::SoftwareProvider;
use portolan::{Connector, Error, Listener};

use crate::harness::{PATIENCE, connector_on, eventually, listener_on, own_provider};
use crate::on_network;

/// A name whose first address has no host, and whose second is this host's.
const HALF: &str = "half.lab.test";
/// A name whose two addresses are both this host's.
const BOTH: &str = "both.lab.test";

/// A provider, a listener at the second address of [`HALF`], a connector, and the target.
fn second_address() -> (Arc<SoftwareProvider>, Listener, Connector, String) {
    let ours = own_provider();
    let listener = listener_on(ours.clone(), "192.0.2.1:0");
    let port = listener.local_addr().expect("bound").port();
    let connector = connector_on(ours.clone());
    (ours, listener, connector, format!("{HALF}:{port}"))
}

#[test]
fn a_silent_address_delays_the_next_only_for_a_moment_and_is_given_up() {
    on_network(|| {
        let (ours, listener, connector, destination) = second_address();
        let asked = Instant::now();
        let active = thread::spawn(move || connector.connect(&destination));
        let passive = listener.accept_within(PATIENCE).expect("a request");
        let passive = passive.accept().expect("confirmed");
        let active = active.join().expect("no panic").expect("connected");
        // Discovery of the first address alone takes a minute.
        assert!(asked.elapsed() < PATIENCE, "{:?}", asked.elapsed());
        assert_eq!(active.peer_addr(), passive.local_addr());
        drop((active, passive, listener));
        eventually("nothing is left of the attempts", || ours.usage().ids == 0);
    });
}

#[test]
fn when_every_address_fails_the_error_names_each() {
    on_network(|| {
        let ours = own_provider();
        let connector = connector_on(ours.clone());
        let error = connector.connect(&format!("{BOTH}:1")).unwrap_err();
        assert_both_named(&error);
        assert_eq!(error.context.earlier.len(), 1);
        eventually("nothing is left of the attempts", || ours.usage().ids == 0);
    });
}

#[test]
fn at_the_deadline_the_error_names_the_addresses_still_being_tried() {
    on_network(|| {
        let (ours, listener, connector, destination) = second_address();
        // Nobody accepts.
        let connector = connector.timeout(std::time::Duration::from_millis(800));
        let error = connector.connect(&destination).unwrap_err();
        let text = format!("{error:#}");
        for address in ["192.0.2.1", "2001:db8:1::99"] {
            assert!(text.contains(address), "{text}");
        }
        assert_eq!(error.errno(), 110, "{text}");
        drop(listener);
        eventually("nothing is left of the attempts", || ours.usage().ids == 0);
    });
}

#[track_caller]
fn assert_both_named(error: &Error) {
    let text = format!("{error:#}");
    for address in ["192.0.2.1:1", "[2001:db8:1::1]:1"] {
        assert!(text.contains(address), "{text}");
    }
    // The cause is one that callers know.
    assert_eq!(error.errno(), 111, "{text}");
}

#[cfg(feature = "tokio")]
mod tasks {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(future)
    }

    #[test]
    fn tasks_race_addresses_too() {
        on_network(|| {
            let (ours, listener, connector, destination) = second_address();
            let active = thread::spawn(move || block_on(connector.connect_async(&destination)));
            let passive = listener.accept_within(PATIENCE).expect("a request");
            let passive = passive.accept().expect("confirmed");
            let active = active.join().expect("no panic").expect("connected");
            assert_eq!(active.get_ref().peer_addr(), passive.local_addr());
            drop((active, passive, listener));
            eventually("nothing is left of the attempts", || ours.usage().ids == 0);
        });
    }

    #[test]
    fn tasks_get_errors_that_name_every_address_too() {
        on_network(|| {
            let connector = connector_on(own_provider());
            let destination = format!("{BOTH}:1");
            let error = block_on(connector.connect_async(&destination)).unwrap_err();
            assert_both_named(&error);
        });
    }
}
