//! Finds leftovers, in this network namespace, of processes that shared the UDP port, and the processes that
//! hold them.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;

use anyhow::{Context, Result};

/// The group's name, an abstract socket.
const NAME: &str = "@portolan/4791";
/// UDP port 4791 in `/proc/net/udp`.
const PORT: &str = ":12B7";

/// A line for each leftover that should not exist when none of our processes is alive.
pub(crate) fn find() -> Result<Vec<String>> {
    let mut found = Vec::new();
    let owners = socket_owners();
    let owner = |inode: &str| {
        let owner = owners.get(inode).map(String::as_str);
        owner.unwrap_or("an unknown process").to_owned()
    };
    let names = fs::read_to_string("/proc/net/unix").context("/proc/net/unix")?;
    for line in names.lines().skip(1) {
        // Num RefCount Protocol Flags Type St Inode Path
        let fields: Vec<&str> = line.split_whitespace().collect();
        if let (Some(inode), Some(path)) = (fields.get(6), fields.get(7))
            && (*path == NAME || path.starts_with(&format!("{NAME}/")))
        {
            found.push(format!("unix socket {path}, held by {}", owner(inode)));
        }
    }
    for table in ["/proc/net/udp", "/proc/net/udp6"] {
        let sockets = match fs::read_to_string(table) {
            Ok(sockets) => sockets,
            // A machine without IPv6.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error).context(table),
        };
        for line in sockets.lines().skip(1) {
            // sl local_address rem_address st queues tr:when retrnsmt uid timeout inode
            let fields: Vec<&str> = line.split_whitespace().collect();
            if let (Some(local), Some(inode)) = (fields.get(1), fields.get(9))
                && local.ends_with(PORT)
            {
                found.push(format!("{table}: {local}, held by {}", owner(inode)));
            }
        }
    }
    for entry in fs::read_dir("/dev/shm").context("/dev/shm")? {
        let name = entry?.file_name();
        if name.to_string_lossy().contains("portolan") {
            found.push(format!("/dev/shm/{}", name.to_string_lossy()));
        }
    }
    Ok(found)
}

/// The process of each socket, by inode.
fn socket_owners() -> BTreeMap<String, String> {
    let mut owners = BTreeMap::new();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let name = process.file_name().to_string_lossy().into_owned();
        if !name.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        // A process that has ended or is another user's has no visible sockets.
        let descriptors = fs::read_dir(process.path().join("fd"));
        for descriptor in descriptors.into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(descriptor.path()) else {
                continue;
            };
            let target = target.to_string_lossy().into_owned();
            let inode = target
                .strip_prefix("socket:[")
                .and_then(|t| t.strip_suffix(']'));
            if let Some(inode) = inode {
                let program = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                let owner = format!("process {name} ({})", program.trim_end());
                owners.insert(inode.to_owned(), owner);
            }
        }
    }
    owners
}
