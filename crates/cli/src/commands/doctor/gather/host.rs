//! The host, and its limits for this process.

use super::super::facts::{Host, Memlock};
use super::Root;

/// `CAP_IPC_LOCK` of capabilities(7).
const CAP_IPC_LOCK: u32 = 14;

pub(super) fn look(root: &Root) -> Host {
    Host {
        name: root.line("/proc/sys/kernel/hostname").unwrap_or_default(),
        release: root.line("/proc/sys/kernel/osrelease").unwrap_or_default(),
        is_root: rustix::process::geteuid().is_root(),
        container: container(root),
        memlock: memlock(root),
    }
}

/// The kind of container, by well-known marks.
fn container(root: &Root) -> Option<String> {
    if root.has("/.dockerenv") {
        return Some("docker".into());
    }
    if root.has("/run/.containerenv") {
        return Some("podman".into());
    }
    // systemd's convention for all kinds of containers; only root may read it from process 1.
    let marked = root.line("/run/systemd/container").or_else(|| {
        let environment = root.read("/proc/1/environ")?;
        let mut variables = environment.split('\0');
        Some(
            variables
                .find_map(|variable| variable.strip_prefix("container="))?
                .to_owned(),
        )
    });
    let marked = marked.filter(|kind| !kind.is_empty());
    marked.or_else(|| {
        let groups = root.read("/proc/1/cgroup")?;
        let kinds = ["docker", "kubepods", "lxc", "containerd"];
        Some(
            kinds
                .into_iter()
                .find(|kind| groups.contains(kind))?
                .to_owned(),
        )
    })
}

fn memlock(root: &Root) -> Memlock {
    let limits = root.read("/proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"));
    let mut limits = line
        .unwrap_or_default()
        .split_whitespace()
        .map(|word| word.parse().ok());
    let status = root.read("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    Memlock {
        soft: limits.next().flatten(),
        hard: limits.next().flatten(),
        is_exempt: effective.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Tree;
    use super::*;

    #[test]
    fn limits_and_capabilities_are_those_of_this_process() {
        let tree = Tree::of(
            "limits",
            &[
                (
                    "/proc/self/limits",
                    "Limit  Soft Limit  Hard Limit  Units\nMax locked memory  65536  unlimited  bytes\n",
                ),
                ("/proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n"),
            ],
        );
        let expected = Memlock {
            soft: Some(65536),
            hard: None,
            is_exempt: true,
        };
        assert_eq!(memlock(&tree.0), expected);
    }

    #[test]
    fn containers_are_known_by_their_marks() {
        for (at, (path, content, kind)) in [
            ("/.dockerenv", "", Some("docker")),
            ("/run/.containerenv", "", Some("podman")),
            ("/proc/1/environ", "A=b\0container=lxc\0", Some("lxc")),
            ("/proc/1/cgroup", "0::/kubepods/pod1/x\n", Some("kubepods")),
            ("/proc/1/cgroup", "0::/init.scope\n", None),
        ]
        .into_iter()
        .enumerate()
        {
            let tree = Tree::of(&format!("container-{at}"), &[(path, content)]);
            assert_eq!(container(&tree.0).as_deref(), kind, "{path}");
        }
    }
}
