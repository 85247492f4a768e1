//! The devices that programs hold.

use std::fmt;
use std::sync::Arc;

use portolan_threads::lock::Mutex;

use crate::io::host::Host;
use crate::io::host::device::DeviceCore;
use crate::io::verbs::device::SoftDevice;

/// One handle for each device. Programs compare devices by their handles, for example to keep one protection domain
/// for each.
pub(crate) struct Devices {
    host: Arc<Host>,
    handles: Mutex<Vec<Arc<SoftDevice>>>,
}

impl Devices {
    pub(crate) fn new(host: Arc<Host>) -> Self {
        let handles = Mutex::default();
        Self { host, handles }
    }

    /// The handle of a device.
    pub(crate) fn handle(&self, core: &Arc<DeviceCore>) -> Arc<SoftDevice> {
        let mut handles = self.handles.lock();
        let known = handles
            .iter()
            .find(|handle| Arc::ptr_eq(handle.core(), core));
        if let Some(known) = known {
            return Arc::clone(known);
        }
        handles.retain(|handle| !handle.core().is_removed());
        let handle = Arc::new(SoftDevice::new(Arc::clone(core), Arc::clone(&self.host)));
        handles.push(Arc::clone(&handle));
        handle
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Devices").finish_non_exhaustive()
    }
}
