//! The library exports the symbols of its map, in the map's versions.

#[path = "../../abi-layout/tests/support/map.rs"]
mod map;
#[path = "../../abi-layout/tests/support/symbols.rs"]
mod symbols;

use map::{Map, versions_defined};
use symbols::{built, exported, said_of};

const LIBRARY: &str = "librdmacm.so";
const MAP: &str = include_str!("../librdmacm.map");

#[test]
fn the_library_exports_exactly_the_symbols_of_its_map() {
    let map = Map::read(MAP);
    let establish = "rdma_establish@@RDMACM_1.2";
    assert!(map.symbols.contains(establish), "{map:?}");
    assert_eq!(exported(&built(LIBRARY)), map.symbols);
}

#[test]
fn the_library_defines_the_versions_of_its_map_and_no_others() {
    let map = Map::read(MAP);
    assert!(map.versions.contains("RDMACM_1.4"), "{map:?}");
    let said = said_of(&built(LIBRARY), "readelf", &["-V", "--wide"]);
    assert_eq!(versions_defined(&said), map.versions, "{said}");
}

#[test]
fn programs_find_the_library_under_librdmacms_name() {
    let said = said_of(&built(LIBRARY), "readelf", &["-d"]);
    assert!(said.contains("soname: [librdmacm.so.1]"), "{said}");
    // Otherwise its threads could run in unmapped memory.
    assert!(said.contains("NODELETE"), "{said}");
}
