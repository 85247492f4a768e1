//! A simulated InfiniBand fabric with a real subnet manager and administrator.
//!
//! `ibsim` simulates switches, cables and ports in its own network namespace (it has one control
//! socket per namespace); OpenSM runs on the first host. A program runs *at* a host through a
//! preloaded library that emulates the user MAD devices and their sysfs files.
//!
//! The library's limits:
//!
//! * it ignores the timeouts of user MADs;
//! * it lacks RMPP (a table's answer ends after its first packet);
//! * a program sees each port in the state of the first look;
//! * at most ten programs may attach at once, including the subnet manager.

mod example;
mod ibacm;
mod process;
pub mod saquery;
mod topology;

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub use example::Example;
pub use ibacm::Ibacm;
pub use topology::{TREE_HOSTS_MAX, Topology};

use crate::machine::{MachineError, Package, Unavailable, ensure_installed};
use process::Process;

/// The packages that a fabric needs.
pub const PACKAGES: [Package; 8] = [
    Package {
        name: "ibsim-utils",
        purpose: "a simulated InfiniBand fabric",
    },
    Package {
        name: "opensm",
        purpose: "a subnet manager and administrator",
    },
    Package {
        name: "infiniband-diags",
        purpose: "an independent client of the subnet administrator",
    },
    Package {
        name: "ibacm",
        purpose: "the path cache daemon",
    },
    Package {
        name: "libibverbs-dev",
        purpose: "headers of the libibverbs substitute",
    },
    Package {
        name: "libibumad-dev",
        purpose: "headers of the libibverbs substitute",
    },
    Package {
        name: "gcc",
        purpose: "the compiler of the libibverbs substitute",
    },
    Package {
        name: "iproute2",
        purpose: "network namespaces",
    },
];

/// Time limit for the simulator to start, and to answer on its console.
const SIMULATOR_TIME_MAX: Duration = Duration::from_secs(30);
/// Time limit for the subnet manager to bring up the whole subnet.
const SUBNET_UP_TIME_MAX: Duration = Duration::from_secs(120);
/// Directories of administrators' tools, which an ordinary user's `PATH` often lacks.
const SBIN_FOLDERS: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// OpenSM's log line after a successful sweep of the subnet.
const SUBNET_UP: &str = "SUBNET UP";
/// The simulator's prompt for the next command.
const PROMPT: &str = "sim> ";

/// A simulated fabric with a subnet manager. Dropping it ends all processes that run on it.
#[derive(Debug)]
pub struct Fabric {
    topology: Topology,
    // The order of the fields is the order of their drops: the subnet manager ends before the
    // fabric.
    manager: Option<Process>,
    console: Option<ChildStdin>,
    simulator: Process,
    folder: Folder,
    preload: PathBuf,
}

impl Fabric {
    /// Installs missing packages, starts the simulator and the subnet manager, and waits until the
    /// whole subnet is up.
    ///
    /// # Errors
    /// [`MachineError::Unavailable`] without root, or if packages are missing and cannot be
    /// installed; otherwise the failed step, with the last output of the process that did not get
    /// ready.
    pub fn start(topology: Topology) -> Result<Self, MachineError> {
        install()?;
        let preload = preload()?;
        let folder = Folder::new()?;
        let net = folder.0.join("net");
        fs::write(&net, topology.to_string()).map_err(MachineError::io("write", &net))?;
        // `unshare` and `setpriv` exec the program that they start, so this process is the
        // simulator itself.
        let mut command = tool("unshare", &folder.0);
        command.args(["--net", "setpriv", "--pdeathsig", "KILL", "ibsim", "-s"]);
        // All its default limits except that of ports far exceed the topologies here.
        command
            .args(["-P", "65536"])
            .arg(&net)
            .stdin(Stdio::piped());
        let mut simulator = Process::start("ibsim", &mut command, &folder.0)?;
        let console = simulator.child.stdin.take();
        simulator.wait_until_printed("the simulator's prompt", SIMULATOR_TIME_MAX, |text| {
            text.contains(PROMPT)
        })?;
        let mut fabric = Self {
            topology,
            manager: None,
            console,
            simulator,
            folder,
            preload,
        };
        if fabric.topology.lacks_guids() {
            let dump = fabric.console("Dump")?;
            fabric.topology.learn_guids(&dump)?;
        }
        let loopback = ["link", "set", "lo", "up"];
        crate::machine::checked(fabric.outside("ip").args(loopback))?;
        fabric.start_manager()?;
        Ok(fabric)
    }

