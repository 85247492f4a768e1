//! rdma-core's tests in Python. They skip what needs a vendor's hardware. Those of the connection manager use
//! devices in forked children, which is not supported, and are left out.

use super::super::case::{Case, c};
use super::DEVICE;

const GROUP: &str = "rdma-core's tests in Python";

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
    ]
}
