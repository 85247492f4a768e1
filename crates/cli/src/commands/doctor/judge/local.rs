//! Judges what keeps processes of this host from using memory instead of sockets. All of it works without.

use super::Findings;
use crate::commands::doctor::facts::Facts;
use crate::commands::doctor::finding::Finding;

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    let local = &facts.local;
    match &local.is_off {
        Some(Err(why)) => findings.problem_if(
            facts.is_software(),
            Finding::new("local-unknown", why, "unset PORTOLAN_LOCAL"),
        ),
        Some(Ok(true)) => {
            let text = "PORTOLAN_LOCAL=off: packets to other processes of this host go by UDP, several times as slow";
            findings.note(Finding::new("local-off", text, "unset PORTOLAN_LOCAL"));
        }
        Some(Ok(false)) | None => {}
    }
    if local.calls_refused {
        let text = "a seccomp filter refuses process_vm_readv(2) or process_vm_writev(2): memory that programs \
                    register themselves is copied in packets";
        let remedy = "allow both calls in the container's seccomp profile";
        findings.note(Finding::new("local-calls-refused", text, remedy));
    }
    if let Some(scope) = local
        .ptrace_scope
        .filter(|scope| *scope > 0 && !facts.host.is_root)
    {
        let text = format!(
            "kernel.yama.ptrace_scope is {scope}: memory that programs register themselves is copied in packets, \
             except by processes of root"
        );
        let remedy = "sysctl -w kernel.yama.ptrace_scope=0 (debuggers of this user may then attach to any of its processes)";
        findings.note(Finding::new("local-ptrace-restricted", text, remedy));
    }
    if let [first, ..] = local.other_users[..] {
        let count = local.other_users.len();
        let text = format!(
            "{count} of the processes that share the port belong to other users, such as process {first}: packets \
             to them go through memory, but each process copies its own data"
        );
        findings.note(Finding::without_remedy("local-other-users", text));
    }
    if local.other_namespaces > 0 {
        let text = format!(
            "{} of the processes that share the port are in other process namespaces: memory that their programs \
             register themselves is copied in packets",
            local.other_namespaces
        );
        findings.note(Finding::without_remedy("local-other-namespaces", text));
    }
}
