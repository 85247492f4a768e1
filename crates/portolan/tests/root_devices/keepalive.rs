//! A peer that is gone with its host: nothing tells of it but that it answers no more.

use std::time::{Duration, Instant};

use portolan::{Cause, Keepalive, Options};

use crate::harness::*;
use crate::support::{Namespace, ip_batch};
use crate::{addr, on_interfaces};

const KEEPALIVE: Keepalive = Keepalive {
    interval: Duration::from_millis(500),
    timeout: Duration::from_secs(1),
};

#[test]
fn an_idle_connection_to_a_host_that_is_gone_ends_within_the_time_set() {
    on_interfaces("link add tlink type veth peer name tpeer\n", || {
        let peer = Namespace::new();
        ip_batch(&format!("link set tpeer netns {}", peer.thread_id()));
        ip_batch("addr add 10.9.5.1/24 dev tlink\nlink set tlink up");
        peer.ip("addr add 10.9.5.2/24 dev tpeer\nlink set tpeer up");
        let port = free_port();
        let there = peer.run(move || start(port));
        let listener = peer.run(move || listener_on(there, "0.0.0.0:7475"));
        let watchful = Options {
            keepalive: Some(KEEPALIVE),
            ..options()
        };
        let connector = connector_on(start(port)).options(watchful);
        let to = addr("10.9.5.2:7475");
        let (near, far) = pair_at(connector, &listener, to, &options());
        // While it is there it answers.
        let error = near.receive_within(KEEPALIVE.timeout * 3).unwrap_err();
        assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}");

        // From now on whatever it sends goes nowhere, as whatever a dead host does not send.
        peer.ip("route add blackhole 10.9.5.1/32");
        let gone = Instant::now();
        let error = near.receive().unwrap_err();
        let Cause::PeerSilent { after_ms } = error.cause else {
            panic!("{error}");
        };
        let least = KEEPALIVE.interval + KEEPALIVE.timeout;
        assert!(after_ms as u128 >= least.as_millis(), "{error}");
        assert!(gone.elapsed() < PATIENCE, "{:?}", gone.elapsed());
        assert!(error.to_string().contains("10.9.5.2:7475"), "{error}");
        drop((near, far, listener));
        // Before the other end's namespace goes, and the link with it, at a moment of the kernel's.
        ip_batch("link del tlink");
    });
}
