//! The rdma_cm device, `/dev/infiniband/rdma_cm`: connection management by commands written to it.
//!
//! * `fields`, `abi`: the kernel's structures as bytes.
//! * `commands`: numbers of the commands, and their response address fields.
//! * `address`, `attr`, `event`, `param`: conversion to the types of the provider's interface.
//! * `to_c`: address vectors and queue pair attributes as libibverbs structures, for the C libraries.
//! * `query`: queries of an id's state.
//! * `ib_service`: services of the subnet administrator, through the kernel.
//! * `offers`: optional features of the running kernel, determined by probing.
//! * `ids`: data that the kernel does not report with an event.
//! * `channel`: an event channel, one open descriptor.

#[allow(missing_docs, reason = "the kernel's header documents the fields")]
pub(crate) mod abi;
mod address;
pub(crate) mod attr;
pub(crate) mod channel;
mod commands;
mod event;
pub(crate) mod fields;
mod ib_service;
mod ids;
mod offers;
pub(crate) mod param;
mod query;
mod to_c;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use portolan_provider::{Cause, Error, Result, Step};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use self::channel::KernelChannel;
pub use self::ib_service::{IbServiceKey, ib_services};
use self::ids::Ids;
pub use self::offers::Offers;
use crate::error::refused;
use crate::sys::fork::ForkGuard;
use crate::sys::rdma_cm::{Channel, RdmaCmTable};

/// The name that udev gives the device, which is one of class `misc`.
const DEVICE: &str = "/dev/infiniband/rdma_cm";
/// The sysfs file with its ABI version.
const ABI_VERSION: &str = "/sys/class/misc/rdma_cm/abi_version";
/// The versions since Linux 2.6.2x; the second extends the first.
const ABI_VERSIONS: std::ops::RangeInclusive<u32> = 3..=4;

/// The kernel's connection manager.
#[derive(Debug)]
pub(crate) struct ConnectionManager {
    source: Source,
    offers: Offers,
    ids: Ids,
    fork: ForkGuard,
}

/// Whose rdma_cm device it is.
#[derive(Debug)]
enum Source {
    /// The kernel's, at this path.
    Kernel(PathBuf),
    /// A library's.
    Library(&'static RdmaCmTable),
}

impl Source {
    fn open(&self) -> Result<Channel> {
        match self {
            Self::Kernel(device) => open_device(device),
            Self::Library(table) => Channel::open_in_library(table)
                .map_err(|errno| refused(Step::OpenChannel, "rdma_cm", errno)),
        }
    }
}

impl ConnectionManager {
    /// Opens the device and probes its features.
    ///
    /// # Errors
    /// `NoDevice` if it does not exist; `Unsupported` for an unknown ABI.
    pub(crate) fn open() -> Result<Arc<Self>> {
        check_abi_version(Path::new(ABI_VERSION))?;
        Self::of_source(Source::Kernel(DEVICE.into()))
    }

    /// Asks a library's device what it offers.
    ///
    /// # Errors
    /// As for [`ConnectionManager::open`]; the library's.
    pub(crate) fn open_in_library(table: &'static RdmaCmTable) -> Result<Arc<Self>> {
        Self::of_source(Source::Library(table))
    }

    fn of_source(source: Source) -> Result<Arc<Self>> {
        let offers = Offers::ask(&source.open()?)?;
        Ok(Arc::new(Self {
            source,
            offers,
            ids: Ids::default(),
            fork: ForkGuard::new(),
        }))
    }

    /// Optional features of the running kernel.
    pub(crate) fn offers(&self) -> Offers {
        self.offers
    }

    pub(crate) fn open_channel(self: &Arc<Self>) -> Result<KernelChannel> {
        self.check_process(Step::OpenChannel)?;
        Ok(KernelChannel::new(self.clone(), self.source.open()?))
    }

    /// Fails in a forked child: descriptors and ids are the parent's, and a lock may have been held at the fork.
    pub(crate) fn check_process(&self, step: Step) -> Result<()> {
        self.fork.check(step)
    }
}

/// Opens the rdma_cm device as an event channel, after checking its ABI version.
///
/// # Errors
/// `NoDevice` if the device does not exist; `InvalidArgument` for an unknown ABI.
pub fn open() -> Result<Channel> {
    check_abi_version(Path::new(ABI_VERSION))?;
    open_device(Path::new(DEVICE))
}

fn open_device(path: &Path) -> Result<Channel> {
    let opened = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    opened.map(Channel::new).map_err(|errno| {
        let path = path.display();
        let why = match errno {
            Errno::NOENT => format!("{path} does not exist; load the kernel module rdma_ucm"),
            Errno::NXIO | Errno::NODEV => {
                format!("{path} has no driver; load the kernel module rdma_ucm")
            }
            _ => return refused(Step::OpenChannel, "open /dev/infiniband/rdma_cm", errno),
        };
        Error::new(Step::OpenChannel, Cause::NoDevice { why })
    })
}

/// The file may be missing on an old kernel or in a container; then the device itself must show its version.
fn check_abi_version(path: &Path) -> Result<()> {
    let Ok(text) = std::fs::read_to_string(path) else {
        return Ok(());
    };
    match text.trim().parse::<u32>() {
        Ok(version) if ABI_VERSIONS.contains(&version) => Ok(()),
        _ => Err(Error::invalid(
            Step::OpenChannel,
            "ABI version of the kernel's rdma_cm",
            format_args!("{} to {}", ABI_VERSIONS.start(), ABI_VERSIONS.end()),
            text.trim(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_device_gets_a_hint_what_to_load() {
        let error = open_device(Path::new("/nonexistent/rdma_cm")).unwrap_err();
        assert!(matches!(error.cause, Cause::NoDevice { .. }), "{error}");
        assert!(error.to_string().contains("rdma_ucm"), "{error}");
    }

    #[test]
    fn an_unsupported_abi_is_refused_and_an_absent_file_is_not() {
        let path = std::env::temp_dir().join(format!("portolan-abi-{}", std::process::id()));
        for (text, accepted) in [("3\n", true), ("4\n", true), ("5\n", false), ("x", false)] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(check_abi_version(&path).is_ok(), accepted, "{text:?}");
        }
        std::fs::remove_file(&path).unwrap();
        check_abi_version(&path).unwrap();
    }
}