    /// The hosts and cables.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The working directory of all processes on the fabric.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// A command that runs a program at a host.
    #[must_use]
    pub fn at(&self, host: &str, program: impl AsRef<OsStr>) -> Command {
        self.preloaded(&[], host, None, program)
    }

    /// A command that runs a program at a host, with libraries preloaded before the simulator's,
    /// and optionally with its own `/run`.
    fn preloaded(
        &self,
        libraries: &[&Path],
        host: &str,
        run: Option<&Path>,
        program: impl AsRef<OsStr>,
    ) -> Command {
        let mut command = match run {
            None => self.outside("env"),
            Some(run) => {
                let mut command = self.outside("unshare");
                let bind = "mount --bind \"$0\" /run && exec \"$@\"";
                command
                    .args(["--mount", "sh", "-c", bind])
                    .arg(run)
                    .arg("env");
                command
            }
        };
        let mut preload = std::ffi::OsString::from("LD_PRELOAD=");
        for library in libraries {
            preload.push(library);
            preload.push(":");
        }
        preload.push(&self.preload);
        command.arg(preload).arg(format!("SIM_HOST={host}"));
        command.arg(program);
        command
    }

    /// A command that runs a program at a host and lets it receive requests as well as answers; at
    /// most one per host. It also receives the subnet manager's requests.
    #[must_use]
    pub fn serving_at(&self, host: &str, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.at(host, program);
        command.env("SIM_SET_ISSM", "1");
        command
    }

    /// A command that runs a program at a host with the directory `run` as `/run`, so that its
    /// daemons are private.
    #[must_use]
    pub fn at_with_run(&self, host: &str, run: &Path, program: impl AsRef<OsStr>) -> Command {
        self.preloaded(&[], host, Some(run), program)
    }

    /// A command that runs a program in the fabric's network namespace without access to the
    /// fabric. The program is killed when the thread that starts it ends.
    #[must_use]
    pub fn outside(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = tool("nsenter", &self.folder.0);
        let namespace = format!("--net=/proc/{}/ns/net", self.simulator.child.id());
        command.args([namespace.as_str(), "setpriv", "--pdeathsig", "KILL"]);
        command.arg(program);
        command
    }

    /// Starts the subnet manager on the first host and waits until the subnet is up.
    ///
    /// # Errors
    /// OpenSM's last output, if the subnet does not come up.
    pub fn start_manager(&mut self) -> Result<(), MachineError> {
        let folder = &self.folder.0;
        let configuration = folder.join("opensm.conf");
        let log = self.manager_log();
        let mut settings = String::new();
        // A port that goes up or down sends a trap; the sweep each second finds the changes without
        // one.
        for setting in ["force_log_flush TRUE", "sweep_interval 1", "log_flags 0x83"] {
            let _ = writeln!(settings, "{setting}");
        }
        fs::write(&configuration, settings).map_err(MachineError::io("write", &configuration))?;
        let first = self.topology.hosts().next().unwrap_or_default().to_owned();
        let mut command = self.at(&first, "opensm");
        command
            .env("OSM_CACHE_DIR", folder)
            .env("OSM_TMP_DIR", folder);
        command
            .arg("-F")
            .arg(&configuration)
            .arg("-e")
            .arg("-f")
            .arg(&log);
        let mut manager = Process::start("opensm", &mut command, folder)?;
        manager.wait_until(&log, SUBNET_UP, SUBNET_UP_TIME_MAX, |text| {
            text.contains(SUBNET_UP)
        })?;
        self.manager = Some(manager);
        Ok(())
    }

    /// Kills the subnet manager, which leaves the subnet without an administrator.
    pub fn stop_manager(&mut self) {
        self.manager = None;
    }

