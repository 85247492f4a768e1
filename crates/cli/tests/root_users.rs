//! C programs of two users on one host, in the test's own network namespace. They share UDP port 4791 if each
//! trusts the other; otherwise they are told why not.

#[path = "common/mod.rs"]
mod common;
#[path = "exec/compiler.rs"]
mod compiler;
#[path = "common/installed.rs"]
mod installed;

use std::process::{Command, Stdio};

use common::{copy_program, output_of, stderr, stdout};
use compiler::Compiled;
use installed::{Installed, as_user};

/// Ordinary users that are unknown to the machine.
const ALICE: u32 = 60_001;
const BOB: u32 = 60_002;

/// Starts the listener, waits for its first output, and runs the client. `$1` is the command that starts a
/// program as Alice, `$2` as Bob.
const SCRIPT: &str = r#"
ip link set lo up
cd "$0"
export TMPDIR="$0/work"
unset XDG_RUNTIME_DIR
$1 ./portolan exec -- ./pings listen 127.0.0.1 7471 > listener &
listener=$!
tries=0
until grep -q listening listener; do
    tries=$((tries + 1))
    [ $tries -lt 1200 ] || exit 77
    sleep 0.05
done
status=0
timeout 60 $2 ./portolan exec -- ./pings ping 127.0.0.1 7471 0 100 || status=$?
kill $listener
exit $status
"#;

/// Bob's result and output, if Alice trusts `alices` and Bob trusts `bobs`.
fn call(name: &str, alices: &str, bobs: &str) -> (bool, String) {
    let installed = Installed::new(name);
    let compiled = Compiled::new(name);
    let program = compiled.program("crates/cli/tests/c/pings.c");
    copy_program(program, installed.0.join("pings"));
    let user = |user, trust| format!("env PORTOLAN_TRUST={trust} {}", as_user(user));
    let child = Command::new("unshare")
        .args(["--net", "sh", "-uc", SCRIPT])
        .arg(&installed.0)
        .args([user(ALICE, alices), user(BOB, bobs)])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = output_of(child);
    let said = format!("{}{}", stdout(&output), stderr(&output));
    assert_ne!(output.status.code(), Some(77), "nobody listens: {said}");
    (output.status.success(), said)
}

fn assert_all_answered((is_good, said): &(bool, String)) {
    let summary = r#"{"type":"summary","answered":100,"lost":0,"mismatched":0}"#;
    assert!(*is_good && said.contains(summary), "{said}");
}

#[test]
fn two_users_who_name_each_other_are_connected_and_learn_what_they_miss() {
    let called = call("named", &BOB.to_string(), &ALICE.to_string());
    assert_all_answered(&called);
    // Other users have numbers only outside a user namespace; so the program has no view of sysfs either.
    assert!(called.1.contains("PORTOLAN_TRUST names"), "{}", called.1);
}

#[test]
fn two_users_who_trust_anyone_are_connected() {
    assert_all_answered(&call("anyone", "anyone", "anyone"));
}

#[test]
fn a_user_who_is_not_trusted_or_does_not_trust_is_refused_with_a_reason() {
    let (is_good, said) = call("stranger", "", &ALICE.to_string());
    let (who, what) = (
        format!("does not trust user {BOB}"),
        format!("start it with PORTOLAN_TRUST={BOB}"),
    );
    assert!(
        !is_good && said.contains(&who) && said.contains(&what),
        "{said}"
    );
    let (is_good, said) = call("timid", &BOB.to_string(), "");
    // Alice has no number in Bob's user namespace, if he gets one.
    let named = format!("set PORTOLAN_TRUST={ALICE}");
    let unnamed = "set PORTOLAN_TRUST to the number of that user";
    assert!(
        !is_good && (said.contains(&named) || said.contains(unnamed)),
        "{said}"
    );
}
