//! Network namespaces for tests, each held by a thread of its own.

#![allow(unsafe_code, reason = "unshare(2) has no safe wrapper")]
#![allow(dead_code, reason = "each test target uses a part of it")]

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};

/// ip(8) commands for two uplinks: `one` has the default route; policy rules can select `two` through table
/// 1234.
pub(crate) const TWO_UPLINKS: &str = "link add one type veth peer name one-end
    link set one-end up
    link set one up
    addr add 192.0.2.1/24 dev one
    addr add 2001:db8:1::1/64 dev one nodad
    route add default via 192.0.2.254 dev one mtu 1400 hoplimit 9
    route add default via 2001:db8:1::fe dev one
    link add two type veth peer name two-end
    link set two-end up
    link set two up
    addr add 198.51.100.1/24 dev two
    addr add 2001:db8:2::1/64 dev two nodad
    route add default via 198.51.100.254 dev two table 1234
    route add default via 2001:db8:2::fe dev two table 1234";

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace with loopback up, which lives until the value is dropped.
#[derive(Debug)]
pub(crate) struct Namespace {
    jobs: Sender<Job>,
    thread_id: u32,
}

impl Namespace {
    /// Creates a namespace.
    ///
    /// # Panics
    /// Without root. The test runner skips these tests and reports that.
    pub(crate) fn new() -> Self {
        Self::made_by(|| unshare(libc::CLONE_NEWNET))
    }

    /// Creates a namespace with its own files: each path, which must exist, has this content inside it.
    ///
    /// # Panics
    /// As [`Namespace::new`].
    pub(crate) fn with_files(files: &'static [(&'static str, &'static str)]) -> Self {
        Self::made_by(|| {
            unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS);
            run("mount", "--make-rprivate /");
            // Removed with the namespace.
            run("mount", "-t tmpfs files /mnt");
            for (at, (path, content)) in files.iter().enumerate() {
                let file = format!("/mnt/{at}");
                std::fs::write(&file, content).expect("a file of a fresh file system");
                run("mount", &format!("--bind {file} {path}"));
            }
        })
    }

    fn made_by(make: impl FnOnce() + Send + 'static) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test creates network namespaces: run it as root"
        );
        let (jobs, queue) = channel::<Job>();
        let (ready, thread_id) = channel();
        std::thread::spawn(move || {
            make();
            ip("link set lo up");
            // SAFETY: the call has no arguments and cannot fail.
            let thread_id = unsafe { libc::gettid() };
            ready
                .send(thread_id.unsigned_abs())
                .expect("the maker waits");
            queue.into_iter().for_each(|job| job());
        });
        let thread_id = thread_id.recv().expect("the namespace was made");
        Self { jobs, thread_id }
    }

    /// Runs `f` in the namespace and propagates its panics. Threads and processes that it starts are in the
    /// namespace too.
    pub(crate) fn run<R: Send + 'static>(&self, f: impl FnOnce() -> R + Send + 'static) -> R {
        let (result, outcome) = channel();
        let job = move || {
            let _ = result.send(catch_unwind(AssertUnwindSafe(f)));
        };
        self.jobs
            .send(Box::new(job))
            .expect("the namespace's thread lives");
        match outcome.recv().expect("the job ran") {
            Ok(value) => value,
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Runs ip(8) in the namespace with these commands, one per line.
    pub(crate) fn ip(&self, commands: &'static str) {
        self.run(move || {
            commands
                .lines()
                .map(str::trim)
                .filter(|line| !line.is_empty())
                .for_each(ip);
        });
    }

    /// Sets a sysctl of the namespace, `net/…`.
    pub(crate) fn sysctl(&self, name: &'static str, value: &'static str) {
        self.run(move || {
            std::fs::write(format!("/proc/sys/{name}"), value)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
        });
    }

    /// Connects two namespaces with a veth pair, named `eth0` and up in both.
    pub(crate) fn join(&self, peer: &Self) {
        let peer_id = peer.thread_id;
        self.run(move || {
            ip(&format!(
                "link add eth0 type veth peer name eth0 netns {peer_id}"
            ));
            ip("link set eth0 up");
        });
        peer.ip("link set eth0 up");
    }

    /// The id of a thread in the namespace, with which ip(8) can name the namespace.
    pub(crate) fn thread_id(&self) -> u32 {
        self.thread_id
    }

    /// The index of an interface in the namespace.
    pub(crate) fn index(&self, name: &'static str) -> u32 {
        self.run(move || interface_index(name))
    }
}

/// The index of an interface of the calling thread's namespace.
pub(crate) fn interface_index(name: &str) -> u32 {
    let name = std::ffi::CString::new(name).expect("no NUL");
    // SAFETY: the name is NUL-terminated and outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    assert_ne!(index, 0, "{name:?} exists");
    index
}

/// Runs `f` on a thread without root privileges, which threads started by it lack too.
pub(crate) fn without_privilege<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    /// `nobody` on Debian and most other systems.
    const NOBODY: libc::uid_t = 65534;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the raw call changes this thread only; libc's would change the process.
            let result = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            assert_eq!(result, 0, "setresuid: {}", std::io::Error::last_os_error());
            f()
        });
        thread.join().expect("the thread ends")
    })
}

/// Runs many commands with one ip(8), which is much faster.
pub(crate) fn ip_batch(commands: &str) {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("ip(8) is installed (package iproute2)");
    let mut input = child.stdin.take().expect("piped");
    input
        .write_all(commands.as_bytes())
        .expect("ip reads its batch");
    drop(input);
    assert!(child.wait().expect("ip ends").success(), "ip -batch");
}

/// Moves this thread into its own namespaces.
fn unshare(namespaces: libc::c_int) {
    // SAFETY: the call only changes the namespaces of this thread.
    let result = unsafe { libc::unshare(namespaces) };
    assert_eq!(result, 0, "unshare: {}", std::io::Error::last_os_error());
}

fn ip(arguments: &str) {
    run("ip", arguments);
}

/// Runs a program of the base system or of the package iproute2.
fn run(program: &str, arguments: &str) {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .output()
        .unwrap_or_else(|error| panic!("{program} is not installed: {error}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {error}");
}