    /// Sends a command to the simulator's console and returns its output.
    ///
    /// # Errors
    /// The simulator has ended or does not return to its prompt.
    pub fn console(&mut self, command: &str) -> Result<String, MachineError> {
        let before = self.simulator.printed();
        let prompts = |text: &str| text.matches(PROMPT).count();
        let prompts_before = prompts(&before);
        let console = Path::new("the simulator's console");
        let mut input = self
            .console
            .as_ref()
            .ok_or_else(|| MachineError::unexpected("the simulator", "its console is closed"))?;
        writeln!(input, "{command}").map_err(MachineError::io("write to", console))?;
        let what = format!("the prompt after `{command}`");
        self.simulator
            .wait_until_printed(&what, SIMULATOR_TIME_MAX, |text| {
                prompts(text) > prompts_before
            })?;
        let printed = self.simulator.printed();
        Ok(printed.get(before.len()..).unwrap_or_default().to_owned())
    }

    /// The simulator's output; after the console command `Verbose 1` it includes the route of each
    /// packet.
    #[must_use]
    pub fn printed(&self) -> String {
        self.simulator.printed()
    }

    /// Unplugs all cables of a host and waits until the subnet manager notices.
    ///
    /// # Errors
    /// See [`console`](Self::console); also if the subnet manager does not notice.
    pub fn unlink(&mut self, host: &str) -> Result<(), MachineError> {
        self.and_sweep(&format!("Unlink \"{host}\""), "GID out of service")
    }

    /// Plugs a host's cables in again and waits until the subnet manager notices.
    ///
    /// # Errors
    /// See [`console`](Self::console); also if the subnet manager does not notice.
    pub fn relink(&mut self, host: &str) -> Result<(), MachineError> {
        self.and_sweep(&format!("ReLink \"{host}\""), "GID in service")
    }

    /// Makes the simulator drop `percent` of the packets that arrive at a host's ports.
    ///
    /// # Errors
    /// See [`console`](Self::console).
    pub fn drop_arriving(&mut self, host: &str, percent: u8) -> Result<(), MachineError> {
        self.console(&format!("Error \"{host}\" {percent}"))
            .map(drop)
    }

    fn and_sweep(&mut self, command: &str, notice: &str) -> Result<(), MachineError> {
        let log = self.manager_log();
        let seen = fs::read_to_string(&log)
            .map_err(MachineError::io("read", &log))?
            .len();
        self.console(command)?;
        let Some(manager) = &mut self.manager else {
            return Ok(());
        };
        // Wait for the notice, then for the end of the same sweep.
        manager.wait_until(&log, notice, SUBNET_UP_TIME_MAX, |text| {
            let news = text.get(seen..).unwrap_or_default();
            news.split_once(notice)
                .is_some_and(|(_, later)| later.contains(SUBNET_UP))
        })
    }

    fn manager_log(&self) -> PathBuf {
        self.folder.0.join("opensm.log")
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.manager = None;
        if let Some(mut console) = self.console.take()
            && writeln!(console, "Quit").is_ok()
        {
            self.simulator.end();
        }
    }
}

/// Installs the packages that a fabric needs.
///
/// # Errors
/// See [`Fabric::start`].
pub fn install() -> Result<(), MachineError> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if !rustix::process::geteuid().is_root() {
        return Err(MachineError::Unavailable(Unavailable {
            what: "simulated fabric".into(),
            why: "making network namespaces needs root".into(),
        }));
    }
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    ensure_installed(&PACKAGES)
}

/// The library that emulates the user MAD devices.
fn preload() -> Result<PathBuf, MachineError> {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let path = Path::new("/usr/lib")
        .join(triplet)
        .join("umad2sim/libumad2sim.so");
    if path.is_file() {
        return Ok(path);
    }
    Err(MachineError::Unavailable(Unavailable {
        what: path.display().to_string(),
        why: "the package ibsim-utils installs it elsewhere on this machine".into(),
    }))
}

/// A command of this host's tools, run in `folder`.
fn tool(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("LC_ALL", "C")
        .env("PATH", format!("{path}:{SBIN_FOLDERS}"))
        .stdin(Stdio::null())
        .current_dir(folder);
    command
}

/// A directory that is removed on drop.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, MachineError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("portolan-fabric-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Never use an existing directory: its creator could replace the programs that run from it.
        fs::create_dir(&path).map_err(MachineError::io("create", &path))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A leftover in the directory for temporary files is harmless.
        let _ = fs::remove_dir_all(&self.0);
    }
}
