//! Open devices, shared by the ids bound to them.
//!
//! They stay open until the process ends. A removed device is closed once no id uses it and another device is looked
//! up.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use portolan_threads::lock::Mutex;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use crate::fork::Known;
use crate::guard::{Result, last_errno, made};
use crate::layout::{Context, DeviceAttr, MAX_RESOURCES, Pd, Xrcd};
use crate::verbs::{close_xrcd, open_xrcd, verbs};

/// The kernel's value for a device without an index.
pub(crate) const NO_INDEX: u32 = u32::MAX;
/// Maximum of open devices: more than any machine has.
const DEVICES_MAX: usize = 1024;

/// An open device.
pub(crate) struct Device {
    pub(crate) context: *mut Context,
    /// Big-endian.
    guid: u64,
    /// The kernel's index of the device; `None` with kernels before 5.1.
    index: Option<u32>,
    pub(crate) transport: c_int,
    /// Maximum of outstanding RDMA reads and atomics as initiator.
    pub(crate) initiator_depth_max: u8,
    /// Maximum of outstanding RDMA reads and atomics as responder.
    pub(crate) responder_resources_max: u8,
    domain: Mutex<Domain>,
    /// `rdma_get_devices` has returned it, so the program may use it at any time.
    given_away: AtomicBool,
}

/// The domains for ids whose program passes none.
struct Domain {
    pd: *mut Pd,
    /// The domain of extended connections, opened when first needed.
    xrcd: *mut Xrcd,
    users: usize,
}

// SAFETY: contexts and protection domains of libibverbs may be used by any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

static DEVICES: Known<Mutex<Vec<Arc<Device>>>> = Known::new();

/// Finds a device by the kernel's GUID and index, and opens it if necessary.
///
/// # Errors
/// `ENODEV` if libibverbs has no such device; those of opening it.
pub(crate) fn find(guid: u64, index: u32) -> Result<Arc<Device>> {
    let is_it = |number: Option<u32>, its_guid: u64| match number {
        Some(number) if index != NO_INDEX => number == index,
        _ => its_guid == guid,
    };
    let mut devices = DEVICES.get().lock();
    let open = devices.iter().find(|open| is_it(open.index, open.guid));
    if let Some(open) = open {
        return Ok(open.clone());
    }
    let listed = list(|_, index, guid| Some((index, guid)))?;
    devices.retain(|open| open.is_in_use() || is_listed((open.index, open.guid), &listed));
    if devices.len() >= DEVICES_MAX {
        return Err(Errno::NFILE);
    }
    let device = open_listed(is_it)?;
    devices.push(device.clone());
    Ok(device)
}

/// Opens all devices, in libibverbs's order.
///
/// # Errors
/// `ENODEV` if there is no device; those of opening.
pub(crate) fn all() -> Result<Vec<Arc<Device>>> {
    let names = list(|_, index, guid| Some((index, guid)))?;
    let found: Vec<_> = names
        .into_iter()
        .filter_map(|(index, guid)| find(guid, index.unwrap_or(NO_INDEX)).ok())
        .inspect(|device| device.given_away.store(true, Ordering::Release))
        .collect();
    if found.is_empty() {
        return Err(Errno::NODEV);
    }
    Ok(found)
}

/// Whether the device still exists, and not another one with the same GUID.
fn is_listed(device: (Option<u32>, u64), listed: &[(Option<u32>, u64)]) -> bool {
    listed.contains(&device)
}

fn open_listed(is_it: impl Fn(Option<u32>, u64) -> bool) -> Result<Arc<Device>> {
    let opened = list(|device, index, guid| {
        // SAFETY: a device of the list, which is still there.
        is_it(index, guid).then(|| made(unsafe { (verbs()?.open_device)(device) }))
    })?;
    let context = opened.into_iter().next().ok_or(Errno::NODEV)??;
    describe(context).map(Arc::new)
}

