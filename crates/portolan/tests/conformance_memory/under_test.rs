//! The providers under test: two members of one port-sharing group, like two processes of a host. Active ends use one,
//! passive ends the other.

use std::net::UdpSocket;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use portolan::provider::local_memory;
use portolan::provider::traits::Provider;
use portolan::software::{SoftwareConfig, SoftwareProvider, Way, WhySocket};
use portolan::wire::Qpn;

/// Time limit for a link.
const PATIENCE: Duration = Duration::from_secs(30);

/// The members: of active ends, of passive ends.
fn members() -> &'static [Arc<SoftwareProvider>; 2] {
    static MEMBERS: OnceLock<[Arc<SoftwareProvider>; 2]> = OnceLock::new();
    MEMBERS.get_or_init(|| {
        let mut config = SoftwareConfig::default();
        config.stack.local_memory = local_memory().unwrap();
        config.stack.group.port = free_port();
        config.stack.group.name_prefix = format!("portolan-conformance-{}", std::process::id());
        [(); 2].map(|()| SoftwareProvider::start(config.clone()).unwrap())
    })
}

/// A free UDP port below the source ports of the kernel and the devices.
fn free_port() -> u16 {
    let first = 10_000 + (std::process::id() % 20_000) as u16;
    let is_free = |port: &u16| {
        UdpSocket::bind(("0.0.0.0", *port)).is_ok() && UdpSocket::bind(("::", *port)).is_ok()
    };
    (first..32_000).find(is_free).unwrap()
}

/// The provider of passive ends, and of everything that has no peer.
pub(crate) fn provider() -> Arc<dyn Provider> {
    members()[1].clone()
}

/// The provider of active ends.
pub(crate) fn active_provider() -> Arc<dyn Provider> {
    members()[0].clone()
}

/// Waits until both queue pairs of a connection, active and passive, send through memory. Fails if they never will.
pub(crate) fn established(qpns: [Qpn; 2]) {
    let deadline = Instant::now() + PATIENCE;
    for (member, qpn) in members().iter().zip(qpns) {
        loop {
            let way = member.way_of(qpn).unwrap();
            if matches!(way, Way::Memory | Way::Rings(_)) {
                break;
            }
            assert_eq!(way, Way::Socket(WhySocket::NotReady));
            assert!(Instant::now() < deadline, "no link through memory");
            std::thread::yield_now();
        }
    }
}
