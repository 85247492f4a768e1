//! `portolan exec` where a user namespace is impossible or would do harm. The program keeps its user, and is
//! told why it sees no devices in sysfs.

#[path = "common/mod.rs"]
mod common;
#[path = "common/installed.rs"]
mod installed;

use std::fs;
use std::process::Command;

use common::copy_program;
use installed::{Installed, as_user};

/// An ordinary user that is unknown to the machine.
const USER: u32 = 60_001;
/// The kernel's overflow user id, for users that have no mapping.
const OVERFLOW: u32 = 65_534;
const UNSEEN: &str = "sees no devices in /sys/class/infiniband";

/// The user mapping of this namespace, usually the initial one.
fn own_map() -> String {
    fs::read_to_string("/proc/self/uid_map").unwrap()
}

const WHO: &str = "id -u; cat /proc/self/uid_map";

#[test]
fn a_user_namespace_whose_map_cannot_be_written_is_not_entered() {
    let installed = Installed::new("unfinished");
    // It can be created but its map cannot be written, as with AppArmor's restrictions.
    let around = format!(
        "exec unshare -m sh -ec 'mount -o remount,bind,ro /proc; exec {} \"$0\" \"$@\"'",
        as_user(USER)
    );
    let (text, complaint) = installed.run(&around, WHO);
    assert_eq!(text, format!("{USER}\n{}", own_map()), "{complaint}");
    assert!(complaint.contains(UNSEEN), "{complaint}");
}

#[test]
fn root_that_may_not_mount_stays_out_of_user_namespaces() {
    let installed = Installed::new("root");
    let around = "setpriv --bounding-set -sys_admin --inh-caps -sys_admin --";
    let (text, complaint) = installed.run(around, WHO);
    assert_eq!(text, format!("0\n{}", own_map()), "{complaint}");
    assert!(complaint.contains(UNSEEN), "{complaint}");
    assert!(complaint.contains("CAP_SYS_ADMIN"), "{complaint}");
}

#[test]
fn the_overflow_user_stays_out_of_user_namespaces() {
    let installed = Installed::new("overflow");
    let (text, complaint) = installed.run(&as_user(OVERFLOW), WHO);
    assert_eq!(text, format!("{OVERFLOW}\n{}", own_map()), "{complaint}");
    assert!(complaint.contains(UNSEEN), "{complaint}");
}

#[test]
fn an_ordinary_user_keeps_its_number_with_a_view_and_without_one() {
    let installed = Installed::new("ordinary");
    let (text, complaint) = installed.run(&as_user(USER), "id -u; ls /sys/class/infiniband");
    let probe = format!("{} unshare -Urm true", as_user(USER));
    let probe = Command::new("sh").args(["-c", &probe]).output().unwrap();
    if probe.status.success() {
        assert_eq!(complaint, "");
        assert!(text.lines().any(|line| line == "sw_lo"), "{text}");
    } else {
        assert!(complaint.contains(UNSEEN), "{complaint}");
    }
    assert!(text.starts_with(&format!("{USER}\n")), "{text}");
}

#[test]
fn an_ordinary_user_can_open_a_pseudo_terminal_also_if_root_started_exec() {
    let installed = Installed::new("terminal");
    let script = "script -qec 'test -t 0' /dev/null && test -c /dev/ptmx && echo opened";
    let (text, complaint) = installed.run(&as_user(USER), script);
    assert_eq!(text, "opened\n", "{complaint}");
    let as_another = format!("{} sh -c \"{script}\"", as_user(USER));
    let (text, complaint) = installed.run("", &as_another);
    assert_eq!(text, "opened\n", "{complaint}");
}

#[test]
fn a_pseudo_terminal_has_its_usual_name_where_everybody_may_open_pts_ptmx() {
    let installed = Installed::new("usual");
    let around = "exec unshare -m sh -ec 'mount -t devpts -o ptmxmode=666 devpts /dev/pts; exec \"$0\" \"$@\"'";
    let script = "readlink /dev/ptmx; script -qec tty /dev/null";
    let (text, complaint) = installed.run(around, script);
    assert_eq!(text, "pts/ptmx\n/dev/pts/0\r\n", "{complaint}");
}

/// The attribute with a file's capabilities, and its value for CAP_NET_BIND_SERVICE, permitted and effective
/// (capabilities(7); version 2 in linux/capability.h).
const CAPABILITIES: (&str, [u8; 20]) = (
    "security.capability",
    [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
);

#[test]
fn exec_warns_of_file_capabilities_if_the_loader_takes_no_libraries_because_of_them() {
    let installed = Installed::new("capable");
    let env = installed.0.join("env");
    copy_program("/usr/bin/env", &env);
    let (name, value) = CAPABILITIES;
    rustix::fs::setxattr(&env, name, &value, rustix::fs::XattrFlags::empty()).unwrap();
    // The loader removes the variable if it ignores it (ld.so(8)).
    let ignores = |user: u32, options: &str| {
        let around = format!(
            "exec {} sh -ec '\"$0\" exec {options} -- {}; exec \"$0\" \"$@\"'",
            as_user(user),
            env.display()
        );
        let (text, complaint) = installed.run(&around, "true");
        let ignores = !text.contains("LD_LIBRARY_PATH=");
        let warns = complaint.contains("env has file capabilities");
        assert_eq!(warns, ignores, "{user} {options}: {complaint}");
        ignores
    };
    assert!(ignores(USER, "--no-sysfs"));
    assert!(!ignores(0, "--no-sysfs"));
    ignores(USER, "");
}

#[test]
fn a_limit_of_file_sizes_without_room_for_the_view_is_named_and_the_program_runs_without_it() {
    let installed = Installed::new("limited");
    let (text, complaint) = installed.run("prlimit --fsize=0", "echo runs");
    assert_eq!(text, "runs\n", "{complaint}");
    assert!(complaint.contains(UNSEEN), "{complaint}");
    assert!(complaint.contains("RLIMIT_FSIZE"), "{complaint}");
}
