//! Storage over RDMA: fio's engine, and tgt's target of iSER with libiscsi's initiator. Each script has both ends.

use super::super::case::{Case, Data, c};
use crate::namespace::ETHERNET_ADDRESS;

const GROUP: &str = "storage";

pub(super) fn cases() -> Vec<Case> {
    let fio = |verb: &str| {
        let script = format!("sh xtask/src/programs/fio.sh {verb} {ETHERNET_ADDRESS}");
        Case::alone(GROUP, c(&script))
            .client_says(&[("both ends ended well", 1)])
            .on_ethernet()
    };
    let tgt = format!("sh xtask/src/programs/tgt.sh {ETHERNET_ADDRESS}");
    vec![
        fio("send").data(Data::ComparedByBoth),
        fio("write").data(Data::Unseen),
        fio("read").data(Data::Unseen),
        Case::alone(GROUP, c(&tgt))
            .client_says(&[("iSER: right", 1)])
            .data(Data::ComparedByClient)
            .on_ethernet()
            .quick(),
    ]
}
