//! The rdma_cm device, `/dev/infiniband/rdma_cm`: connection management by commands that are written
//! to it.
//!
//! * `fields`, `abi`: the kernel's structures as bytes.
//! * `commands`: the numbers of the commands, and where they name the place of the answer.
//! * `address`, `attr`, `event`, `param`: their contents as the types of the provider's interface.
//! * `to_c`: address vectors and queue pairs' attributes as libibverbs has them, for the C libraries.
//! * `query`: what the kernel knows of an id.
//! * `ib_service`: services of the subnet administrator, by the kernel.
//! * `offers`: what the running kernel knows of the ABI, found by asking it.
//! * `ids`: what the kernel does not tell with an event.
//! * `channel`: an event channel, one open descriptor.

#[allow(missing_docs, reason = "the kernel's header says what the fields are")]
pub(crate) mod abi;
mod address;
mod attr;
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
use crate::sys::rdma_cm::Channel;

/// The device that udev names so; it is one of class `misc`.
const DEVICE: &str = "/dev/infiniband/rdma_cm";
/// Its ABI's number in sysfs.
const ABI_VERSION: &str = "/sys/class/misc/rdma_cm/abi_version";
/// The versions there have been since Linux 2.6.2x; the second adds to the first.
const ABI_VERSIONS: std::ops::RangeInclusive<u32> = 3..=4;

/// The kernel's connection manager.
#[derive(Debug)]
pub(crate) struct ConnectionManager {
    device: PathBuf,
    offers: Offers,
    ids: Ids,
    fork: ForkGuard,
}

impl ConnectionManager {
    /// Looks for the device, and asks it what it offers.
    ///
    /// # Errors
    /// `NoDevice` if it is not there; `Unsupported` if its ABI is none that is spoken here.
    pub(crate) fn open() -> Result<Arc<Self>> {
        check_abi_version(Path::new(ABI_VERSION))?;
        let device = PathBuf::from(DEVICE);
        let offers = Offers::ask(&open_device(&device)?)?;
        Ok(Arc::new(Self {
            device,
            offers,
            ids: Ids::default(),
            fork: ForkGuard::new()?,
        }))
    }

    /// What the running kernel offers.
    pub(crate) fn offers(&self) -> Offers {
        self.offers
    }

    pub(crate) fn open_channel(self: &Arc<Self>) -> Result<KernelChannel> {
        self.check_process(Step::OpenChannel)?;
        Ok(KernelChannel::new(self.clone(), open_device(&self.device)?))
    }

    /// Fails in a process that was forked off since: descriptors and ids are its parent's, and its
    /// locks may have been held at the fork.
    pub(crate) fn check_process(&self, step: Step) -> Result<()> {
        self.fork.check(step)
    }
}

/// Opens the rdma_cm device, after a look at the version of its ABI: an event channel.
///
/// # Errors
/// `NoDevice` if the device is not there; `InvalidArgument` if its ABI is none that is spoken here.
pub fn open() -> Result<Channel> {
    check_abi_version(Path::new(ABI_VERSION))?;
    open_device(Path::new(DEVICE))
}

fn open_device(path: &Path) -> Result<Channel> {
    let opened = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    opened.map(Channel::new).map_err(|errno| {
        let path = path.display();
        let why = match errno {
            Errno::NOENT => format!("there is no {path}; load the kernel module rdma_ucm"),
            Errno::NXIO | Errno::NODEV => {
                format!("nothing is behind {path}; load the kernel module rdma_ucm")
            }
            _ => return refused(Step::OpenChannel, "open /dev/infiniband/rdma_cm", errno),
        };
        Error::new(Step::OpenChannel, Cause::NoDevice { why })
    })
}

/// Without the file, which an old kernel or a container may hide, the device itself has to show.
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
    fn a_machine_without_the_device_is_told_what_to_load() {
        let error = open_device(Path::new("/nonexistent/rdma_cm")).unwrap_err();
        assert!(matches!(error.cause, Cause::NoDevice { .. }), "{error}");
        assert!(error.to_string().contains("rdma_ucm"), "{error}");
    }

    #[test]
    fn an_abi_that_is_not_spoken_here_is_refused_and_an_absent_file_is_not() {
        let path = std::env::temp_dir().join(format!("portolan-abi-{}", std::process::id()));
        for (text, accepted) in [("3\n", true), ("4\n", true), ("5\n", false), ("x", false)] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(check_abi_version(&path).is_ok(), accepted, "{text:?}");
        }
        std::fs::remove_file(&path).unwrap();
        check_abi_version(&path).unwrap();
    }
}
