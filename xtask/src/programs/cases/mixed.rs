//! Programs whose protocol the command also speaks, in both directions.

use super::super::case::{Case, Data, Expected, Ready, c, ours};
use super::ADDRESS;
use super::connection_manager::WELL;

const GROUP: &str = "with one end of ours";
const PORT: u16 = super::connection_manager::RPING_PORT;
/// Groups, one for each direction.
const GROUPS: [[u8; 4]; 2] = [[239, 7, 0, 10], [239, 7, 0, 11]];

pub(super) fn cases() -> Vec<Case> {
    let [mckey_joins, ours_joins] = GROUPS.map(std::net::Ipv4Addr::from);
    let listener = Ready::Listener(PORT);
    let well = Expected::well(WELL);
    vec![
        Case::pair(
            GROUP,
            ours(&format!("listen {ADDRESS}:{PORT} --once")),
            listener,
            c(&format!("rping -c -a {ADDRESS} -C 100 -v -V -S 10000")),
        )
        .client_says(&[("ping data: rdma-ping-", 100)])
        .data(Data::ComparedByClient)
        .quick(),
        Case::pair(
            GROUP,
            c(&format!("rping -s -a {ADDRESS} -v -S 10000")),
            listener,
            ours(&format!("ping {ADDRESS}:{PORT} --count 100 --size 10000")),
        )
        .server(Expected::well(&[("server ping data: ", 100)]))
        .data(Data::ComparedByClient)
        .quick(),
        Case::pair(
            GROUP,
            c("udaddy -c 1 -C 20 -S 1024"),
            listener,
            ours(&format!(
                "ping --ud {ADDRESS}:{PORT} --count 20 --size 1024"
            )),
        )
        .server(well)
        .data(Data::ComparedByClient)
        .quick(),
        Case::pair(
            GROUP,
            ours(&format!("listen --ud {ADDRESS}:{PORT} --count 20")),
            listener,
            c(&format!("udaddy -s {ADDRESS} -c 1 -C 20 -S 1024")),
        )
        .client(well)
        .data(Data::Unseen)
        .quick(),
        Case::pair(
            GROUP,
            c(&format!(
                "mckey -m {mckey_joins} -b {ADDRESS} -C 20 -S 1000"
            )),
            Ready::Member(mckey_joins),
            ours(&format!(
                "mcast send {mckey_joins} --bind {ADDRESS} --count 20 --size 1000"
            )),
        )
        .server(well)
        .data(Data::Unseen)
        .quick(),
        Case::pair(
            GROUP,
            ours(&format!(
                "mcast join {ours_joins} --bind {ADDRESS} --count 20 --timeout 60"
            )),
            Ready::Member(ours_joins),
            c(&format!(
                "mckey -m {ours_joins} -b {ADDRESS} -s -C 20 -S 1000"
            )),
        )
        .client(well)
        .data(Data::Unseen)
        .quick(),
    ]
}
