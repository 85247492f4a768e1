//! Connects queue pair 1 of the software devices to the engine.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use portolan_cm::MadPath;
use portolan_roce::io::{DeviceChange, Gsi, ReceivedMad, SoftDevice};
use portolan_wire::addr::Qpn;

use super::core::Core;

/// Passes datagrams and timeouts to the engine.
#[derive(Debug)]
pub(super) struct GsiPort(pub(super) Weak<Core>);

impl Gsi for GsiPort {
    fn mad(&self, received: ReceivedMad<'_>) {
        let Some(core) = self.0.upgrade() else { return };
        // The interface lost the address while the datagram was on its way.
        let Some(device) = core.bound_device(received.local, received.interface) else {
            return;
        };
        let scope_id = match received.remote {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let path = MadPath {
            local: received.local,
            remote: received.remote.ip(),
            scope_id,
            device,
            lids: None,
        };
        let _ = core.run(|cm, now| {
            if core.is_present(&path.device) {
                cm.handle_mad(now, &path, received.mad);
            }
            Ok(())
        });
    }

    fn communication_established(&self, qp: Qpn) {
        if let Some(core) = self.0.upgrade() {
            core.peer_sent_data(qp);
        }
    }

    fn next_timeout(&self) -> Option<Duration> {
        let core = self.0.upgrade()?;
        core.next_timeout()
    }

    fn timeout(&self) {
        let Some(core) = self.0.upgrade() else { return };
        core.timeout();
    }

    fn device_changed(&self, device: &Arc<SoftDevice>, change: DeviceChange) {
        if let Some(core) = self.0.upgrade() {
            core.device_changed(device, change);
        }
    }
}
