//! The users of the UDP port: the processes that share it by Portolan's rules, and all sockets on it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use portolan::provider;
use portolan::software::StackConfig;
use portolan::software::survey::{Survey, places_taken, survey};

use super::super::facts::{Owner, PortGroup, UdpPort, UdpSocket, Unseen};
use super::{ROCE_PORT, Root};

pub(super) fn look(root: &Root, timeout: Duration, unseen: &mut Vec<Unseen>) -> UdpPort {
    let mut config = StackConfig::default().group;
    let trust = provider::trust();
    let trust_error = trust.as_ref().err().map(ToString::to_string);
    let seen = trust.and_then(|trust| {
        config.trust = trust;
        survey(&config, timeout)
    });
    let group = match seen {
        Ok(None) => places_taken(&config).map(|why| Err(why.to_string())),
        Ok(Some(Survey {
            distrust: Some(why),
            ..
        })) => Some(Err(why.to_string())),
        Ok(Some(seen)) => Some(Ok(PortGroup {
            holder_pid: seen.holder_pid,
            pids: seen.members.iter().map(|member| member.pid).collect(),
        })),
        Err(error) => Some(Err(error.cause.to_string())),
    };
    let mut found = Vec::new();
    for file in ["udp", "udp6"] {
        match root.read(&format!("/proc/self/net/{file}")) {
            Some(text) => found.extend(text.lines().skip(1).filter_map(read_socket)),
            // The file is missing on a kernel without IPv6.
            None if file == "udp6" => {}
            None => unseen.push(Unseen {
                what: format!("who holds UDP port {ROCE_PORT}"),
                why: "/proc/net/udp cannot be read".into(),
            }),
        }
    }
    let inodes: Vec<u64> = found.iter().map(|socket| socket.inode).collect();
    let owners = if inodes.is_empty() {
        Owners::default()
    } else {
        owners(root, &inodes)
    };
    let sockets = found.iter().map(|socket| UdpSocket {
        address: socket.address,
        uid: socket.uid,
        owner: match owners.by_inode.get(&socket.inode) {
            Some((pid, program)) => Owner::Process {
                pid: *pid,
                program: program.clone(),
            },
            None if owners.all_seen => Owner::Kernel,
            None => Owner::Unknown,
        },
    });
    UdpPort {
        number: config.port,
        trust_error,
        group,
        sockets: sockets.collect(),
    }
}

struct Found {
    address: SocketAddr,
    uid: u32,
    inode: u64,
}

/// Parses a line of `/proc/net/udp` or `udp6`; `None` if it is not about our port.
fn read_socket(line: &str) -> Option<Found> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (address, port) = fields.get(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let ip: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(address)?).into(),
        32 => {
            let mut bytes = [0; 16];
            for (at, to) in bytes.chunks_exact_mut(4).enumerate() {
                to.copy_from_slice(&word(address.get(at * 8..at * 8 + 8)?)?);
            }
            Ipv6Addr::from(bytes).into()
        }
        _ => return None,
    };
    (port == ROCE_PORT).then_some(())?;
    Some(Found {
        address: SocketAddr::new(ip, port),
        uid: fields.get(7)?.parse().ok()?,
        inode: fields.get(9)?.parse().ok()?,
    })
}

/// Four bytes of an address, written as a number in host byte order.
fn word(text: &str) -> Option<[u8; 4]> {
    Some(u32::from_str_radix(text, 16).ok()?.to_ne_bytes())
}

#[derive(Default)]
struct Owners {
    by_inode: HashMap<u64, (u32, String)>,
    /// Whether the descriptors of all processes were visible.
    all_seen: bool,
}

/// The processes that have these sockets open.
fn owners(root: &Root, inodes: &[u64]) -> Owners {
    let mut owners = Owners {
        by_inode: HashMap::new(),
        all_seen: rustix::process::geteuid().is_root(),
    };
    for name in root.names("/proc") {
        let Ok(pid) = name.parse::<u32>() else {
            continue;
        };
        let folder = format!("/proc/{pid}/fd");
        for descriptor in root.names(&folder) {
            let Some(link) = root.link_name(&format!("{folder}/{descriptor}")) else {
                continue;
            };
            let inode = link
                .strip_prefix("socket:[")
                .and_then(|rest| rest.strip_suffix(']'));
            let Some(inode) = inode.and_then(|inode| inode.parse().ok()) else {
                continue;
            };
            if inodes.contains(&inode) {
                let program = root.line(&format!("/proc/{pid}/comm")).unwrap_or_default();
                // Escape it, because the process chooses its own name.
                let program = program.escape_debug().to_string();
                owners.by_inode.entry(inode).or_insert((pid, program));
            }
        }
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_on_the_port_are_found_in_both_families() {
        let v4 = "  77: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4242 2 0 0";
        let found = read_socket(v4).unwrap();
        assert_eq!(found.address, "127.0.0.1:4791".parse().unwrap());
        assert_eq!((found.uid, found.inode), (1000, 4242));
        let v6 = "  77: B80D0120000000000000000001000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 99 2 0 0";
        assert_eq!(
            read_socket(v6).unwrap().address,
            "[2001:db8::1]:4791".parse().unwrap()
        );
        assert!(read_socket(&v4.replace("12B7", "12B6")).is_none());
        for short in ["", "x", "1: :", "1: 0100007F:12B7 2"] {
            assert!(read_socket(short).is_none(), "{short}");
        }
    }

    #[test]
    fn the_process_that_has_a_socket_is_found_by_its_descriptors() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let link = std::fs::read_link(format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&socket)
        ));
        let link = link.unwrap().to_string_lossy().into_owned();
        let inode: u64 = link
            .trim_matches(|c: char| !c.is_ascii_digit())
            .parse()
            .unwrap();
        let owners = owners(&Root::of_machine(), &[inode]);
        assert_eq!(owners.by_inode[&inode].0, std::process::id());
    }
}
