//! The library exports the symbols of its map, in the map's versions.

#[path = "../../abi-layout/tests/support/map.rs"]
mod map;
#[path = "../../abi-layout/tests/support/symbols.rs"]
mod symbols;

use map::{Map, versions_defined};
use symbols::{built, exported, said_of};

const LIBRARY: &str = "libibverbs.so";
const MAP: &str = include_str!("../libibverbs.map");

#[test]
fn the_library_exports_exactly_the_symbols_of_its_map() {
    let map = Map::read(MAP);
    let index = "ibv_get_device_index@@IBVERBS_1.9";
    assert!(map.symbols.contains(index), "{map:?}");
    assert_eq!(exported(&built(LIBRARY)), map.symbols);
}

#[test]
fn the_library_defines_the_versions_of_its_map_and_no_others() {
    let map = Map::read(MAP);
    assert!(map.versions.contains("IBVERBS_1.14"), "{map:?}");
    let said = said_of(&built(LIBRARY), "readelf", &["-V", "--wide"]);
    assert_eq!(versions_defined(&said), map.versions, "{said}");
}

#[test]
fn programs_find_the_library_under_libibverbss_name() {
    let said = said_of(&built(LIBRARY), "readelf", &["-d"]);
    assert!(said.contains("soname: [libibverbs.so.1]"), "{said}");
    // Otherwise its thread could run in unmapped memory.
    assert!(said.contains("NODELETE"), "{said}");
}

#[test]
fn the_kernel_provider_finds_the_mark_of_our_own_library() {
    assert!(exported(&built(LIBRARY)).contains("portolan_verbs@@PORTOLAN_1"));
}
