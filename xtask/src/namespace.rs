//! A network namespace with its own UDP port 4791 and TCP ports.

use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};

/// Why there may be no namespace.
pub(crate) const UNAVAILABLE: &str =
    "this machine does not let ordinary users create network namespaces";
/// An ordinary user must be root in a user namespace.
const AS_ROOT_OF_ITS_OWN: [&str; 2] = ["--user", "--map-root-user"];
/// Reports that the namespace is ready, and holds it until end of input.
const HOLDER: &str = "ip link set lo up && echo ready && exec cat";
/// The same, with an Ethernet link. Its addresses are usable at once, because duplicate detection is off. The kernel reports
/// the carrier a moment later; UCX passes over devices that have none when it starts.
const HOLDER_WITH_ETHERNET: &str = "ip link set lo up && \
    echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad && \
    ip link add eth0 type veth peer name eth1 && \
    ip address add 10.77.0.1/24 dev eth0 && \
    ip link set eth1 up && ip link set eth0 up && tries=0 && \
    until ip -o link show eth0 | grep -q 'state UP'; do \
        tries=$((tries + 1)); [ $tries -lt 100 ] || exit 1; sleep 0.05; done && \
    echo ready && exec cat";
/// The address of the interface `eth0`, if there is one.
pub(crate) const ETHERNET_ADDRESS: &str = "10.77.0.1";
/// Makes programs end with the thread that started them.
const BOUND_TO_US: [&str; 3] = ["setpriv", "--pdeathsig", "KILL"];

/// A namespace, held by a process until drop.
pub(crate) struct Namespace {
    holder: Child,
    /// The holder ends when this is closed.
    _input: ChildStdin,
    is_root: bool,
    folder: Folder,
}

impl Namespace {
    /// Whether this user may create one on this machine.
    pub(crate) fn is_possible(is_root: bool) -> Result<bool> {
        let probe = Command::new("unshare")
            .args(user(is_root))
            .args(["--net", "--", "true"])
            .output()
            .context("cannot start unshare")?;
        Ok(probe.status.success())
    }

    /// Creates one with a loopback interface.
    pub(crate) fn new(is_root: bool) -> Result<Self> {
        Self::made_by(HOLDER, is_root)
    }

    /// Creates one with a loopback interface and an Ethernet link with the ends `eth0` and `eth1`.
    pub(crate) fn with_ethernet(is_root: bool) -> Result<Self> {
        Self::made_by(HOLDER_WITH_ETHERNET, is_root)
    }

    fn made_by(holder: &str, is_root: bool) -> Result<Self> {
        let mut holder = Command::new("unshare")
            .args(user(is_root))
            .args(["--net", "--"])
            .args(BOUND_TO_US)
            .args(["sh", "-c", holder])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start unshare")?;
        let input = holder.stdin.take().context("its input is a pipe")?;
        let output = holder.stdout.take().context("its output is a pipe")?;
        let namespace = Self {
            holder,
            _input: input,
            is_root,
            folder: Folder::new()?,
        };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(
            line == "ready\n",
            "cannot create a network namespace, see above"
        );
        Ok(namespace)
    }

    /// Its process, by which others name it.
    pub(crate) fn process(&self) -> u32 {
        self.holder.id()
    }

    /// A program in it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        let target = self.holder.id().to_string();
        command.args(["--target", &target, "--net"]);
        if !self.is_root {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.arg("--").args(BOUND_TO_US);
        // Rows name files of the workspace.
        command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        // The machine's folder has no owner in a user namespace, and `exec` does not use such a folder.
        command.env("TMPDIR", &self.folder.0);
        command.env_remove("XDG_RUNTIME_DIR");
        command
    }

    /// A folder among its temporary files.
    pub(crate) fn new_folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.0.join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(path)
    }

    /// A file of its network in `/proc`.
    pub(crate) fn table(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/net/{name}", self.holder.id()))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A program in the namespace of this process, that ends with it.
pub(crate) fn bound_to_us() -> Command {
    let mut command = Command::new(BOUND_TO_US[0]);
    command.args(&BOUND_TO_US[1..]);
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    command
}

fn user(is_root: bool) -> &'static [&'static str] {
    if is_root { &[] } else { &AS_ROOT_OF_ITS_OWN }
}

/// The folder of temporary files: only for this user, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("portolan-namespace-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
