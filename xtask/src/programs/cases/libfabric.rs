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
    let datagrams = format!("-d {ETHERNET_DEVICE}-dgram");
    vec![
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
    ]
}

fn ping_pong(options: &str, says: &'static [Saying]) -> Case {
    let program = format!("fi_pingpong -c {options}");
    let client = c(&format!("{program} {ETHERNET_ADDRESS}"));
    Case::pair(GROUP, c(&program), Ready::Tcp(PORT), client)
        .both_say(says)
        .data(Data::ComparedByBoth)
        .on_ethernet()
}
