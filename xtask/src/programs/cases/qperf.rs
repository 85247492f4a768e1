//! qperf: latency, bandwidth and verified atomics over the rdma_cm. Without it (`-cm 0`) qperf gives its queue pairs no
//! GIDs, so no RoCE device can connect them.

use super::super::case::{Case, Data, Expected, Ready, c};
use crate::namespace::ETHERNET_ADDRESS;

const GROUP: &str = "qperf";
const PORT: u16 = 19_765;

/// The first two rows are of two-sided and one-sided operations; the last checks the values that atomics return.
pub(super) fn cases() -> Vec<Case> {
    let two_sided = "rc_lat rc_bw";
    let one_sided = "rc_rdma_write_lat rc_rdma_write_bw rc_rdma_read_lat rc_rdma_read_bw rc_compare_swap_mr rc_fetch_add_mr";
    vec![
        play(two_sided, Data::Unseen).quick(),
        play(one_sided, Data::Unseen),
        play(
            "ver_rc_compare_swap ver_rc_fetch_add",
            Data::ComparedByClient,
        )
        .quick(),
    ]
}

/// The server never exits by itself.
fn play(tests: &str, data: Data) -> Case {
    let client = c(&format!("qperf -t 1 -cm 1 {ETHERNET_ADDRESS} {tests}"));
    Case::pair(GROUP, c("qperf"), Ready::Tcp(PORT), client)
        .server(Expected::stays())
        .data(data)
        .on_ethernet()
}
