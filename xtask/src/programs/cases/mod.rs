//! The rows.

mod connection_manager;
mod crates;
mod libfabric;
mod mixed;
mod mpi;
mod perftest;
mod ping_pongs;
mod preload;
mod pyverbs;
mod qperf;
mod sockets;
mod storage;
mod ucx;

use super::case::{Case, c};

/// The address of the loopback interface and of its software device.
const ADDRESS: &str = "127.0.0.1";
const DEVICE: &str = "sw_lo";
/// The software device of the Ethernet link.
const ETHERNET_DEVICE: &str = "sw_eth0";

/// Every row, in the order of the document.
pub(super) fn all() -> Vec<Case> {
    [
        devices(),
        connection_manager::cases(),
        mixed::cases(),
        sockets::cases(),
        preload::cases(),
        ping_pongs::cases(),
        perftest::cases(),
        qperf::cases(),
        pyverbs::cases(),
        libfabric::cases(),
        ucx::cases(),
        mpi::cases(),
        storage::cases(),
        crates::cases(),
    ]
    .concat()
}

/// Devices must have the same properties as rdma_rxe, except XRC, name and GIDs.
fn devices() -> Vec<Case> {
    const GROUP: &str = "devices";
    vec![
        Case::alone(GROUP, c("ibv_devices"))
            .client_says(&[(DEVICE, 1)])
            .quick(),
        Case::alone(GROUP, c(&format!("ibv_devinfo -v -d {DEVICE}")))
            .client_says(&[
                ("transport:\t\t\tInfiniBand (0)", 1),
                ("device_cap_flags:\t\t0x01323c76", 1),
                ("state:\t\t\tPORT_ACTIVE (4)", 1),
                ("link_layer:\t\tEthernet", 1),
                ("GID[  0]:\t\t::ffff:127.0.0.1, RoCE v2", 1),
            ])
            .quick(),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_row_exists_twice() {
        let mut seen = BTreeSet::new();
        for case in all() {
            let server = case.server.as_ref().map(|server| server.end.text());
            let row = (server, case.client_text());
            assert!(seen.insert(row.clone()), "{row:?}");
        }
    }

    #[test]
    fn the_selection_has_rows_of_every_group() {
        let groups = |quick: bool| -> BTreeSet<_> {
            let cases = all().into_iter().filter(|case| !quick || case.is_quick);
            cases.map(|case| case.group).collect()
        };
        assert_eq!(groups(true), groups(false));
    }
}
