//! The library's structures are those of the header that Debian's programs are built with (package
//! libibverbs-dev), and its words those of Debian's library.

mod support;

#[test]
fn every_structure_is_laid_out_as_in_the_header_of_debian() {
    support::compare_layouts("debian", &[]);
}
