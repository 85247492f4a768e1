//! The library's structures are those of the header that Debian's programs are built with (package
//! libibverbs-dev), and its words those of Debian's library.

mod support;

#[test]
fn every_structure_is_laid_out_as_in_the_header_of_debian() {
    support::compare_layouts("debian", &[]);
}

#[test]
fn numbers_are_put_into_the_words_of_debians_library() {
    let built = support::Built::new("words", include_str!("c/words.c"), &["-libverbs"]);
    let theirs = built.run(None);
    assert!(theirs.contains("Work Request Flushed Error"), "{theirs}");
    let test = std::env::current_exe().unwrap();
    let ours = built.run(Some(&test.parent().unwrap().join("libibverbs.so")));
    assert_eq!(ours, theirs);
}
