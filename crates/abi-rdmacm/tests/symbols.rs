//! The library exports what its map says, under the versions it says.

#[path = "../../abi-layout/tests/support/symbols.rs"]
mod support;

use support::{assert_is_found_as, exported, promised};

const LIBRARY: &str = "librdmacm.so";

#[test]
fn the_library_exports_what_its_map_says_and_nothing_else() {
    let promised = promised(include_str!("../librdmacm.map"));
    assert!(
        promised.contains("rdma_establish@@RDMACM_1.2"),
        "{promised:?}"
    );
    assert_eq!(exported(LIBRARY), promised);
}

#[test]
fn programs_find_the_library_under_librdmacms_name() {
    assert_is_found_as(LIBRARY, "librdmacm.so.1");
}
