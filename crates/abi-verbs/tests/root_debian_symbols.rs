//! Debian's libibverbs (package libibverbs1) exports nothing that this library lacks, except old versions and
//! symbols for drivers that no program is linked to.

#[path = "../../abi-layout/tests/support/debian.rs"]
mod debian;
#[path = "../../abi-layout/tests/support/symbols.rs"]
mod symbols;

use debian::lacking;

/// Symbols for other drivers. libmlx5, libmlx4, libefa and libmana, to which programs are linked, do not use
/// them.
const FOR_OTHER_DRIVERS: [&str; 7] = [
    "__ioctl_final_num_attrs@@IBVERBS_PRIVATE_34",
    "ibv_cmd_poll_cq@@IBVERBS_PRIVATE_34",
    "ibv_cmd_post_recv@@IBVERBS_PRIVATE_34",
    "ibv_cmd_post_send@@IBVERBS_PRIVATE_34",
    "ibv_cmd_post_srq_recv@@IBVERBS_PRIVATE_34",
    "ibv_cmd_req_notify_cq@@IBVERBS_PRIVATE_34",
    "ibv_read_ibdev_sysfs_file@@IBVERBS_PRIVATE_34",
];
/// The registration of drivers before the private version; nothing in Debian is linked to it.
const OLD_REGISTRATION: &str = "ibv_register_driver@IBVERBS_1.1";

#[test]
fn every_symbol_of_debians_libibverbs_exists_in_its_version_except_the_listed_ones() {
    let lacking = lacking("libibverbs.so.1", "libibverbs.so");
    let is_old = |symbol: &&String| !symbol.contains("@@");
    for symbol in lacking.iter().filter(is_old) {
        let is_first = symbol.ends_with("@IBVERBS_1.0");
        assert!(is_first || symbol == OLD_REGISTRATION, "{symbol}");
    }
    let present = lacking.iter().filter(|symbol| !is_old(symbol));
    assert!(present.eq(FOR_OTHER_DRIVERS), "{lacking:?}");
}
