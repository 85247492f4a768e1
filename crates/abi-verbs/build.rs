//! Links the library under libibverbs's name, with its versions of symbols.
//!
//! rustc passes a version script of its own, which takes precedence for the symbols that it knows and makes them
//! local. It does not know the names for C programs, which assembly defines (`src/export`), so our script applies to
//! those. lld accepts two scripts; GNU ld does not.

fn main() {
    let map = "libibverbs.map";
    println!("cargo:rerun-if-changed={map}");
    println!("cargo:rerun-if-changed=build.rs");
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    for argument in [
        "-Wl,-soname,libibverbs.so.1".to_owned(),
        format!("-Wl,--version-script={folder}/{map}"),
        "-fuse-ld=lld".to_owned(),
        // A name in the map without a function is an error.
        "-Wl,--no-undefined-version".to_owned(),
        // The progress thread runs in the library, so dlclose(3) must not unmap it.
        "-Wl,-z,nodelete".to_owned(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
