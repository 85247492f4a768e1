//! The library's structures are those of the headers that Debian's programs are built with (packages
//! libibverbs-dev and librdmacm-dev), and of our own.

mod support;

#[test]
fn every_structure_is_laid_out_as_in_the_headers_of_debian() {
    support::compare_layouts("debian", &[]);
}

#[test]
fn every_structure_is_laid_out_as_in_our_headers() {
    let ours = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include");
    support::compare_layouts("ours", &["-I", ours]);
}
