//! What keeps processes of this host from using memory instead of sockets.

use std::os::unix::fs::MetadataExt;

use portolan::provider::local_memory;
use portolan::software::may_call_process_vm;

use super::super::facts::{LocalMemory, UdpPort};
use super::Root;

pub(super) fn look(root: &Root, port: &UdpPort) -> LocalMemory {
    let members = match &port.group {
        Some(Ok(group)) => group.pids.as_slice(),
        _ => &[],
    };
    let own = rustix::process::geteuid().as_raw();
    let owner =
        |pid: &u32| std::fs::metadata(root.path(&format!("/proc/{pid}"))).map(|file| file.uid());
    let is_of_other = |pid: &&u32| **pid != 0 && owner(pid).is_ok_and(|owner| owner != own);
    LocalMemory {
        is_off: Some(
            local_memory()
                .map(|is_on| !is_on)
                .map_err(|error| error.to_string()),
        ),
        ptrace_scope: root.number("/proc/sys/kernel/yama/ptrace_scope"),
        calls_refused: !may_call_process_vm(),
        other_users: members.iter().filter(is_of_other).copied().collect(),
        other_namespaces: members.iter().filter(|pid| **pid == 0).count(),
    }
}
