//! Links the library under librdmacm's name, with its versions of symbols.
//!
//! rustc hands the linker a script of its own, which makes local all that it knows. The names for C programs are
//! not among what it knows (`src/export.rs`), and ours names them. Two scripts together are what lld takes; GNU ld
//! does not.

fn main() {
    let map = "librdmacm.map";
    println!("cargo:rerun-if-changed={map}");
    println!("cargo:rerun-if-changed=build.rs");
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    for argument in [
        "-Wl,-soname,librdmacm.so.1".to_owned(),
        format!("-Wl,--version-script={folder}/{map}"),
        "-fuse-ld=lld".to_owned(),
        // Names that wait for their functions are an error, not absent.
        "-Wl,--no-undefined-version".to_owned(),
        // Its look-ups have threads: a program that is done with it must not unmap it.
        "-Wl,-z,nodelete".to_owned(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
