//! Programs that rely on their limit of open files: `limits.c`.

use crate::same_case;

fn limits(case: &str, on_tcp: &str) -> String {
    same_case("limits", case, on_tcp)
}

#[test]
fn a_server_that_uses_select_keeps_its_soft_limit_and_gets_no_number_beyond_it() {
    let said = "accepted: 700, received: 700, limit: 1024\ndone\n";
    let report = limits("select", said);
    assert!(report.contains("700 accepted"), "{report}");
}

#[test]
fn an_array_for_poll_has_as_many_places_as_the_process_may_have_files() {
    let said = "nothing yet: 0\ndata: 1\nat the stream: 1\ntoo many: EINVAL\ndone\n";
    let report = limits("poll", said);
    assert!(
        report.contains("rsockets 1 connected, 1 accepted"),
        "{report}"
    );
}

#[test]
fn a_process_that_can_have_no_more_files_sleeps_while_it_waits_for_a_stream() {
    let report = limits(
        "full",
        "poll: 1\nread: 1\nbusy: 0\nread: 1\nbusy: 0\ndone\n",
    );
    assert!(
        report.contains("rsockets 1 connected, 1 accepted"),
        "{report}"
    );
}
