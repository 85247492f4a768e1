//! libfabric's verbs provider: connections, datagrams, and the layers that provide reliable messages over each.
//! The provider ignores loopback interfaces.

use super::super::case::{Case, Data, Ready, Saying, c};
use super::ETHERNET_DEVICE;
use crate::namespace::ETHERNET_ADDRESS;

const GROUP: &str = "libfabric on verbs";
/// TCP port on which the ends exchange their addresses.
const PORT: u16 = 47_592;
/// Lines of the table of results for sizes up to 1 MiB.
const UP_TO_1_MIB: &[Saying] = &[("bytes ", 1), ("64 ", 1), ("64k ", 1), ("1m ", 1)];
/// What `fabtests.sh` says at its end. A comparison reads which tests have failed.
const NONE_FAILED: Saying = ("failed tests: none", 1);
/// A datagram fits one packet.
const UP_TO_A_PACKET: &[Saying] = &[("bytes ", 1), ("64 ", 1), ("1k ", 1)];

pub(super) fn cases() -> Vec<Case> {
    let info = Case::alone(GROUP, c("fi_info -p verbs"))
        .on_ethernet()
        .client_says(&[
            ("domain: sw_eth0", 4),
            ("type: FI_EP_MSG", 1),
            ("type: FI_EP_DGRAM", 1),
            ("provider: verbs;ofi_rxm", 1),
            ("provider: verbs;ofi_rxd", 1),
        ])
        .quick();
    let mut cases = fabtests();
    let datagrams = format!("-d {ETHERNET_DEVICE}-dgram");
    cases.extend([
        info,
        ping_pong("-p verbs -e msg", UP_TO_1_MIB).quick(),
        ping_pong("-p verbs;ofi_rxm -e rdm", UP_TO_1_MIB),
        ping_pong("-p verbs;ofi_rxm -e rdm -m tagged", UP_TO_1_MIB).quick(),
        ping_pong(&format!("-p verbs -e dgram {datagrams}"), UP_TO_A_PACKET).quick(),
        ping_pong(&format!("-p verbs;ofi_rxd -e rdm {datagrams}"), UP_TO_1_MIB).quick(),
        ping_pong(
            &format!("-p verbs;ofi_rxd -e rdm -m tagged {datagrams}"),
            UP_TO_1_MIB,
        ),
    ]);
    cases
}

/// libfabric's own tests, of the newer libfabric that belongs to them. A run fails if a test fails.
fn fabtests() -> Vec<Case> {
    const LEAST: [(&str, [&[Saying]; 3]); 2] = [
        (
            "verbs",
            [
                &[("result: Pass", 7), NONE_FAILED],
                &[("result: Pass", 9), NONE_FAILED],
                &[("result: Pass", 7), NONE_FAILED],
            ],
        ),
        (
            "verbs;ofi_rxm",
            [
                &[("result: Pass", 8), NONE_FAILED],
                &[("result: Pass", 16), NONE_FAILED],
                &[("result: Pass", 2), NONE_FAILED],
            ],
        ),
    ];
    let mut cases = Vec::new();
    for (provider, least) in LEAST {
        for (set, says) in ["unit", "functional", "short"].into_iter().zip(least) {
            let script =
                format!("sh xtask/src/programs/fabtests.sh {provider} {set} {ETHERNET_ADDRESS}");
            let case = Case::alone(GROUP, c(&script)).client_says(says);
            cases.push(case.data(Data::ComparedByBoth).on_ethernet());
        }
    }
    cases
}

fn ping_pong(options: &str, says: &'static [Saying]) -> Case {
    let program = format!("fi_pingpong -c {options}");
    let client = c(&format!("{program} {ETHERNET_ADDRESS}"));
    Case::pair(GROUP, c(&program), Ready::Tcp(PORT), client)
        .both_say(says)
        .data(Data::ComparedByBoth)
        .on_ethernet()
}
