//! A network namespace for a test program, so that it shares neither UDP port 4791 nor listening
//! ports with other processes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use nix::sched::{CloneFlags, setns, unshare};

/// The calling thread's network namespace.
const OF_THREAD: &str = "/proc/thread-self/ns/net";
/// The network namespace of the process's first thread.
const OF_PROCESS: &str = "/proc/self/ns/net";

/// The interfaces of a usual host: loopback, and an uplink with routes to multicast groups.
/// Addresses made by the kernel would appear only after a while, so they are disabled.
const INTERFACES: &str = "ip -batch - <<END
link set lo up
link add uplink type veth peer name far-end
link set uplink addrgenmode none
link set far-end addrgenmode none
link set far-end up
link set uplink up
addr add 10.213.47.1/24 dev uplink
addr add fd47:213::1/64 dev uplink nodad
END";

/// Moves the calling thread into the program's own network namespace, which the first call creates.
/// Threads and processes that it starts afterwards are in it too. A thread that a test has already
/// moved elsewhere stays there.
///
/// An ordinary user's threads stay where they are, because an unprivileged network namespace
/// requires a user namespace. Tests work there too, but are slower beside other processes.
///
/// # Panics
/// If root may not create a namespace, or ip(8) (package iproute2) is missing.
pub fn enter() {
    static HOST: OnceLock<PathBuf> = OnceLock::new();
    static OWN: OnceLock<File> = OnceLock::new();
    let namespace = |of: &str| Path::new(of).read_link().expect("/proc is mounted");
    let host = HOST.get_or_init(|| namespace(OF_PROCESS));
    if !rustix::process::geteuid().is_root() || namespace(OF_THREAD) != *host {
        return;
    }
    let own = OWN.get_or_init(|| {
        enter_new();
        File::open(OF_THREAD).expect("the namespace has a name")
    });
    setns(own, CloneFlags::CLONE_NEWNET).expect("root may enter its own namespace");
}

/// Moves the calling thread into a network namespace that no other thread is in; an ordinary user's threads stay where they
/// are.
///
/// # Panics
/// As [`enter`].
pub fn enter_new() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    unshare(CloneFlags::CLONE_NEWNET).expect("root has network namespaces");
    let made = Command::new("sh").args(["-ec", INTERFACES]).status();
    assert!(made.expect("a shell").success(), "no network, see above");
}
