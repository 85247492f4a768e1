//! Kernel machines: a real Debian kernel under qemu, as the peer that tests us.
//!
//! A machine boots a distribution's kernel package with a small generated initramfs, under plain
//! software emulation. So it needs neither RDMA hardware nor virtualisation. Nothing is installed:
//! the kernel package is unpacked into a cache folder.
//!
//! Files, in the order of a run:
//!
//! | file | content |
//! |---|---|
//! | `cache` | the folder for what is slow to make |
//! | `lists` | apt's package lists: the host's or another suite's |
//! | `packages` | Debian packages: installing missing ones, unpacking others |
//! | `kernel` | the kernel of a suite and the load order of its modules |
//! | `image` | the kernel's image, unpacked ahead of boot |
//! | `siw` | the iWARP driver, which Debian's kernels lack: built for one |
//! | `emulator` | qemu, of the same version on every host |
//! | `closure` | a program and the shared libraries it needs |
//! | `tree`, `cpio` | the guest's file tree and its archive |
//! | `initramfs` | the contents of every machine: shell, modules, RDMA programs |
//! | `job` | a run's programs, files, steps and deadline |
//! | `pair` | two machines at once |
//! | `wire` | a machine's network: the wire to another machine, or a tap device of this host |
//! | `host_clock` | the frequency of the host's time-stamp counter, for the machine's clock |
//! | `qemu` | boots, waits with a deadline, brings results back |
//! | `outcome` | the output, status and time of each step |
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
pub use wire::{Tap, Wire};

use emulator::Emulator;
use kernel::Kernel;
use tree::Tree;
use wire::Link;

/// A kernel machine ready to boot: kernel unpacked, base file tree assembled.
///
/// Preparing takes seconds the first time, because packages are fetched, and well under one second
/// afterwards. One prepared machine can run any number of jobs, also at the same time.
#[derive(Debug)]
pub struct Machine {
    emulator: Emulator,
    kernel: Kernel,
    base: Tree,
    cache: Cache,
    shows_host_files: bool,
}

impl Machine {
    /// Prepares a machine: installs missing packages on this host, unpacks the emulator and the
    /// kernel of `suite` into `cache`, and assembles the files that every job starts from.
    ///
    /// # Errors
    /// [`MachineError::Unavailable`] if this host cannot provide a machine (no apt-get, or
    /// packages missing and no root to install them); other variants if a tool fails.
    pub fn prepare(cache: &Cache, suite: Suite) -> Result<Self, MachineError> {
        Self::assemble(cache, suite, |_| Ok(()))
    }

    /// Like [`Machine::prepare`], but also loads the kernel's iWARP driver, siw. Building it takes
    /// half a minute the first time.
    ///
    /// # Errors
    /// As for [`Machine::prepare`]; building needs root.
    pub fn prepare_with_siw(cache: &Cache, suite: Suite) -> Result<Self, MachineError> {
        Self::assemble(cache, suite, |kernel| {
            kernel.add_module(&["siw"], &siw::build(cache, kernel)?)
        })
    }

    /// As [`Machine::prepare`], with the host's files, which steps may mount (not write) as `host` by 9p over virtio: for
    /// programs that open many files of their packages.
    ///
    /// # Errors
    /// As for [`Machine::prepare`].
    pub fn prepare_with_host_files(cache: &Cache, suite: Suite) -> Result<Self, MachineError> {
        let machine = Self::assemble(cache, suite, |kernel| {
            kernel.load_further(&["9pnet_virtio", "9p", "overlay"]);
            Ok(())
        })?;
        Ok(Self {
            shows_host_files: true,
            ..machine
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
            shows_host_files: false,
        })
    }

    /// The kernel's release, as `uname -r` prints it in the machine.
    #[must_use]
    pub fn kernel_release(&self) -> &str {
        &self.kernel.release
    }

    /// Boots a fresh machine, runs the steps of `job` in it and returns their results. The steps'
    /// output is also written to `live` as it appears.
    ///
    /// # Errors
    /// [`MachineError::Deadline`] when the job's deadline passes, [`MachineError::Died`] when the
    /// machine ends before its steps. A failed step is not an error but a status in the
    /// [`Outcome`].
    pub fn run(&self, job: &Job, live: &mut (dyn Write + Send)) -> Result<Outcome, MachineError> {
        qemu::run(self, job, Link::None, live)
    }

    /// As [`Machine::run`], with the machine's interface `eth0` at a tap device of the calling thread's network namespace.
    ///
    /// # Errors
    /// As for [`Machine::run`], and [`MachineError::LeftBehind`] if the machine does not end after [`Tap::leave`].
    pub fn run_at_tap(&self, job: &Job, tap: &Tap) -> Result<Outcome, MachineError> {
        qemu::run(self, job, Link::Tap(tap), &mut std::io::sink())
    }

    /// Boots two fresh machines whose interfaces `eth0` are connected by a wire, and runs a job in
    /// each. When one machine ends, the other has a minute to end.
    ///
    /// # Errors
    /// If the wire cannot be created. For each machine as in [`Machine::run`], and
    /// [`MachineError::LeftBehind`] if it does not end after the other.
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
/// [`MachineError::Unavailable`] if there is no such program, [`MachineError::Command`] if it exits
/// with another status than 0.
pub(crate) fn tool_output(program: &str, arguments: &[&OsStr]) -> Result<String, MachineError> {
    command::output(command::command(program).args(arguments))
}
