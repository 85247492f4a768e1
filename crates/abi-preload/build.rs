//! Sets the library's soname and exports, and redirects its own calls to libc.
//!
//! The library defines libc's names for the program. References to these names from the library itself, and from
//! everything linked into it, must go to libc: the linker renames each to `__wrap_NAME` (`src/real.rs`).

fn main() {
    let list = "rspreload.map";
    println!("cargo:rerun-if-changed={list}");
    println!("cargo:rerun-if-changed=build.rs");
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let text = std::fs::read_to_string(format!("{folder}/{list}")).expect("the list of names");
    let names = text.lines().map(str::trim);
    let names = names.filter_map(|line| line.strip_suffix(';').filter(|name| is_name(name)));
    for name in names {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={name}");
    }
    for argument in [
        "-Wl,-soname,librspreload.so.1".to_owned(),
        format!("-Wl,--version-script={folder}/{list}"),
        "-fuse-ld=lld".to_owned(),
        "-Wl,--no-undefined-version".to_owned(),
        "-Wl,-z,nodelete".to_owned(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}

fn is_name(text: &str) -> bool {
    let is_part = |letter: char| letter == '_' || letter.is_ascii_alphanumeric();
    !text.is_empty() && text.chars().all(is_part)
}
