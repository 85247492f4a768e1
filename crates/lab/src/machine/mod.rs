//! Kernel machines: a real Debian kernel under qemu, as the peer that judges us.
//!
//! The machine boots a distribution's own kernel package with a small initramfs made on the spot,
//! under plain software emulation, so it needs neither RDMA hardware nor virtualisation. Nothing
//! of it is installed: the kernel package is unpacked into a cache folder.
//!
//! One run goes through these files, top to bottom:
//!
//! | file | job |
//! |---|---|
//! | `cache` | the folder that keeps what is slow to make |
//! | `lists` | where apt looks for packages: the host's lists or another suite's |
//! | `packages` | Debian packages: install what is missing, unpack what must not be installed |
//! | `kernel` | the kernel of a suite and the order its modules load in |
//! | `image` | its image, unpacked ahead |
//! | `siw` | the iWARP driver, which Debian's kernels lack: built for one |
//! | `emulator` | qemu, of one version on every host |
//! | `closure` | a program and the shared libraries it needs |
//! | `tree`, `cpio` | the guest's file tree, and the archive the kernel unpacks it from |
//! | `initramfs` | what every machine carries: shell, modules, RDMA programs |
//! | `job` | what a run is to do: programs, files, steps, deadline |
//! | `pair` | two machines at once, and the wire between them |
//! | `host_clock` | how fast the host's time-stamp counter counts, for the machine's clock |
//! | `qemu` | boot, wait with a deadline, bring results back |
//! | `outcome` | what each step printed, its status and its time |
//!
//! ```no_run
//! use portolan_lab::machine::{Cache, Job, Machine, Step, Suite};
//!
//! let machine = Machine::prepare(&Cache::locate()?, Suite::Bookworm)?;
//! let outcome = machine.run(&Job::new().step(Step::new("version", "uname -r")), &mut std::io::sink())?;
//! assert_eq!(outcome.status, 0);
//! # Ok::<(), portolan_lab::machine::MachineError>(())
//! ```

mod cache;
mod candidate;
mod closure;
mod command;
mod cpio;
mod emulator;
mod error;
mod host_clock;
mod image;
mod initramfs;
mod job;
mod kernel;
mod lists;
mod outcome;
mod packages;
mod pair;
mod qemu;
mod shipped;
mod siw;
mod tree;
mod wire;

use std::ffi::OsStr;
use std::io::Write;

pub use cache::Cache;
pub use error::{MachineError, Unavailable};
pub use job::{Job, OnFailure, Step};
pub use kernel::Suite;
pub use outcome::{Outcome, StepOutcome};
pub use packages::{Package, ensure_installed};
pub(crate) use shipped::{kernel_headers, shipped_text};
pub use wire::Wire;

use emulator::Emulator;
use kernel::Kernel;
use tree::Tree;

/// A kernel machine ready to boot: kernel unpacked, base file tree assembled.
///
/// Preparing takes seconds the first time (packages are fetched) and well under one second
/// afterwards. One prepared machine can run any number of jobs, also at the same time.
#[derive(Debug)]
pub struct Machine {
    emulator: Emulator,
    kernel: Kernel,
    base: Tree,
    cache: Cache,
}

impl Machine {
    /// Installs what is missing on this host, unpacks the emulator and the kernel of `suite` into `cache` and
    /// assembles the files every job of this machine starts from.
    ///
    /// # Errors
    /// [`MachineError::Unavailable`] if this host cannot provide a machine (no apt-get, or
    /// packages missing and no root to install them); other variants if a tool fails.
    pub fn prepare(cache: &Cache, suite: Suite) -> Result<Self, MachineError> {
        Self::assemble(cache, suite, |_| Ok(()))
    }

    /// As [`Machine::prepare`], with the kernel's iWARP driver, siw, loaded as well. Building it takes half a minute
    /// the first time.
    ///
    /// # Errors
    /// As for [`Machine::prepare`]; building needs root.
    pub fn prepare_with_siw(cache: &Cache, suite: Suite) -> Result<Self, MachineError> {
        Self::assemble(cache, suite, |kernel| {
            kernel.add_module(&["siw"], &siw::build(cache, kernel)?)
        })
    }

    fn assemble(
        cache: &Cache,
        suite: Suite,
        extend: impl FnOnce(&mut Kernel) -> Result<(), MachineError>,
    ) -> Result<Self, MachineError> {
        let _lock = cache.lock()?;
        ensure_installed(initramfs::PACKAGES)?;
        let emulator = Emulator::unpack(cache)?;
        let mut kernel = Kernel::unpack(cache, suite)?;
        extend(&mut kernel)?;
        let base = initramfs::base(cache, &kernel)?;
        Ok(Self {
            emulator,
            kernel,
            base,
            cache: cache.clone(),
        })
    }

    /// The kernel's release, as `uname -r` prints it in the machine.
    #[must_use]
    pub fn kernel_release(&self) -> &str {
        &self.kernel.release
    }

    /// Boots a fresh machine, runs the steps of `job` in it and brings their results back. What
    /// the steps print is also written to `live` as it appears.
    ///
    /// # Errors
    /// [`MachineError::Deadline`] when the job's deadline passes, [`MachineError::Died`] when the
    /// machine ends before its steps have; a step that fails is not an error but a status in
    /// the [`Outcome`].
    pub fn run(&self, job: &Job, live: &mut (dyn Write + Send)) -> Result<Outcome, MachineError> {
        qemu::run(self, job, None, live)
    }

    /// Boots two fresh machines whose interfaces `eth0` are the ends of one wire, and runs a job in each. What
    /// they agree upon beside that is theirs; when one has ended the other has a minute to end.
    ///
    /// # Errors
    /// There is no wire. Those of each machine are as for [`Machine::run`], and
    /// [`MachineError::LeftBehind`] when it does not end though the other has.
    pub fn run_pair(
        &self,
        jobs: [&Job; 2],
        wire: Wire,
    ) -> Result<[Result<Outcome, MachineError>; 2], MachineError> {
        pair::run_pair(self, jobs, wire)
    }
}

/// Runs a command to its end and returns what it printed; any status but 0 is an error.
pub(crate) fn checked(command: &mut std::process::Command) -> Result<String, MachineError> {
    command::output(command)
}

/// Runs a tool of this host to its end and returns what it printed.
///
/// # Errors
/// [`MachineError::Unavailable`] if there is no such program, [`MachineError::Command`] if it
/// ends with another status than 0.
pub(crate) fn tool_output(program: &str, arguments: &[&OsStr]) -> Result<String, MachineError> {
    command::output(command::command(program).args(arguments))
}
