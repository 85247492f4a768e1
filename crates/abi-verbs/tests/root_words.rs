//! The library's strings equal those of Debian's library (package libibverbs-dev).

#[path = "../../abi-layout/tests/support/compiler.rs"]
mod compiler;

use std::process::Command;

use compiler::{Compiler, said};

#[test]
fn numbers_have_the_same_names_as_in_debians_library() {
    let compiler = Compiler::new("words");
    let options = ["-Wall", "-Werror", "-libverbs"];
    let program = compiler.build("words", include_str!("c/words.c"), &options);
    let theirs = said(&mut Command::new(&program));
    assert!(theirs.contains("Work Request Flushed Error"), "{theirs}");
    let library = std::env::current_exe().unwrap();
    let library = library.with_file_name("libibverbs.so");
    let link = compiler.folder().join("libibverbs.so.1");
    std::os::unix::fs::symlink(library, link).unwrap();
    let mut on_ours = Command::new(&program);
    let ours = said(on_ours.env("LD_LIBRARY_PATH", compiler.folder()));
    assert_eq!(ours, theirs);
}
