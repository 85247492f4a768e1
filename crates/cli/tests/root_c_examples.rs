//! The C examples also work with rdma-core: they compile with Debian's headers and use ours only for what those
//! lack.

#[path = "common/mod.rs"]
mod common;

use std::process::{Command, Stdio};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn the_examples_for_c_compile_with_debians_headers_without_a_warning() {
    let folder = std::fs::read_dir(format!("{ROOT}/examples/c")).unwrap();
    let mut sources: Vec<_> = folder
        .map(|example| {
            let example = example.unwrap().path();
            let name = example.file_name().unwrap().to_owned();
            example.join(name).with_extension("c")
        })
        .collect();
    sources.push(format!("{ROOT}/crates/cli/tests/c/sample.c").into());
    assert!(sources.len() >= 5, "{sources:?}");
    for source in sources {
        let compiler = Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"])
            // Debian's headers are found before ours.
            .args(["-idirafter", &format!("{ROOT}/include")])
            .arg(&source)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = common::output_of(compiler);
        assert!(output.status.success(), "{}", common::stderr(&output));
    }
}
