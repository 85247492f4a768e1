//! Debian's programs on our `librdmacm.so.1`, over the machine's libibverbs and rdma_rxe: at both
//! ends, and at each end with Debian's library at the other.

use crate::machine::Step;

use super::{FAMILIES, step};

/// The library's file name in the machine.
pub(super) const NAME: &str = "librdmacm.so.1";
/// The steps' functions, to be sourced after judge.sh.
pub(super) const SCRIPT: &str = include_str!("guest/c_library.sh");
/// Guest path of [`SCRIPT`].
pub(super) const SCRIPT_PATH: &str = "/job/c_library.sh";
/// Iterations of an exchange.
const ITERATIONS: u32 = 20;
/// Connections of cmtime.
const CONNECTIONS: u32 = 20;

/// Options of `rstream` and `riostream`: a few sizes and ways to wait, with the bytes compared.
/// `cargo xtask interop --programs rsockets` plays more.
const STREAMS: [(&str, &str); 4] = [
    ("rstream", "-S 64 -C 200"),
    ("rstream", "-S 200000 -C 10 -T a"),
    ("rstream", "-S 20000 -C 50 -T n"),
    ("riostream", "-S 20000 -C 50"),
];

/// Every program over IPv4. Programs that depend on the address family run over IPv6 too.
pub(super) fn steps() -> Vec<Step> {
    let over_families = FAMILIES.iter().flat_map(|family| {
        [
            (
                "rping with rping",
                format!("kernel_alone {family} {ITERATIONS}"),
            ),
            ("udaddy with udaddy", format!("datagrams_alone {family}")),
        ]
        .map(|(what, script)| (format!("{what}, IPv{family}"), script))
    });
    let others = [
        ("the programs have our library", "ours_is_loaded".to_owned()),
        ("mckey with mckey", "in_three_tries groups_alone".to_owned()),
        ("ucmatose with ucmatose", "events_alone".to_owned()),
        (
            "rdma_client with rdma_server",
            "in_three_tries endpoints_alone".to_owned(),
        ),
        (
            "cmtime with cmtime",
            format!("connections_alone {CONNECTIONS}"),
        ),
        (
            "rping on ours calls Debian's",
            format!("ours_calls {ITERATIONS}"),
        ),
        (
            "rping on Debian's calls ours",
            format!("ours_serves {ITERATIONS}"),
        ),
        ("a port without listener", "ours_is_rejected".to_owned()),
        (
            "every call gives what it gives on Debian's",
            "calls_are_alike".to_owned(),
        ),
        ("the server is killed", "ours_loses_its_peer".to_owned()),
    ]
    .map(|(what, script)| (what.to_owned(), script));
    let ends = [("ours", "ours"), ("debians", "ours"), ("ours", "debians")];
    // Debian's rpoll reports POLLHUP while data is unread. The asynchronous client gives up then, if it is late.
    let is_fair = |client: &str, options: &str| client == "ours" || !options.contains("-T a");
    let streams = STREAMS.iter().flat_map(|(program, options)| {
        let ends = ends
            .into_iter()
            .filter(|(_, client)| is_fair(client, options));
        ends.map(move |(server, client)| {
            let what = format!("{program} {options}, server {server}, client {client}");
            let script = format!("streams {server} {client} {program} {options} -T v");
            (what, script)
        })
    });
    over_families
        .chain(others)
        .chain(streams)
        .map(|(what, script)| {
            let script = format!(". {SCRIPT_PATH}\n{script}");
            step(format!("C programs on our librdmacm: {what}"), &script)
        })
        .collect()
}
