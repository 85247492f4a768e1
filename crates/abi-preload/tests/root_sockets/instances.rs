//! Epoll instances and listeners that threads share: `instances.c`.

use crate::{Folder, run};

/// Plays a case of `instances.c` on TCP and on rsockets. Returns the report of the latter.
fn instances(case: &str, on_tcp: &str) -> String {
    let name = case.split(' ').next().unwrap();
    let folder = Folder::with(name, "instances.c");
    let (said, _) = run(&folder, &format!("timeout 100 $tcp {case}"));
    assert!(said.ends_with(on_tcp), "{said}");
    let (on_rsockets, report) = run(&folder, &format!("timeout 100 $rsockets {case}"));
    assert_eq!(on_rsockets, said, "{report}");
    report
}

#[test]
fn sockets_that_enter_an_epoll_instance_by_a_duplicate_of_its_descriptor_are_reported_by_all_of_them()
 {
    let report = instances("copies", "an end that was added later: 1\ndone\n");
    assert!(report.contains("rsockets 1 connected"), "{report}");
}

#[test]
fn a_socket_and_its_duplicate_are_both_in_an_epoll_instance() {
    let report = instances("numbers", "a connect and its duplicate: 1\ndone\n");
    assert!(report.contains("rsockets 3 connected"), "{report}");
}

#[test]
fn sockets_that_stay_ready_are_reported_to_each_waiter_and_hide_nothing() {
    let report = instances("nested", "each thread has one: 1\ndone\n");
    assert!(report.contains("rsockets 3 connected"), "{report}");
}

#[test]
fn a_program_finds_no_io_uring_which_would_pass_the_library_by() {
    let folder = Folder::with("rings", "instances.c");
    let (said, _) = run(&folder, "timeout 60 $rsockets rings");
    let expected = "io_uring_setup: ENOSYS\ngetpid: 1\nwrite: 1\nsplice: EBADF\nread: 1\ndone\n";
    assert_eq!(said, expected);
    let rules = folder.0.join("rules");
    std::fs::write(&rules, "other * stream tcp\n").unwrap();
    let left_out = format!("export PORTOLAN_SOCKETS_CONFIG={}", rules.display());
    let (left_out, _) = run(&folder, &format!("{left_out}; timeout 60 $rsockets rings"));
    let (on_tcp, _) = run(&folder, "timeout 60 $tcp rings");
    assert_eq!(left_out, on_tcp, "the settings leave the program out");
    let (of_io_uring, others) = on_tcp.split_once('\n').unwrap();
    assert!(of_io_uring.starts_with("io_uring_setup: "), "{on_tcp}");
    assert!(expected.ends_with(others), "{on_tcp}");
}

#[test]
fn two_threads_that_add_the_first_sockets_of_an_epoll_instance_lose_none() {
    let report = instances("first 300", "lost: 0\ndone\n");
    assert!(report.contains("rsockets 2 connected"), "{report}");
}

#[test]
fn threads_of_a_child_that_use_an_inherited_listener_at_once_serve_its_clients() {
    let report = instances("inherits 60", "unserved: 0\ndone\n");
    assert!(!report.contains("rsockets 0 connected"), "{report}");
}

#[test]
fn two_threads_that_wait_on_one_instance_each_accept_a_client() {
    let report = instances("shares 1500", "unserved: 0\ndone\n");
    assert!(report.contains("rsockets 3000 connected"), "{report}");
}

#[test]
fn room_that_is_asked_for_while_another_thread_looks_at_the_socket_is_reported() {
    let report = instances("modifies 20000", "lost: 0\ndone\n");
    assert!(report.contains("rsockets 1 connected"), "{report}");
}

#[test]
fn a_thread_that_another_one_forestalls_at_a_tcp_connection_accepts_the_next_rsocket() {
    let report = instances("accepts 50", "all were served: 1\ndone\n");
    let own = "rsockets 50 connected, 50 accepted, 0 handed over; TCP 0 connected, 50 accepted";
    assert!(report.contains(own), "{report}");
}
