//! The library exports what its map says, under the versions it says.

#[path = "../../abi-layout/tests/support/symbols.rs"]
mod support;

use support::{assert_is_found_as, exported, promised};

const LIBRARY: &str = "libibverbs.so";

#[test]
fn the_library_exports_what_its_map_says_and_nothing_else() {
    let promised = promised(include_str!("../libibverbs.map"));
    assert!(
        promised.contains("ibv_get_device_index@@IBVERBS_1.9"),
        "{promised:?}"
    );
    assert_eq!(exported(LIBRARY), promised);
}

#[test]
fn programs_find_the_library_under_libibverbss_name() {
    assert_is_found_as(LIBRARY, "libibverbs.so.1");
}

#[test]
fn the_kernel_provider_finds_the_mark_of_our_own_library() {
    assert!(exported(LIBRARY).contains("portolan_verbs@@PORTOLAN_1"));
}
