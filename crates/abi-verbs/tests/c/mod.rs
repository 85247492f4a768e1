//! Builds and runs the C programs that make every call.

#[path = "../../../abi-layout/tests/support/compiler.rs"]
mod compiler;

#[path = "../../../lab/src/own_network.rs"]
#[allow(unreachable_pub, reason = "it is public where it belongs")]
mod own_network;

use std::process::Command;

use compiler::{Compiler, said};

/// Builds the program against our header and runs it, optionally under a command.
pub(crate) fn run(name: &str, source: &str, under: &[&str]) {
    own_network::enter();
    let compiler = Compiler::new(&format!("verbs-{name}"));
    let test = std::env::current_exe().unwrap();
    let library = compiler.folder().join("libibverbs.so.1");
    std::os::unix::fs::symlink(test.with_file_name("libibverbs.so"), &library).unwrap();
    let headers = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../include");
    let strict = ["-g", "-Wall", "-Wextra", "-Werror", headers];
    let options = [&strict[..], &[library.to_str().unwrap()]].concat();
    let program = compiler.build("verbs", source, &options);
    // It takes less than a second; the limit is for busy machines.
    let mut command = Command::new("timeout");
    let run = command
        .arg("240")
        .args(under)
        .arg(&program)
        .env("LD_LIBRARY_PATH", compiler.folder());
    assert!(said(run).contains("all as it should be"));
}
