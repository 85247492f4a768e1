//! The kernel's limit on descriptors that one ordinary user keeps in unix sockets, over all network namespaces.

use super::harness::*;
use super::process::Process;

#[test]
fn one_user_can_have_as_many_groups_as_the_hard_limit_of_descriptors_permits() {
    const USER: u32 = 40_011;
    const GROUPS: usize = 18;
    // A group keeps 256 descriptors, so 16 groups keep 4096.
    let start = || Process::start_as_with_open_files(config().port, USER, 1024, 8192);
    let groups: Vec<_> = (0..GROUPS).map(|_| start().joined()).collect();
    drop(groups);
}

#[test]
fn a_limit_too_low_for_a_group_is_named_with_its_value() {
    const USER: u32 = 40_012;
    // A limit of 255 has room for the store, but not for admitting anybody.
    for limit in [200, 253, 254, 255] {
        let started = Process::start_as_with_open_files(config().port, USER, 100, limit);
        let refused = started.refused();
        for part in [
            "sendmsg: Too many references",
            &format!("hard limit of open files (RLIMIT_NOFILE) is {limit}"),
            "what the processes of this user keep in unix sockets (256 descriptors for each network namespace",
            "raise it",
        ] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
    }
    let joined = |process: Process| process.joined();
    let port = config().port;
    let founder = joined(Process::start_as_with_open_files(port, USER, 100, 256));
    let second = joined(Process::start_as_with_open_files(port, USER, 100, 256));
    drop((founder, second));
}
