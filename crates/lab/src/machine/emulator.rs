//! The emulator of Debian 13, unpacked into the cache instead of installed.
//!
//! So a machine costs and behaves the same on every host. QEMU 10 boots and starts programs in a
//! third of the processor time of QEMU 7.2.

use std::path::PathBuf;
use std::process::Command;

use super::lists::Lists;
use super::packages::unpack;
use super::{Cache, MachineError};

const SUITE: &str = "trixie";
const PACKAGE: &str = "qemu-system-x86";
/// The loader's path in the emulator's folder.
const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const PROGRAM: &str = "usr/bin/qemu-system-x86_64";
const FIRMWARE: [&str; 2] = ["usr/share/qemu", "usr/share/seabios"];

/// An unpacked emulator with all the libraries it needs, libc included.
#[derive(Debug)]
pub(crate) struct Emulator {
    root: PathBuf,
}

impl Emulator {
    /// Returns the emulator in the cache, or unpacks the newest of its suite.
    pub(crate) fn unpack(cache: &Cache) -> Result<Self, MachineError> {
        let lists = Lists::of_suite(cache, SUITE)?;
        let select = |_: &_| lists.with_dependencies(&[PACKAGE]);
        let unpacked = unpack(cache, &lists, PACKAGE, select, |_, _| Ok(()))?;
        Ok(Self {
            root: unpacked.root,
        })
    }

    /// A command that starts it with its own loader, because the host's libraries are of another
    /// system.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(self.root.join(LOADER));
        command
            .arg("--library-path")
            .arg(self.root.join(LIBRARIES))
            .arg(self.root.join(PROGRAM));
        for folder in FIRMWARE {
            command.arg("-L").arg(self.root.join(folder));
        }
        command
    }
}
