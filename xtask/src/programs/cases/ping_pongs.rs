//! libibverbs' ping-pongs.

use super::super::case::{Case, Data, Expected, Ready, Saying, c};
use super::{ADDRESS, DEVICE};

const GROUP: &str = "libibverbs's ping-pongs";
const PORT: u16 = 18_515;
const KINDS: [&str; 4] = ["rc", "uc", "ud", "srq"];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KINDS {
        for events in ["", " -e"] {
            cases.push(with_gid(kind, events));
        }
    }
    // Requests built with calls (`ibv_wr_*`), and an extended completion queue.
    cases.push(with_gid("rc", " -N"));
    // Completions with time stamps.
    let stamped = &[
        ("500 iters in", 1),
        ("Average receive completion clock cycles", 1),
    ];
    cases.push(with_gid("rc", " -t").both_say(stamped));
    for events in ["", " -e"] {
        cases.push(of_xrc(events));
    }
    for kind in KINDS {
        for events in ["", " -e"] {
            cases.push(without_gid(kind, events));
        }
    }
    cases
}

fn pair(kind: &str, options: &str) -> Case {
    let program = format!("ibv_{kind}_pingpong -d {DEVICE} -n 500 -c{options}");
    let client = c(&format!("{program} {ADDRESS}"));
    Case::pair(GROUP, c(&program), Ready::Tcp(PORT), client)
}

fn with_gid(kind: &str, options: &str) -> Case {
    pair(kind, &format!(" -g 0{options}"))
        .both_say(&[("500 iters in", 1)])
        .data(Data::ComparedByBoth)
        .quick()
}

/// XRC. The program does not compare data.
fn of_xrc(events: &str) -> Case {
    let program = format!("ibv_xsrq_pingpong -d {DEVICE} -n 500 -g 0{events}");
    let client = c(&format!("{program} {ADDRESS}"));
    Case::pair(GROUP, c(&program), Ready::Tcp(PORT), client)
        .both_say(&[("success", 1)])
        .data(Data::Unseen)
        .quick()
}

/// RoCE requires a GID. Without one the programs fail, as on rdma_rxe. The client with a shared receive queue then
/// reads from a closed socket forever.
fn without_gid(kind: &str, options: &str) -> Case {
    let server: &[Saying] = match kind {
        "ud" => &[("Failed to create AH", 1)],
        "srq" => &[("Failed to modify QP[0] to RTR", 1)],
        _ => &[("Failed to modify QP to RTR", 1)],
    };
    let client = match kind {
        "srq" => Expected::stays(),
        _ => Expected::refused(&[("Couldn't read/write remote address", 1)]),
    };
    let pair = pair(kind, options);
    pair.server(Expected::refused(server)).client(client)
}
