//! What an epoll instance reports: `reports.c`.

use crate::{Folder, only_rsockets, same_on_both};

fn reports(case: &str) -> String {
    let folder = Folder::with(&format!("reports-{case}"), "reports.c");
    same_on_both(&folder, "", case)
}

#[test]
fn a_one_shot_listener_is_reported_once_for_clients_with_and_without_rsockets() {
    let report = reports("shots");
    let own = "rsockets 10 connected, 10 accepted, 0 handed over; TCP 0 connected, 10 accepted";
    assert!(report.contains(own), "{report}");
}

#[test]
fn an_instance_that_nobody_waits_on_takes_no_more_and_more_memory() {
    only_rsockets(&reports("unwaited"));
}

#[test]
fn an_exclusive_interest_cannot_be_modified() {
    only_rsockets(&reports("exclusive"));
}
