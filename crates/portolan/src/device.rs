//! Devices of the process's provider.
//!
//! ```
//! for device in portolan::devices()? {
//!     println!("{}: {:?}", device.name(), device.port_attr(1)?.active_mtu);
//! }
//! # Ok::<(), portolan::Error>(())
//! ```

use portolan_threads::ProcessCell;
use portolan_threads::lock::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use portolan_provider::Result;
use portolan_provider::traits::{Device, Pd};
use portolan_provider::verbs::Instance;

/// The devices of the process's provider, by index: of the pinned one ([`provider::pin`](crate::provider::pin)),
/// otherwise the software devices.
///
/// [`provider::kernel_provider`](crate::provider::kernel_provider) has the kernel's devices, and
/// [`provider::towards`](crate::provider::towards) finds the provider of a route.
///
/// ```
/// for device in portolan::devices()? {
///     println!("{}: {} ports", device.name(), device.attr()?.phys_port_cnt);
/// }
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// # Errors
/// The provider cannot start.
pub fn devices() -> Result<Vec<Arc<dyn Device>>> {
    crate::provider::default_provider()?.devices()
}

/// The protection domain that the high layer's connections on a device share, so that a buffer works with all of
/// them. It exists while something uses it.
pub(crate) fn shared_pd(device: &Arc<dyn Device>) -> Result<Arc<dyn Pd>> {
    static DOMAINS: ProcessCell<Mutex<HashMap<Instance, Weak<dyn Pd>>>> = ProcessCell::new();
    let mut domains = DOMAINS.get_or_make(Mutex::default).lock();
    let instance = device.instance();
    if let Some(pd) = domains.get(&instance).and_then(Weak::upgrade) {
        return Ok(pd);
    }
    domains.retain(|_, pd| pd.strong_count() > 0);
    let pd = device.alloc_pd()?;
    domains.insert(instance, Arc::downgrade(&pd));
    Ok(pd)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portolan_provider::verbs::{QpCap, QpInit, QpType};

    use super::*;
    use crate::cm::{CmId, EventChannel, QueuePairPlan};

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn the_shared_domain_lives_as_long_as_a_queue_pair_that_was_made_in_it() {
        let provider = crate::software::own_group::provider();
        let events = EventChannel::open_on(provider).unwrap();
        let id = CmId::new(&events).unwrap();
        id.resolve_addr(None, "127.0.0.1:7471".parse().unwrap(), PATIENCE)
            .unwrap();
        events.next_event_within(PATIENCE).unwrap();
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let plan = QueuePairPlan {
            pd: None,
            send_cq: None,
            recv_cq: None,
            srq: None,
            init: QpInit {
                qp_type: QpType::Rc,
                cap,
                sq_sig_all: false,
            },
        };
        id.create_planned_queue_pair(&plan).unwrap();
        let device = id.device().unwrap();
        let shared = Arc::downgrade(&shared_pd(&device).unwrap());
        assert!(shared.upgrade().is_some(), "each would get its own");
    }
}
