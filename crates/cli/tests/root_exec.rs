//! `portolan exec` where a user namespace is not to be had, or would do harm: the program runs as who it was, and hears why it
//! sees no devices in sysfs.

#[path = "common/mod.rs"]
mod common;
#[path = "common/installed.rs"]
mod installed;

use std::fs;
use std::process::Command;

use installed::{Installed, as_user};

/// An ordinary user, of whom the machine knows nothing.
const USER: u32 = 60_001;
/// What the kernel calls users without a number.
const OVERFLOW: u32 = 65_534;
const UNSEEN: &str = "sees no devices in /sys/class/infiniband";

/// The first namespace's map, or whichever this is.
fn own_map() -> String {
    fs::read_to_string("/proc/self/uid_map").unwrap()
}

const WHO: &str = "id -u; cat /proc/self/uid_map";

#[test]
fn a_user_namespace_that_cannot_be_finished_is_not_entered() {
    let installed = Installed::new("unfinished");
    // It can be made, and then its map cannot be written, as where AppArmor restricts them.
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
fn the_user_that_stands_for_all_unknown_ones_stays_out_of_user_namespaces() {
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
