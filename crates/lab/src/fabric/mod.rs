//! An InfiniBand fabric that is simulated, and a real subnet manager and administrator on it.
//!
//! `ibsim` simulates switches, cables and ports in a network namespace of its own (its control socket is one
//! per namespace); OpenSM runs on the first host. Programs run *at* a host by a library that is loaded before
//! all others and stands for the user MAD devices and their files in sysfs.
//!
//! What that library does not do: it ignores the time-outs of user MADs, has no RMPP (a table's answer ends
//! after its first packet), shows a port as it was when the program first looked, and lets ten programs at
//! once attach, the subnet manager among them.

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

/// What a fabric needs.
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
        purpose: "asking the subnet administrator by another program",
    },
    Package {
        name: "ibacm",
        purpose: "the daemon that keeps paths",
    },
    Package {
        name: "libibverbs-dev",
        purpose: "headers of what stands for libibverbs",
    },
    Package {
        name: "libibumad-dev",
        purpose: "headers of what stands for libibverbs",
    },
    Package {
        name: "gcc",
        purpose: "the compiler of what stands for libibverbs",
    },
    Package {
        name: "iproute2",
        purpose: "network namespaces",
    },
];

/// How long the simulator may take to start, and to answer at its console.
const SIMULATOR_TIME_MAX: Duration = Duration::from_secs(30);
/// How long the subnet manager may take to have the whole subnet up.
const SUBNET_UP_TIME_MAX: Duration = Duration::from_secs(120);
/// Where administrators' tools live; an ordinary user's `PATH` often lacks these folders.
const SBIN_FOLDERS: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// What OpenSM writes to its log when a sweep of the subnet is over and all is well.
const SUBNET_UP: &str = "SUBNET UP";
/// The simulator's prompt: it waits for the next command.
const PROMPT: &str = "sim> ";

/// A simulated fabric with a subnet manager; gone with everything that runs on it when dropped.
#[derive(Debug)]
pub struct Fabric {
    topology: Topology,
    // Dropped in this order: the subnet manager leaves while there is a fabric.
    manager: Option<Process>,
    console: Option<ChildStdin>,
    simulator: Process,
    folder: Folder,
    preload: PathBuf,
}

impl Fabric {
    /// Installs what is missing, starts the simulator and the subnet manager, and waits until the
    /// whole subnet is up.
    ///
    /// # Errors
    /// [`MachineError::Unavailable`] without root, or if packages are missing that cannot be installed;
    /// what else went wrong, with the last words of whom it was waited for.
    pub fn start(topology: Topology) -> Result<Self, MachineError> {
        install()?;
        let preload = preload()?;
        let folder = Folder::new()?;
        let net = folder.0.join("net");
        fs::write(&net, topology.to_string()).map_err(MachineError::io("write", &net))?;
        // `unshare` and `setpriv` become what they start, so the process is the simulator itself.
        let mut command = tool("unshare", &folder.0);
        command.args(["--net", "setpriv", "--pdeathsig", "KILL", "ibsim", "-s"]);
        // Its own bounds are far above any topology here but for ports.
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

    /// Hosts and cables.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The working folder of whatever runs on the fabric.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// A program that is to run at a host.
    #[must_use]
    pub fn at(&self, host: &str, program: impl AsRef<OsStr>) -> Command {
        self.preloaded(&[], host, None, program)
    }

    /// A program at a host with libraries before the simulator's, and with `/run` of its own if one is given.
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

    /// A program that is to run at a host and takes requests there, not answers alone: one at each host. The
    /// subnet manager's own questions come to it as well.
    #[must_use]
    pub fn serving_at(&self, host: &str, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.at(host, program);
        command.env("SIM_SET_ISSM", "1");
        command
    }

    /// A program that is to run at a host, where `/run` is the folder `run`: daemons there are nobody else's.
    #[must_use]
    pub fn at_with_run(&self, host: &str, run: &Path, program: impl AsRef<OsStr>) -> Command {
        self.preloaded(&[], host, Some(run), program)
    }

    /// A program in the fabric's network namespace that sees nothing of the fabric. It is killed when
    /// the thread that starts it ends.
    #[must_use]
    pub fn outside(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = tool("nsenter", &self.folder.0);
        let namespace = format!("--net=/proc/{}/ns/net", self.simulator.child.id());
        command.args([namespace.as_str(), "setpriv", "--pdeathsig", "KILL"]);
        command.arg(program);
        command
    }

    /// Starts the subnet manager on the first host, and waits until the subnet is up.
    ///
    /// # Errors
    /// What OpenSM said last, if it does not come to it.
    pub fn start_manager(&mut self) -> Result<(), MachineError> {
        let folder = &self.folder.0;
        let configuration = folder.join("opensm.conf");
        let log = self.manager_log();
        let mut settings = String::new();
        // A port that comes or goes is a trap; the sweep each second finds what traps do not tell.
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

    /// Kills the subnet manager: the subnet is without an administrator.
    pub fn stop_manager(&mut self) {
        self.manager = None;
    }

    /// Gives the simulator a command at its console, and returns what it answers.
    ///
    /// # Errors
    /// If the simulator is gone or does not come back to its prompt.
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

    /// What the simulator has printed; after `Verbose 1` at its console, the way of every packet too.
    #[must_use]
    pub fn printed(&self) -> String {
        self.simulator.printed()
    }

    /// Takes all cables off a host, and waits until the subnet manager has noticed.
    ///
    /// # Errors
    /// See [`console`](Self::console); if the subnet manager does not notice.
    pub fn unlink(&mut self, host: &str) -> Result<(), MachineError> {
        self.and_sweep(&format!("Unlink \"{host}\""), "GID out of service")
    }

    /// Puts a host's cables back, and waits until the subnet manager has noticed.
    ///
    /// # Errors
    /// See [`console`](Self::console); if the subnet manager does not notice.
    pub fn relink(&mut self, host: &str) -> Result<(), MachineError> {
        self.and_sweep(&format!("ReLink \"{host}\""), "GID in service")
    }

    /// Has `percent` of the packets dropped that arrive at a host's ports.
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
        // First the notice, then the end of the sweep in which it was made.
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

/// Installs what a fabric needs.
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

/// The library that stands for the user MAD devices.
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
        why: "the package ibsim-utils has it elsewhere on this machine".into(),
    }))
}

/// A tool of this host, started in `folder`.
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

/// A folder that is removed when dropped.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, MachineError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("portolan-fabric-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).map_err(MachineError::io("create", &path))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left in the folder for temporary files is nobody's harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}
