//! Debian's librdmacm (package librdmacm1) exports nothing that this library lacks, except the socket calls.

#[path = "../../abi-layout/tests/support/debian.rs"]
mod debian;
#[path = "../../abi-layout/tests/support/symbols.rs"]
mod symbols;

use debian::lacking;

/// The missing socket calls: all but `rpoll`.
const SOCKET_CALLS: [&str; 26] = [
    "raccept",
    "rbind",
    "rclose",
    "rconnect",
    "rfcntl",
    "rgetpeername",
    "rgetsockname",
    "rgetsockopt",
    "riomap",
    "riounmap",
    "riowrite",
    "rlisten",
    "rread",
    "rreadv",
    "rrecv",
    "rrecvfrom",
    "rrecvmsg",
    "rselect",
    "rsend",
    "rsendmsg",
    "rsendto",
    "rsetsockopt",
    "rshutdown",
    "rsocket",
    "rwrite",
    "rwritev",
];

#[test]
fn every_symbol_of_debians_librdmacm_exists_in_its_version_except_the_socket_calls() {
    let left_out = SOCKET_CALLS.map(|name| format!("{name}@@RDMACM_1.0"));
    let lacking = lacking("librdmacm.so.1", "librdmacm.so");
    assert_eq!(lacking, left_out.into_iter().collect());
}
