//! A provider for a test, in a group of its own: other processes of the machine do not matter to it.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use super::{SoftwareConfig, SoftwareProvider};

/// Longer than it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A provider in its own group.
pub(crate) fn provider() -> Arc<SoftwareProvider> {
    let free = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let mut config = SoftwareConfig::default();
    config.stack.group.port = free.local_addr().unwrap().port();
    config.stack.group.name_prefix = format!("portolan-unit-test-{}", std::process::id());
    config.stack.group.join_timeout = PATIENCE;
    drop(free);
    SoftwareProvider::start(config).unwrap()
}
