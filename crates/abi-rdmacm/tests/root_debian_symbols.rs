//! Debian's librdmacm (package librdmacm1) exports nothing that this library lacks.

#[path = "../../abi-layout/tests/support/debian.rs"]
mod debian;
#[path = "../../abi-layout/tests/support/symbols.rs"]
mod symbols;

use std::collections::BTreeSet;

use debian::lacking;

#[test]
fn every_symbol_of_debians_librdmacm_exists_in_its_version() {
    assert_eq!(lacking("librdmacm.so.1", "librdmacm.so"), BTreeSet::new());
}
