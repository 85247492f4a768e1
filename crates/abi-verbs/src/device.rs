//! The list of devices. Listing starts nothing: the software provider starts when the first device is opened.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use once_cell::race::OnceBox;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use portolan_provider::traits::Device as ProviderDevice;
use rustix::io::Errno;

use crate::guard::{Result, errno_of};
use crate::layout::{self, Device, DeviceOps, TRANSPORT_IB, malloc_list};
use crate::object::{Kind, make_lasting, own};
use crate::provider::{provider, started};

/// `IBV_NODE_CA`, as rdma_rxe reports.
const NODE_CA: c_int = 1;

/// A device in C's format. It is never freed once listed, because programs compare its address and use it after they
/// free the list.
#[repr(C)]
pub(crate) struct OwnDevice {
    /// libibverbs's drivers keep their function table here and recognize their devices by it.
    driver: *const c_void,
    facts: Facts,
}

/// The properties of a device that is not open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    name: String,
    index: u32,
    /// Host order.
    node_guid: u64,
}

impl Kind for Device {
    type Whole = Self;
    type Own = OwnDevice;
}

/// A device's address, which stays valid.
#[derive(Clone, Copy)]
struct Listed(*mut Device);

// SAFETY: it is written before it is listed, and never again.
unsafe impl Send for Listed {}
// SAFETY: as above.
unsafe impl Sync for Listed {}

/// Devices that were listed, by this process or its ancestors. It only grows, and has no lock that could stay locked in a
/// forked child.
#[derive(Default)]
struct Devices {
    first: OnceBox<Node>,
}

struct Node {
    device: Listed,
    next: OnceBox<Node>,
}

static LISTED: Devices = Devices {
    first: OnceBox::new(),
};

/// The current devices.
///
/// # Errors
/// The system's error when listing its interfaces.
pub(crate) fn list() -> Result<Vec<*mut Device>> {
    let found = match started() {
        Some(provider) => {
            let devices = provider.devices().map_err(|error| errno_of(&error))?;
            devices
                .iter()
                .map(|device| facts(&**device))
                .collect::<Result<Vec<_>>>()?
        }
        None => {
            let previews = portolan_roce::io::preview().map_err(|error| errno_of(&error))?;
            let facts = previews.into_iter().map(|preview| Facts {
                name: preview.name,
                index: preview.interface_index,
                node_guid: preview.node_guid,
            });
            facts.collect()
        }
    };
    Ok(found.into_iter().map(|facts| LISTED.find(facts)).collect())
}

fn facts(device: &dyn ProviderDevice) -> Result<Facts> {
    let attr = device.attr().map_err(|error| errno_of(&error))?;
    Ok(Facts {
        name: device.name().into(),
        index: device.index(),
        node_guid: attr.node_guid,
    })
}

impl Devices {
    /// The device of these facts, listed from here on.
    fn find(&self, facts: Facts) -> *mut Device {
        let mut place = &self.first;
        loop {
            // Of two threads that list one, one's stays. The other's memory is lost, once for each device.
            let node = place.get_or_init(|| {
                let device = Listed(make_device(facts.clone()));
                let next = OnceBox::new();
                Box::new(Node { device, next })
            });
            // SAFETY: a device of the list lives.
            if unsafe { own(node.device.0) }.is_ok_and(|device| device.facts == facts) {
                return node.device.0;
            }
            place = &node.next;
        }
    }
}

fn make_device(facts: Facts) -> *mut Device {
    let whole = Device {
        _ops: DeviceOps::zeroed(),
        node_type: NODE_CA,
        transport_type: TRANSPORT_IB,
        name: text(&facts.name),
        dev_name: text(&format!("uverbs{}", facts.index)),
        dev_path: text(&format!(
            "/sys/class/infiniband_verbs/uverbs{}",
            facts.index
        )),
        ibdev_path: text(&format!("/sys/class/infiniband/{}", facts.name)),
    };
    let driver = std::ptr::null();
    make_lasting(whole, OwnDevice { driver, facts })
}

/// A text in a C array, truncated if necessary.
pub(crate) fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut into = [0; N];
    for (to, from) in into[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    into
}

/// Creates a list for a program; returns it and its length.
pub(crate) fn give_list(devices: Vec<*mut Device>) -> (*mut *mut Device, c_int) {
    let count = c_int::try_from(devices.len()).unwrap_or(c_int::MAX);
    (malloc_list(devices), count)
}

/// Frees a list.
///
/// # Safety
/// It is null, or from [`give_list`] and not freed yet.
pub(crate) unsafe fn take_list(list: *mut *mut Device) {
    // SAFETY: the list is from malloc and not used afterwards.
    unsafe { layout::free(list) };
}

impl OwnDevice {
    /// Number of the device.
    pub(crate) fn index(&self) -> u32 {
        self.facts.index
    }

    /// Node GUID, network order.
    pub(crate) fn guid(&self) -> u64 {
        debug_assert!(self.driver.is_null());
        self.facts.node_guid.to_be()
    }

    /// The device itself; starts the provider.
    ///
    /// # Errors
    /// `ENODEV` if it was removed; errors of starting the provider.
    pub(crate) fn open(&self) -> Result<Arc<dyn ProviderDevice>> {
        let found = provider()?.device(self.facts.index);
        let found = found.map_err(|error| errno_of(&error))?;
        // Another interface may have its number by now, so compare the names.
        let found = found.filter(|device| device.name() == self.facts.name);
        found.ok_or(Errno::NODEV)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_listed_twice_is_the_same_one_and_a_text_ends_with_a_nul() {
        let listed = Devices::default();
        let facts = |index| Facts {
            name: format!("sw_test{index}"),
            index,
            node_guid: 7,
        };
        let first = listed.find(facts(1));
        let other = listed.find(facts(2));
        assert_ne!(first, other);
        assert_eq!(listed.find(facts(1)), first);
        // SAFETY: a device that was just made.
        assert_eq!(unsafe { own(first) }.unwrap().guid(), 7u64.to_be());
        assert_eq!(text::<4>("abcdef").map(|c| c as u8), *b"abc\0");
    }
}
