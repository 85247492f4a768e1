//! The emulator: Debian 13's, unpacked and never installed, whatever this host's system is.
//!
//! A machine then costs and behaves the same on every host. Booting and starting programs take QEMU 10 a third of the
//! processor time that QEMU 7.2 took.

use std::path::PathBuf;
use std::process::Command;

use super::lists::Lists;
use super::packages::unpack;
use super::{Cache, MachineError};

const SUITE: &str = "trixie";
const PACKAGE: &str = "qemu-system-x86";
/// Below the folder it is unpacked into.
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
    /// The one in the cache if there is one, else the newest of its suite.
    pub(crate) fn unpack(cache: &Cache) -> Result<Self, MachineError> {
        let lists = Lists::of_suite(cache, SUITE)?;
        let select = |_: &_| lists.with_dependencies(&[PACKAGE]);
        let unpacked = unpack(cache, &lists, PACKAGE, select, |_, _| Ok(()))?;
        Ok(Self {
            root: unpacked.root,
        })
    }

    /// Starts it, by its own loader: this host's libraries are another system's.
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