/// Calls `each` with libibverbs's devices, their indexes and GUIDs, and returns the results.
fn list<T>(
    mut each: impl FnMut(*mut crate::layout::Device, Option<u32>, u64) -> Option<T>,
) -> Result<Vec<T>> {
    let verbs = verbs()?;
    let mut count: c_int = 0;
    // SAFETY: the count is written.
    let devices = made(unsafe { (verbs.get_device_list)(&mut count) })?;
    let mut found = Vec::new();
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` devices until it is freed.
        let (device, index, guid) = unsafe {
            let device = *devices.add(at);
            let index = (verbs.get_device_index)(device);
            (device, index, (verbs.get_device_guid)(device))
        };
        found.extend(each(device, u32::try_from(index).ok(), guid));
    }
    // SAFETY: the list comes from `get_device_list`.
    unsafe { (verbs.free_device_list)(devices) };
    Ok(found)
}

fn describe(context: *mut Context) -> Result<Device> {
    let verbs = verbs()?;
    let mut attr = DeviceAttr::zeroed();
    // SAFETY: an open device, and a structure to write to.
    if unsafe { (verbs.query_device)(context, &mut attr) } != 0 {
        let errno = last_errno();
        // SAFETY: no other code has seen it yet.
        unsafe { (verbs.close_device)(context) };
        return Err(errno);
    }
    // SAFETY: an open device refers to its own entry.
    let (device, transport, index) = unsafe {
        let device = (*context).device;
        let index = (verbs.get_device_index)(device);
        (device, (*device).transport_type, index)
    };
    Ok(Device {
        context,
        // SAFETY: as above.
        guid: unsafe { (verbs.get_device_guid)(device) },
        index: u32::try_from(index).ok(),
        transport,
        initiator_depth_max: byte(attr.max_qp_init_rd_atom),
        responder_resources_max: byte(attr.max_qp_rd_atom),
        domain: Mutex::new(Domain {
            pd: std::ptr::null_mut(),
            xrcd: std::ptr::null_mut(),
            users: 0,
        }),
        given_away: AtomicBool::new(false),
    })
}

/// Limits a count to the parameter's range.
fn byte(count: c_int) -> u8 {
    u8::try_from(count.max(0)).unwrap_or(MAX_RESOURCES)
}

impl Device {
    /// Whether there are references besides the table's. Call it with the table locked.
    fn is_in_use(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1 || self.given_away.load(Ordering::Acquire)
    }

    /// The protection domain for one more id.
    ///
    /// # Errors
    /// Those of allocating one.
    pub(crate) fn use_domain(&self) -> Result<*mut Pd> {
        let mut domain = self.domain.lock();
        if domain.pd.is_null() {
            // SAFETY: an open device.
            domain.pd = made(unsafe { (verbs()?.alloc_pd)(self.context) })?;
        }
        domain.users += 1;
        Ok(domain.pd)
    }

    /// The domain of extended connections, for an id that uses the protection domain.
    ///
    /// # Errors
    /// Those of opening it.
    pub(crate) fn use_xrcd(&self) -> Result<*mut Xrcd> {
        let mut domain = self.domain.lock();
        if domain.xrcd.is_null() {
            // SAFETY: an open device.
            domain.xrcd = unsafe { open_xrcd(self.context) }?;
        }
        Ok(domain.xrcd)
    }

    /// An id stops using the domains. The last one frees them, unless the program still has objects in them.
    pub(crate) fn leave_domain(&self) {
        let mut domain = self.domain.lock();
        domain.users -= 1;
        let Ok(verbs) = verbs() else { return };
        if domain.users > 0 {
            return;
        }
        // SAFETY: `use_domain` allocated it, and no id uses it any more.
        if unsafe { (verbs.dealloc_pd)(domain.pd) } == 0 {
            domain.pd = std::ptr::null_mut();
        }
        // SAFETY: `use_xrcd` opened it, and no id uses it any more.
        if !domain.xrcd.is_null() && unsafe { close_xrcd(domain.xrcd) }.is_ok() {
            domain.xrcd = std::ptr::null_mut();
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: it was opened by this library; no id has it, and no program was given it for longer.
            unsafe { (verbs.close_device)(self.context) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_exists_while_its_number_and_guid_are_listed() {
        let listed = [(Some(1), 7), (Some(2), 8), (None, 9)];
        assert!(is_listed((Some(2), 8), &listed));
        assert!(is_listed((None, 9), &listed));
        // Created again: the same GUID under another number.
        assert!(!is_listed((Some(0), 7), &listed));
        assert!(!is_listed((Some(2), 7), &listed));
    }
}
