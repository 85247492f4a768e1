//! UCX over verbs: connections and datagrams, selected as RoCE users do (`UCX_TLS`, `UCX_NET_DEVICES`), and connections
//! over the rdma_cm.

use super::super::case::{Case, Data, Expected, Ready, Saying, c};
use super::ETHERNET_DEVICE;
use crate::namespace::ETHERNET_ADDRESS;

const GROUP: &str = "UCX on verbs";
/// TCP port on which the ends of `ucx_perftest` exchange their addresses.
const PERFTEST_PORT: u16 = 13_337;
const DEMO_PORT: u16 = 1337;
/// `rc` is reliable connections, `ud` is datagrams. Both exclude shared memory and TCP.
const TRANSPORTS: [&str; 2] = ["rc", "ud"];
const OPERATIONS: [&str; 13] = [
    "tag_lat",
    "tag_bw",
    "ucp_am_lat",
    "ucp_am_bw",
    "ucp_put_lat",
    "ucp_put_bw",
    "ucp_get",
    "stream_lat",
    "stream_bw",
    "ucp_add",
    "ucp_fadd",
    "ucp_swap",
    "ucp_cswap",
];
const FINAL: &[Saying] = &[("Final:", 1)];

pub(super) fn cases() -> Vec<Case> {
    let info = Case::alone(GROUP, c("ucx_info -d"))
        .on_ethernet()
        .client_says(&[
            ("Transport: rc_verbs", 1),
            ("Transport: ud_verbs", 1),
            ("Device: sw_eth0:1", 2),
        ])
        .quick();
    let mut cases = vec![info];
    for transport in TRANSPORTS {
        for operation in OPERATIONS {
            cases.push(perftest(transport, operation, "-n 500 -w 50"));
        }
        // Larger than a packet and than the eager limit.
        for operation in ["tag_bw", "ucp_put_bw", "ucp_get"] {
            cases.push(perftest(transport, operation, "-s 1048576 -n 20 -w 2"));
        }
        for messages in ["", " -A"] {
            cases.push(demo(transport, messages));
        }
    }
    cases
}

fn settings(transport: &str) -> String {
    format!("env UCX_TLS={transport},self UCX_NET_DEVICES={ETHERNET_DEVICE}:1")
}

fn perftest(transport: &str, operation: &str, sizes: &str) -> Case {
    let program = format!(
        "{} ucx_perftest -t {operation} {sizes}",
        settings(transport)
    );
    let client = c(&format!("{program} {ETHERNET_ADDRESS}"));
    let case = Case::pair(GROUP, c(&program), Ready::Tcp(PERFTEST_PORT), client)
        .client_says(FINAL)
        .data(Data::Unseen)
        .on_ethernet();
    match operation {
        "tag_lat" | "ucp_cswap" => case.quick(),
        _ => case,
    }
}

/// The clients read and write, and both ends compare the data (`-q`). The server never exits by itself.
fn demo(transport: &str, messages: &str) -> Case {
    let program = format!(
        "{} UCX_SOCKADDR_TLS_PRIORITY=rdmacm io_demo -q -d 64:65536 -p {DEMO_PORT}{messages}",
        settings(transport)
    );
    let client = c(&format!(
        "{program} -i 200 -w 4 -o read,write {ETHERNET_ADDRESS}"
    ));
    Case::pair(GROUP, c(&program), Ready::Listener(DEMO_PORT), client)
        .server(Expected::stays())
        .client_says(&[("Client exit with status 'OK'", 1)])
        .data(Data::ComparedByBoth)
        .on_ethernet()
        .quick()
}
