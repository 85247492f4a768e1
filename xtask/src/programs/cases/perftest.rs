//! perftest: latency and bandwidth of every operation.

use super::super::case::{Case, Data, Ready, Saying, c};
use super::{ADDRESS, DEVICE, ETHERNET_DEVICE};
use crate::namespace::ETHERNET_ADDRESS;

const GROUP: &str = "perftest, 2 bytes to 8 MiB";
const PORT: u16 = 18_515;
/// The last line of a table of results for all sizes.
const LARGEST: &[Saying] = &[("#bytes", 1), (" 8388608 ", 1)];
const TABLE: &[Saying] = &[("#bytes", 1)];
/// With `-R` the ends first exchange data over another connection, then the client connects at once. If the server does
/// not listen again yet, the client is rejected, retries with destroyed ids, and crashes. The same happens with
/// Debian's librdmacm on rdma_rxe.
const HASTE: &str = "RDMA_CM_EVENT_REJECTED; error: 8.";

pub(super) fn cases() -> Vec<Case> {
    [operations(), options()].concat()
}

/// Connected over TCP and over the rdma_cm (`-R`), with every size (`-a`). Atomics have only one size.
fn operations() -> Vec<Case> {
    let mut cases = Vec::new();
    for by_cm in [false, true] {
        for operation in ["send", "write", "read"] {
            for figure in ["lat", "bw"] {
                let program = format!("ib_{operation}_{figure} -a -n 5");
                cases.push(on_loopback(&program, by_cm).client_says(LARGEST));
            }
        }
        for figure in ["lat", "bw"] {
            let program = format!("ib_atomic_{figure} -n 100");
            let case = on_loopback(&program, by_cm).client_says(TABLE);
            cases.push(if by_cm { case.quick() } else { case });
        }
    }
    cases
}

/// Short runs of one size, which `programs --beside` compares with rdma_rxe. Variants: events, other transports, inline data, more queue pairs, each atomic operation.
fn options() -> Vec<Case> {
    [
        "ib_send_lat -n 1000 -e",
        "ib_send_lat -n 1000 -c UC",
        "ib_send_bw -n 1000 -c UD -s 1024",
        "ib_write_lat -n 1000 -I 128",
        "ib_write_bw -n 1000 -q 2",
        "ib_read_lat -n 1000",
        "ib_read_bw -n 1000",
        "ib_atomic_lat -n 1000 -A FETCH_AND_ADD",
        "ib_atomic_bw -n 1000 -A CMP_AND_SWAP",
    ]
    .map(|program| on_ethernet(program).client_says(TABLE).quick())
    .into()
}

fn on_loopback(program: &str, by_cm: bool) -> Case {
    pair(program, (DEVICE, ADDRESS), by_cm)
}

fn on_ethernet(program: &str) -> Case {
    pair(program, (ETHERNET_DEVICE, ETHERNET_ADDRESS), false).on_ethernet()
}

fn pair(program: &str, (device, address): (&str, &str), by_cm: bool) -> Case {
    let (way, ready, haste) = match by_cm {
        true => (" -R", Ready::Listener(PORT), Some(HASTE)),
        false => ("", Ready::Tcp(PORT), None),
    };
    let server = format!("{program} -d {device} -x 0 -F{way}");
    let client = c(&format!("{server} {address}"));
    Case {
        data: Data::Unseen,
        haste,
        ..Case::pair(GROUP, c(&server), ready, client)
    }
}
