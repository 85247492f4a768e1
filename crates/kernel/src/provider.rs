//! The provider: the rdma_cm device and libibverbs together.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use portolan_abi_layout::Library;
use portolan_provider::traits::{CmChannel, Device, Provider};
use portolan_provider::{Cause, Error, Result, Step};

use crate::listing::{DEVICES, Listing};
use crate::raw::RdmaCmTable;
use crate::rdma_cm::{ConnectionManager, Offers};
use crate::sys::verbs::{Devices, KernelDevice, OpenDevice};

/// Whether the kernel has any RDMA device. This only reads a sysfs folder; opening the provider shows whether the
/// devices are usable.
pub fn has_devices() -> bool {
    Listing::of(Path::new(DEVICES)).is_some_and(|listing| !listing.is_empty())
}

/// The kernel's RDMA devices.
///
/// It belongs to the process that opened it. A forked child is refused, because the ids, queue pairs and their memory
/// are the parent's. Exec closes the descriptors.
#[derive(Debug)]
pub struct KernelProvider {
    cm: Arc<ConnectionManager>,
    devices: Devices,
}

impl KernelProvider {
    /// Opens the rdma_cm device, and loads libibverbs and the drivers of the current devices.
    ///
    /// # Errors
    /// `NoDevice` if the kernel has no rdma_cm device; `UnusableLibrary` if libibverbs is absent, too
    /// old, or Portolan's own; `Unsupported` for a kernel before Linux 5.8.
    pub fn open() -> Result<Arc<Self>> {
        let cm = ConnectionManager::open()?;
        let devices = Devices::load(Library::IBVERBS)?;
        devices.look_ahead();
        Ok(Arc::new(Self { cm, devices }))
    }

    /// The devices of the libibverbs that this process has, whosever it is, for a library of C that stands on it. `table` is
    /// the rdma_cm device of that libibverbs, if it has one of its own.
    ///
    /// # Errors
    /// As for [`KernelProvider::open`], but Portolan's own libibverbs is not refused.
    pub fn of_process(table: Option<&'static RdmaCmTable>) -> Result<Arc<Self>> {
        let cm = match table {
            Some(table) => ConnectionManager::open_in_library(table)?,
            None => ConnectionManager::open()?,
        };
        let devices = Devices::load_any(Library::IBVERBS)?;
        Ok(Arc::new(Self { cm, devices }))
    }

    /// What the running kernel offers beyond the least.
    pub fn offers(&self) -> Offers {
        self.cm.offers()
    }
}

/// Optional features of the running kernel's rdma_cm device; needs no libibverbs.
///
/// # Errors
/// `NoDevice` if the kernel has no rdma_cm device, `Os` without permission to open it, `Unsupported` for a kernel
/// before Linux 5.8.
pub fn kernel_offers() -> Result<Offers> {
    Ok(ConnectionManager::open()?.offers())
}

/// Loads the machine's libibverbs, which stays loaded, and finds all functions that the provider needs.
///
/// # Errors
/// `UnusableLibrary` if it is absent, too old, or Portolan's own.
pub fn check_verbs_library() -> Result<()> {
    Devices::load(Library::IBVERBS).map(drop)
}

fn device(open: Arc<OpenDevice>) -> Arc<dyn Device> {
    Arc::new(KernelDevice(open))
}

impl portolan_provider::sealed::Sealed for KernelProvider {}

impl Provider for KernelProvider {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn devices(&self) -> Result<Vec<Arc<dyn Device>>> {
        self.cm.check_process(Step::OpenDevice)?;
        let devices = self.devices.current()?.into_iter();
        Ok(devices.map(device).collect())
    }

    fn device(&self, index: u32) -> Result<Option<Arc<dyn Device>>> {
        self.cm.check_process(Step::OpenDevice)?;
        Ok(self.devices.find(index)?.map(device))
    }

    fn open_channel(&self) -> Result<Arc<dyn CmChannel>> {
        Ok(Arc::new(self.cm.open_channel()?))
    }

    fn device_of(&self, ip: IpAddr) -> Result<(Arc<dyn Device>, u32)> {
        self.cm.check_process(Step::OpenDevice)?;
        for open in self.devices.current()? {
            // A device that was just removed does not serve the address.
            if let Ok(Some(slot)) = open.slot_of(ip) {
                return Ok((device(open), slot));
            }
        }
        let why = format!("none of the kernel's devices has the address {ip}");
        Err(Error::new(Step::OpenDevice, Cause::NoDevice { why }))
    }
}
