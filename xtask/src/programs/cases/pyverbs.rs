//! rdma-core's tests in Python. They skip tests that need a vendor's hardware. The connection manager's tests use
//! devices in forked children, and so does Python's multiprocessing (processes.py).

use super::super::case::{Case, Data, c};
use super::{DEVICE, ETHERNET_DEVICE};

const GROUP: &str = "rdma-core's tests in Python";

fn processes() -> Case {
    let program = format!("/usr/bin/python3 xtask/src/programs/processes.py {ETHERNET_DEVICE} 1");
    Case::alone(GROUP, c(&program))
        .client_says(&[("3 pairs of children: right", 1)])
        .data(Data::ComparedByBoth)
        .on_ethernet()
        .quick()
}

pub(super) fn cases() -> Vec<Case> {
    let run = |tests: &str| {
        let tests = tests.replace(' ', " -k tests.");
        let script = "sh xtask/src/programs/pyverbs.sh";
        Case::alone(GROUP, c(&format!("{script} --dev {DEVICE} --gid 0{tests}")))
    };
    vec![
        // Re-registered regions, windows, imports.
        run(" test_mr test_shared_pd test_pd")
            .client_says(&[("... ok", 17)])
            .quick(),
        // Every type of queue pair, including XRC.
        run(" test_atomic test_cq test_qp test_relaxed")
            .client_says(&[("... ok", 63)])
            .quick(),
        // All tests. Those skipped need hardware of one vendor, or features that rdma_rxe lacks as well.
        Case::alone(
            GROUP,
            c(&format!("sh xtask/src/programs/pyverbs.sh --dev {ETHERNET_DEVICE} --gid 1")),
        )
        .client_says(&[("... ok", 107)])
        .on_ethernet(),
        // Both ends are children of a process that has listed and opened devices.
        Case::alone(
            GROUP,
            c(&format!(
                "sh xtask/src/programs/pyverbs.sh --dev {ETHERNET_DEVICE} --gid 1 -k tests.test_rdmacm"
            )),
        )
        .client_says(&[("... ok", 10)])
        .on_ethernet()
        .quick(),
        processes(),
    ]
}
