//! ibacm, the path cache daemon, on a host of the fabric.
//!
//! It finds ports through libibverbs and queries the subnet administrator through libibumad. The
//! simulator emulates only libibumad. So a small library (`c/fabric_verbs.c`) emulates libibverbs
//! and reports the port as libibumad does. Queries, answers and the socket are ibacm's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::process::Process;
use super::{Fabric, tool};
use crate::machine::{MachineError, checked};

const VERBS: &str = include_str!("../../c/fabric_verbs.c");
/// Time limit until it is ready: it joins a multicast group first.
const READY_TIME_MAX: Duration = Duration::from_secs(60);
/// The log line after joining, when it is ready.
const READY: &str = "join successful";
const LISTENING: &str = "listen active";
/// The simulator's name for a host's only device.
const DEVICE: &str = "ibsim0";

/// A running ibacm; killed when dropped.
#[derive(Debug)]
pub struct Ibacm {
    process: Process,
    run: PathBuf,
}

impl Ibacm {
    /// Starts ibacm on a host and waits until it is ready.
    ///
    /// # Errors
    /// Its last output, if it does not become ready.
    pub fn start(fabric: &Fabric, host: &str) -> Result<Self, MachineError> {
        let folder = fabric.folder();
        let verbs = build(folder)?;
        let run = folder.join("run");
        fs::create_dir_all(&run).map_err(MachineError::io("create", &run))?;
        // IP addresses would need names; these tests query by GID.
        let addresses = folder.join("ibacm_addr.cfg");
        let text = format!("{host} {DEVICE} 1 default\n");
        fs::write(&addresses, text).map_err(MachineError::io("write", &addresses))?;
        let options = folder.join("ibacm_opts.cfg");
        let text = "log_file stdout\nlog_level 2\nlock_file /run/ibacm.pid\nserver_mode unix\n\
                    acme_plus_kernel_only no\nroute_prot sa\nloopback_prot none\n";
        fs::write(&options, text).map_err(MachineError::io("write", &options))?;
        let mut command = fabric.preloaded(&[&verbs], host, Some(&run), "ibacm");
        command.arg("-P").arg("-A").arg(&addresses);
        command.arg("-O").arg(&options);
        let mut process = Process::start("ibacm", &mut command, folder)?;
        process.wait_until_printed("ibacm", READY_TIME_MAX, |log| {
            log.contains(READY) && log.contains(LISTENING)
        })?;
        Ok(Self { process, run })
    }

    /// The directory that ibacm sees as `/run`, with its socket.
    #[must_use]
    pub fn run(&self) -> &Path {
        &self.run
    }

    /// ibacm's log.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.printed()
    }

    /// Stops ibacm with SIGSTOP: it keeps its socket but does not answer, until it is dropped.
    ///
    /// # Errors
    /// ibacm has already ended.
    pub fn hang(&self) -> Result<(), MachineError> {
        let pid = Pid::from_child(&self.process.child);
        kill_process(pid, Signal::STOP)
            .map_err(|errno| MachineError::io("stop", Path::new("ibacm"))(errno.into()))
    }
}

/// Builds the library that emulates libibverbs.
fn build(folder: &Path) -> Result<PathBuf, MachineError> {
    let source = folder.join("fabric_verbs.c");
    fs::write(&source, VERBS).map_err(MachineError::io("write", &source))?;
    let library = folder.join("libfabric_verbs.so");
    let mut compiler: Command = tool("cc", folder);
    compiler.args([
        "-shared",
        "-fPIC",
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]);
    compiler
        .arg("-o")
        .arg(&library)
        .arg(&source)
        .arg("-libumad");
    checked(&mut compiler)?;
    Ok(library)
}
