//! Gathers the facts. Only this part of `doctor` accesses files, sockets and other programs. It changes nothing, joins
//! nothing, and opens nothing that others would notice, except for the library's query to the processes that share the
//! port.

mod destination;
mod firewall;
mod host;
mod iptables;
mod kernel;
mod local;
mod names;
mod network;
mod nft;
mod tool;
mod udp;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use portolan::provider::{self, PinnedBy};

use super::facts::{Facts, UdpPort, Unseen};

/// RoCEv2's UDP port (IBTA annex A17).
pub(super) const ROCE_PORT: u16 = 4791;
/// Maximum length of a file.
const FILE_MAX: u64 = 4 << 20;
/// Maximum number of entries of a folder to read.
const ENTRIES_MAX: usize = 100_000;

/// Gathers all visible facts. Each query to others (processes, names, the next hop) has the limit `timeout`.
pub(super) fn gather(destination: Option<&str>, timeout: Duration) -> Facts {
    let root = Root::of_machine();
    let mut unseen = Vec::new();
    let provider = provider::chosen().map_err(|error| error.to_string());
    // Only the environment can have an unknown name.
    let pinned_by = provider::pinned().map_or(Some(PinnedBy::Environment), |pinned| {
        pinned.map(|(_, by)| by)
    });
    let software = preview(&mut unseen);
    let destination =
        destination.map(|text| destination::look(text, &provider, &software, timeout));
    let port = udp::look(&root, timeout, &mut unseen);
    Facts {
        pinned_by,
        host: host::look(&root),
        kernel: kernel::look(&root),
        software,
        local: local::look(&root, &port),
        port,
        network: network::look(&root),
        rules: firewall::look(&mut unseen),
        names: names::look(&root),
        provider: Some(provider),
        destination,
        unseen,
    }
}

/// The users of the UDP port alone.
pub(super) fn port(timeout: Duration) -> UdpPort {
    udp::look(&Root::of_machine(), timeout, &mut Vec::new())
}

fn preview(unseen: &mut Vec<Unseen>) -> Vec<portolan::software::DevicePreview> {
    portolan::software::preview().unwrap_or_else(|error| {
        unseen.push(Unseen {
            what: "network interfaces".into(),
            why: error.to_string(),
        });
        Vec::new()
    })
}

/// The file system, or in tests a folder that represents it.
#[derive(Clone, Debug)]
struct Root(PathBuf);

impl Root {
    fn of_machine() -> Self {
        Self("/".into())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// The text of a file, if readable.
    fn read(&self, path: &str) -> Option<String> {
        let file = std::fs::File::open(self.path(path)).ok()?;
        let mut bytes = Vec::new();
        file.take(FILE_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The text of a one-line file.
    fn line(&self, path: &str) -> Option<String> {
        Some(self.read(path)?.trim().to_owned())
    }

    fn number<N: std::str::FromStr>(&self, path: &str) -> Option<N> {
        self.line(path)?.parse().ok()
    }

    /// The names in a folder, sorted; empty if the folder does not exist.
    fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path(path)) else {
            return Vec::new();
        };
        let names = entries.flatten().take(ENTRIES_MAX);
        let mut names: Vec<String> = names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The last component of a link's target.
    fn link_name(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }
}

impl AsRef<Path> for Root {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A small file system, removed on drop.
    pub(in crate::commands::doctor) struct Tree(pub(super) Root);

    impl Tree {
        /// Creates one with these files: path and content. Content of the form `-> target` makes a link.
        pub(super) fn of(name: &str, files: &[(&str, &str)]) -> Self {
            let folder = format!("portolan-doctor-{name}-{}", std::process::id());
            let tree = Self(Root(std::env::temp_dir().join(folder)));
            for (path, content) in files {
                let path = tree.0.path(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                match content.strip_prefix("-> ") {
                    Some(target) => std::os::unix::fs::symlink(target, path).unwrap(),
                    None => std::fs::write(path, content).unwrap(),
                }
            }
            tree
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
