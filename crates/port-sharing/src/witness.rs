//! Finds the holder of a unix name or a UDP port, for error messages. Never used on the data path.
//!
//! The kernel shows every user the inode and the owner of a socket (`unix_diag`, `/proc/net/udp`). The process is found
//! by its descriptors, which the kernel shows only to root and to the same user.

use std::fs;
use std::io::Read;

use portolan_provider::Holder;

use super::unix_diag::{self, BoundSocket};
use super::users::stands_for_others;

/// Maximum number of bytes read of a table in `/proc/net`: a hundred thousand sockets.
const TABLE_BYTES_MAX: u64 = 16 << 20;
/// Descriptors that a coordinator needs to admit a member: the connection, and copies of the descriptors that it
/// passes.
const ADMISSION: u64 = 5;
/// Maximum number of processes and descriptors examined: about a second's work.
const LOOKS_MAX: usize = 1 << 18;

impl BoundSocket {
    /// The user and, if visible, the process.
    pub(super) fn holder(&self) -> Holder {
        holder_of(self.inode, self.uid)
    }
}

/// The SEQPACKET sockets in this thread's network namespace that are bound to abstract names with this prefix; empty if
/// the kernel does not report them.
pub(super) fn bound_sockets(prefix: &str) -> Vec<BoundSocket> {
    let found = unix_diag::bound_sockets(prefix);
    found.unwrap_or_else(|errno| {
        tracing::debug!(%errno, "the kernel's socket monitor");
        Vec::new()
    })
}

/// The process that has a UDP port of this thread's network namespace, if any; the kernel's own sockets have no inode.
pub(super) fn holder_of_port(port: u16) -> Option<Holder> {
    ["udp", "udp6"].iter().find_map(|family| {
        let table = read_table(family);
        let text = String::from_utf8_lossy(&table);
        let (uid, inode) = text.lines().find_map(|line| udp_socket(line, port))?;
        Some(holder_of(inode, Some(uid)))
    })
}

/// User and inode of the socket in a line of `/proc/net/udp` or `udp6`, if it is bound to this port.
fn udp_socket(line: &str, port: u16) -> Option<(u32, u32)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (_, bound) = fields.get(1)?.split_once(':')?;
    let (uid, inode) = (fields.get(7)?.parse().ok()?, fields.get(9)?.parse().ok()?);
    let is_it = u16::from_str_radix(bound, 16).ok()? == port && inode != 0;
    is_it.then_some((uid, inode))
}

fn read_table(name: &str) -> Vec<u8> {
    let mut table = Vec::new();
    // The thread's own namespace, which may not be the process's.
    let read = fs::File::open(format!("/proc/thread-self/net/{name}"))
        .and_then(|file| file.take(TABLE_BYTES_MAX).read_to_end(&mut table));
    if let Err(error) = read {
        tracing::debug!(%error, name, "the kernel's table of sockets");
    }
    table
}

/// The process that has a socket, and its user; `uid` if already known.
fn holder_of(inode: u32, uid: Option<u32>) -> Holder {
    let pid = process_with(inode).unwrap_or(0);
    seen(pid, uid.or_else(|| user_of(pid)))
}

/// A process by its number, with its user if the number is unambiguous.
pub(super) fn seen(pid: u32, uid: Option<u32>) -> Holder {
    let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Holder {
        pid,
        uid: uid.filter(|uid| !stands_for_others(*uid)),
        program: program.trim_end().to_owned(),
    }
}

fn user_of(pid: u32) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let found = fs::metadata(format!("/proc/{pid}")).ok();
    found.map(|found| found.uid())
}

/// Whether a process is stopped, by a signal or a debugger (proc_pid_stat(5)); `false` if that is not visible.
pub(super) fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which is in parentheses and may contain some.
    let state = stat.rsplit(')').next().map(str::trim_start);
    state.is_some_and(|state| state.starts_with(['T', 't']))
}

/// A process's limit of open files, if the process cannot open the [`ADMISSION`] descriptors for another member.
/// `None` if it can, or if that is not visible.
pub(super) fn reached_open_files(pid: u32) -> Option<u64> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let limit = open_files(&limits)?;
    let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let open = open.take(LOOKS_MAX).count() as u64;
    (open + ADMISSION > limit).then_some(limit)
}

