//! A peer that disappears with its host: the only sign is that it stops answering.

use std::time::{Duration, Instant};

use portolan::{Cause, Keepalive};

use crate::harness::*;
use crate::support::{Namespace, ip_batch};
use crate::{addr, on_interfaces};

const KEEPALIVE: Keepalive = Keepalive::new(Duration::from_millis(500), Duration::from_secs(1));

#[test]
fn an_idle_connection_to_a_lost_host_ends_within_the_time_limit() {
    on_interfaces("link add tlink type veth peer name tpeer\n", || {
        let peer = Namespace::new();
        ip_batch(&format!("link set tpeer netns {}", peer.thread_id()));
        ip_batch("addr add 10.9.5.1/24 dev tlink\nlink set tlink up");
        peer.ip("addr add 10.9.5.2/24 dev tpeer\nlink set tpeer up");
        let port = free_port();
        let there = peer.run(move || start(port));
        let listener = peer.run(move || listener_on(there, "0.0.0.0:7475"));
        let watchful = options().keepalive(Some(KEEPALIVE));
        let connector = connector_on(start(port)).options(watchful);
        let to = addr("10.9.5.2:7475");
        let (near, far) = pair_at(connector, &listener, to, &options());
        // While its host is reachable, it answers.
        let error = near.receive_within(KEEPALIVE.timeout * 3).unwrap_err();
        assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}");

        // From here on everything it sends is lost, as with a dead host.
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
        // Deletes the link now; otherwise the kernel deletes it some time after the other end's namespace is
        // gone.
        ip_batch("link del tlink");
    });
}
