//! What the kernel lets one ordinary user keep in unix sockets, in all network namespaces together.

use super::harness::*;
use super::process::Process;

#[test]
fn one_user_can_have_as_many_groups_as_the_hard_limit_of_descriptors_has_room_for() {
    const USER: u32 = 40_011;
    const GROUPS: usize = 18;
    // A group keeps 256 descriptors, and 16 groups 4096.
    let start = || Process::start_as_with_open_files(config().port, USER, 1024, 8192);
    let groups: Vec<_> = (0..GROUPS).map(|_| start().joined()).collect();
    drop(groups);
}

#[test]
fn a_user_whose_limit_has_no_room_for_a_group_is_told_which_and_how_high_it_is() {
    const USER: u32 = 40_012;
    // 255 have room for the store, and not for letting anybody in.
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
