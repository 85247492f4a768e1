//! librdmacm's programs over rsockets.

use super::super::case::{Case, Data, Expected, Ready, Saying, c};
use super::ADDRESS;

const GROUP: &str = "librdmacm's programs over rsockets";
/// The ports of `rstream` and `riostream`, of `rcopy`, and of `udpong`.
const PORT: u16 = 7471;
const COPY_PORT: u16 = 7427;
const DATAGRAM_PORT: u16 = 7174;
/// The heading and the line of one custom size.
const MEASURED: &[Saying] = &[("usec/xfer", 1), ("custom", 1)];

/// All of `udpong`'s 200 datagrams, and as many echoes.
const ALL: &[Saying] = &[("custom    1000    200 ", 1)];
const ECHOED: &[Saying] = &[("custom    1000    400 ", 1)];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // Sizes below the inline limit, and one larger than both buffers.
    for (size, count) in [(1, 1000), (64, 1000), (1_000_000, 20)] {
        let options = format!("-S {size} -C {count} -T v");
        cases.push(compared("rstream", &options));
    }
    for test in [
        "", "-T a", "-T b", "-T n", "-T r", "-k 1", "-i 0", "-B 20000",
    ] {
        let options = format!("-S 20000 -C 200 -T v {test}");
        cases.push(compared("rstream", options.trim_end()));
    }
    for test in ["", "-T a", "-T b", "-T n", "-i 0"] {
        let options = format!("-S 20000 -C 200 -T v {test}");
        cases.push(compared("riostream", options.trim_end()));
    }
    cases.push(copy());
    for (test, arrive) in [("", ALL), ("-T a", ALL), ("-T b", ALL), ("-T e", ECHOED)] {
        cases.push(datagrams(test, arrive));
    }
    cases
}

fn stream(program: &str, options: &str) -> Case {
    let server = c(&format!("{program} {options}"));
    let client = c(&format!("{program} -s {ADDRESS} {options}"));
    Case::pair(GROUP, server, Ready::Listener(PORT), client)
}

fn compared(program: &str, options: &str) -> Case {
    stream(program, options)
        .both_say(MEASURED)
        .data(Data::ComparedByBoth)
        .quick()
}

/// The client tells how many datagrams have arrived. Without `-b`, Debian's server binds IPv6's loopback. It never ends.
fn datagrams(test: &str, arrive: &'static [Saying]) -> Case {
    let options = format!("-S 1000 -C 200 {test}");
    let options = options.trim_end();
    let server = c(&format!("udpong -b {ADDRESS} {options}"));
    let client = c(&format!("udpong -s {ADDRESS} {options}"));
    Case::pair(GROUP, server, Ready::Udp(DATAGRAM_PORT), client)
        .server(Expected::stays())
        .client_says(arrive)
        .data(Data::Unseen)
        .quick()
}

/// Copies a file of 5 MB to the server. The client's script compares the copy.
fn copy() -> Case {
    let client = c(&format!("sh xtask/src/programs/rcopy.sh {ADDRESS}"));
    Case::pair(GROUP, c("rcopy"), Ready::Listener(COPY_PORT), client)
        .server(Expected::stays())
        .client_says(&[("the copy is right", 1)])
        .data(Data::ComparedByClient)
        .quick()
}
