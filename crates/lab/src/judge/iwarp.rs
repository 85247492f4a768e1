//! The library, the command and C programs over the kernel's iWARP driver, siw. iWARP's rules
//! differ from InfiniBand's: each queue pair uses a TCP stream; there are no datagrams, groups,
//! atomics, immediate data, timewait, or reasons of rejections.

use std::path::Path;

use super::{Report, c_library, events, step};
use crate::machine::{Job, Outcome, Step};

const SCRIPT: &str = include_str!("guest/iwarp.sh");
/// Guest path of [`SCRIPT`].
const SCRIPT_PATH: &str = "/job/iwarp.sh";
/// A scenario that Debian's librdmacm and the library must play with the same results.
const SCENARIO: (&str, &str) = ("iwarp", include_str!("guest/iwarp.txt"));

/// C programs on our librdmacm, by the functions of `guest/c_library.sh`. Without ucmatose, whose
/// server sends first, which iWARP forbids.
const C_PROGRAMS: [(&str, &str); 6] = [
    ("rping on ours calls Debian's", "ours_calls 10"),
    ("rping on Debian's calls ours", "ours_serves 10"),
    ("rping with rping, IPv6", "kernel_alone 6 10"),
    (
        "rdma_client with rdma_server",
        "in_three_tries endpoints_alone",
    ),
    (
        "every call gives what it gives on Debian's",
        "calls_over_iwarp",
    ),
    (
        "what iWARP has not is refused as on Debian's",
        "refusals_are_alike",
    ),
];

/// The command and the library, by the functions of `guest/kernel_provider.sh`.
const OURS: [(&str, &str); 7] = [
    ("its provider is the kernel's, by route", "by_route_to_siw"),
    ("rping -c, our listen, IPv4", "ours_serves 4 10"),
    ("rping -c, our listen, IPv6", "ours_serves 6 10"),
    ("our ping, rping -s, IPv4", "ours_calls 4 10"),
    ("our ping, rping -s, IPv6", "ours_calls 6 10"),
    ("our ping and listen by route", "ours_alone 4 10"),
    ("our ping to a port without listener", "nobody_listens"),
];

/// The tests of the conformance suite that need nothing that iWARP lacks. For example, a completed
/// write has only been sent and need not be in the peer's memory.
const TESTS: [&str; 12] = [
    "addresses::a_port_in_use_cannot_be_bound_and_is_free_again_when_its_id_is_destroyed",
    "addresses::an_address_of_no_device_cannot_be_bound",
    "addresses::an_id_has_the_device_that_serves_its_address",
    "addresses::commands_out_of_order_are_errors_that_leave_the_id_usable",
    "connections::a_destroyed_id_disconnects_its_peer",
    "events::an_id_is_not_destroyed_before_its_events_are_acknowledged",
    "events::an_id_takes_its_queued_events_to_another_channel",
    "events::waiting_for_an_event_ends_at_its_deadline",
    "transfers::a_send_arrives_in_the_receive_that_was_posted_first",
    "transfers::posted_work_is_flushed_when_the_connection_ends",
    "verbs::an_armed_completion_queue_raises_an_event_with_its_name_on_its_channel",
    "verbs::inline_bytes_are_copied_when_they_are_posted",
];

/// `scenes` is where the steps find `guest/kernel_provider.sh`.
pub(super) fn steps(scenes: &str) -> Vec<Step> {
    let over_siw = |what: &str, script: String| {
        let script = script.replace("SIW", &format!(". {SCRIPT_PATH}"));
        step(format!("over siw: {what}"), &script)
    };
    let c_programs = C_PROGRAMS.iter().map(|(what, script)| {
        let before = c_library::SCRIPT_PATH;
        over_siw(what, format!(". {before}\nSIW\n{script}"))
    });
    let ours = OURS
        .iter()
        .map(|(what, script)| over_siw(what, format!(". {scenes}\nSIW\n{script}")));
    let ends = |script: &str| format!(". {scenes}\nSIW\n{script}");
    let name = SCENARIO.0;
    let play = format!(". {}\nSIW\nplay_both {name}", events::GUEST_PATH);
    [over_siw("a device", ends("add_siw"))]
        .into_iter()
        .chain(c_programs)
        .chain(ours)
        .chain([
            over_siw(
                "tests of the conformance suite",
                ends(&format!("conformance_of {}", TESTS.join(" "))),
            ),
            over_siw("the scenario is played", play),
            over_siw("nothing is left", ends("remove_siw")),
        ])
        .collect()
}

/// Adds the steps' files to the job. `players` are those of [`events`].
pub(super) fn with_programs(job: Job, players: [&Path; 2]) -> Job {
    events::with_players(job, players, &[SCENARIO]).file(SCRIPT_PATH, SCRIPT)
}

/// Compares what librdmacm and the library reported.
pub(super) fn compare(report: &mut Report, outcome: &Outcome) {
    report.add(events::alike(
        "over siw: every event beside librdmacm's",
        outcome,
        SCENARIO,
    ));
}
