//! Examples of other Rust crates on libibverbs and librdmacm. `ibverbs` links with libibverbs; `sideway` loads both
//! libraries at startup.

use super::super::case::{Case, Data, Ready, c};
use super::super::crates::program;
use super::ETHERNET_DEVICE;
use crate::namespace::ETHERNET_ADDRESS;

const GROUP: &str = "Rust crates on verbs";
const PORT: u16 = 18_515;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::alone(GROUP, c(&program("loopback")))
            .client_says(&[("sent", 1), ("received", 1)])
            .data(Data::ComparedByClient)
            .on_ethernet(),
        ping_pong("rc_pingpong", ""),
        ping_pong("rc_pingpong", " --ts"),
        ping_pong("rc_pingpong_split", ""),
        times(),
    ]
}

fn ping_pong(example: &str, options: &str) -> Case {
    let server = format!("{} -d {ETHERNET_DEVICE} -g 1{options}", program(example));
    let client = c(&format!("{server} {ETHERNET_ADDRESS}"));
    Case::pair(GROUP, c(&server), Ready::Tcp(PORT), client)
        .both_say(&[("1000 iters in", 1)])
        .data(Data::Unseen)
        .on_ethernet()
        .quick()
}

/// 100 simultaneous connections.
fn times() -> Case {
    let server = format!("{} -b {ETHERNET_ADDRESS}", program("cmtime"));
    let client = c(&format!("{} -s {ETHERNET_ADDRESS}", program("cmtime")));
    Case::pair(GROUP, c(&server), Ready::Listener(PORT), client)
        .client_says(&[("Connect", 1), ("Disconnect", 1)])
        .on_ethernet()
        .quick()
}
