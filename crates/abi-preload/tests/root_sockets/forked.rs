//! Epoll instances that processes share: `forked.c`. A listener that they share: `taken.c`.

use crate::{Folder, run, same_case};

fn forked(case: &str, on_tcp: &str) -> String {
    same_case("forked", case, on_tcp)
}

#[test]
fn a_daemon_that_inherits_its_instance_sleeps_and_serves_its_clients() {
    let idle = "the daemon waits: 0, all the time: 1, busy: 0\nanswered: 1\n";
    let report = forked("daemon", &format!("{idle}{idle}done\n"));
    assert!(report.contains("0 connected, 2 accepted"), "{report}");
}

#[test]
fn workers_that_inherit_one_instance_sleep_and_serve_their_clients() {
    forked("workers", "answered: 5, busy: 0\ndone\n");
}

#[test]
fn a_parent_sleeps_while_its_child_has_sockets_of_its_own_in_their_instance() {
    let said = "the parent waits: 0, all the time: 1, busy: 0\nanswered: 1\ndone\n";
    let report = forked("parent", said);
    assert!(report.contains("rsockets 1 connected"), "{report}");
}

#[test]
fn a_child_polls_the_instance_that_it_inherits() {
    let turn = "poll of nothing: 0\nbusy: 0\npoll: 1\n";
    let report = forked("polled", &format!("{turn}{turn}done\n"));
    assert!(report.contains("rsockets 2 connected"), "{report}");
}

#[test]
fn a_stream_wakes_a_thread_that_waited_before_a_fork_although_the_child_waits_for_the_same_instance()
 {
    let report = forked("woken", "lost: 0\ndone\n");
    assert!(report.contains("rsockets 20 connected"), "{report}");
}

#[test]
fn a_worker_whose_connection_another_one_takes_does_not_wait_where_no_stream_wakes_it() {
    let folder = Folder::with("taken", "taken.c");
    let (said, _) = run(&folder, "timeout 100 $tcp");
    assert_eq!(said, "asleep in the kernel's accept: 1\n");
    let (said, _) = run(&folder, "timeout 100 $rsockets");
    assert_eq!(said, "asleep in the kernel's accept: 0\n");
}
