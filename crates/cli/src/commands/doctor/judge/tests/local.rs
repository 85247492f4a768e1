//! What keeps processes of one host from using memory.

use super::*;

pub(super) fn cases() -> Vec<Case> {
    let note = |code, text, remedy, change: fn(&mut LocalMemory)| {
        case((code, Note), text, remedy, healthy(), move |f| {
            change(&mut f.local)
        })
    };
    vec![
        case(
            ("local-unknown", Problem),
            "memory or off",
            "unset PORTOLAN_LOCAL",
            healthy(),
            |f| f.local.is_off = Some(Err("memory or off".into())),
        ),
        note("local-off", "by UDP", "unset PORTOLAN_LOCAL", |local| {
            local.is_off = Some(Ok(true));
        }),
        note("local-calls-refused", "seccomp", "profile", |local| {
            local.calls_refused = true;
        }),
        note(
            "local-ptrace-restricted",
            "is 2",
            "ptrace_scope=0",
            |local| {
                local.ptrace_scope = Some(2);
            },
        ),
        note("local-other-users", "process 812", "", |local| {
            local.other_users = vec![812, 900];
        }),
        note("local-other-namespaces", "3 of", "", |local| {
            local.other_namespaces = 3;
        }),
    ]
}

#[test]
fn yama_does_not_restrict_root_and_zero_restricts_nobody() {
    let mut facts = healthy();
    facts.local.ptrace_scope = Some(0);
    assert_eq!(judge(&facts), []);
    facts.local.ptrace_scope = Some(1);
    facts.host.is_root = true;
    assert_eq!(judge(&facts), []);
}