/// The soft limit of open files in `/proc/PID/limits`.
fn open_files(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// The process with a descriptor of this socket that started first: others may be its children, and end soon.
fn process_with(inode: u32) -> Option<u32> {
    let link = format!("socket:[{inode}]");
    let mut left = LOOKS_MAX;
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let holders = processes.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        left = left.checked_sub(1)?;
        let descriptors = fs::read_dir(entry.path().join("fd")).ok()?.flatten();
        let has_it = descriptors.take(left).any(|descriptor| {
            left -= 1;
            let to = fs::read_link(descriptor.path());
            to.is_ok_and(|to| to.as_os_str() == link.as_str())
        });
        has_it.then_some(pid)
    });
    holders.min_by_key(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (start_of(&stat).unwrap_or(u64::MAX), *pid)
    })
}

/// When a process started, from its `/proc/PID/stat`: clock ticks since boot (proc_pid_stat(5)).
fn start_of(stat: &str) -> Option<u64> {
    // The name is in parentheses and may contain some. The state, the third field, follows it.
    let rest = stat.rsplit(')').next()?;
    rest.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

    use super::*;

    #[test]
    fn a_bound_socket_is_found_by_its_name_and_its_process_by_the_socket() {
        let name = format!("portolan-witness/{}", std::process::id());
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        bind(&socket, &address).unwrap();
        // A name with a line feed, which /proc/net/unix prints unescaped, must not forge a socket.
        let forged = format!("x\n0: 00000002 00000000 00010000 0005 01 1 @{name}");
        let forged = SocketAddr::from_abstract_name(forged).unwrap();
        let _forged = UnixListener::bind_addr(&forged).unwrap();
        // The same name is another socket among streams.
        let stream = SocketAddr::from_abstract_name(&name).unwrap();
        let _stream = UnixListener::bind_addr(&stream).unwrap();
        let found = bound_sockets(&name);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(!found[0].listens);
        rustix::net::listen(&socket, 1).unwrap();
        let found = bound_sockets(&name);
        assert!(found[0].listens);
        let own = rustix::process::geteuid().as_raw();
        let holder = found[0].holder();
        assert_eq!((holder.pid, holder.uid), (std::process::id(), Some(own)));
        assert_eq!(found[0].uid, Some(own));
        assert!(!holder.program.is_empty());
        drop(socket);
        assert_eq!(bound_sockets(&name), []);
    }

    #[test]
    fn the_process_that_has_a_port_is_found_in_both_families() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let socket = std::net::UdpSocket::bind(address).unwrap();
            let port = socket.local_addr().unwrap().port();
            let holder = holder_of_port(port).unwrap();
            assert_eq!(holder.pid, std::process::id());
            drop(socket);
            assert_eq!(holder_of_port(port), None);
        }
    }

    #[test]
    fn of_a_socket_that_a_child_has_too_the_parent_is_the_holder() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        // As its standard input, which it keeps.
        let child = std::process::Command::new("sleep")
            .arg("30")
            .stdin(std::os::fd::OwnedFd::from(socket.try_clone().unwrap()))
            .spawn();
        let mut child = child.unwrap();
        let own = holder_of_port(port).unwrap().pid;
        drop(socket);
        let childs = holder_of_port(port).unwrap().pid;
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((own, childs), (std::process::id(), child.id()));
    }

    #[test]
    fn the_start_of_a_process_is_read_whatever_its_name_is() {
        let before = "7 (a b) c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0";
        assert_eq!(start_of(&format!("{before} 4242 1 2")), Some(4242));
        assert_eq!(start_of(before), None);
        let own = fs::read_to_string("/proc/self/stat").unwrap();
        assert!(start_of(&own).is_some_and(|start| start > 0));
    }

    #[test]
    fn invalid_lines_and_lines_of_other_sockets_are_skipped() {
        let udp = "77: 0100007F:12B7 00000000:0000 07 0:0 0:0 0  1000 0 4242 2 0 0";
        assert_eq!(udp_socket(udp, 4791), Some((1000, 4242)));
        assert_eq!(udp_socket(udp, 4792), None);
        // The kernel's own socket.
        assert_eq!(udp_socket(&udp.replace("4242", "0"), 4791), None);
        for short in ["", "x", "1: :", "1: 0100007F:12B7 2"] {
            assert_eq!(udp_socket(short, 4791), None, "{short}");
        }
    }
}
