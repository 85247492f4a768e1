//! The C program that makes every call, built and run.

use std::path::PathBuf;
use std::process::{Command, Output};

/// A folder with the program and our library under the name that it looks for; gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = format!("portolan-verbs-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let test = std::env::current_exe().unwrap();
        let library = test.parent().unwrap().join("libibverbs.so");
        std::os::unix::fs::symlink(library, folder.join("libibverbs.so.1")).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{}\n{out}{err}", output.status)
}

/// Builds the program against our header and runs it, under a command if one is given.
pub(crate) fn run(name: &str, under: &[&str]) {
    let folder = Folder::new(name);
    let program = folder.0.join("verbs");
    let root = env!("CARGO_MANIFEST_DIR");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(format!("{root}/tests/c/verbs.c"))
        .arg(format!("-I{root}/../../include"))
        .arg(folder.0.join("libibverbs.so.1"));
    let compiled = compiler.output().unwrap();
    assert!(compiled.status.success(), "{}", said(&compiled));
    // It takes less than a second; the limit is for machines that have other things to do.
    let mut command = Command::new("timeout");
    let run = command
        .arg("240")
        .args(under)
        .arg(&program)
        .env("LD_LIBRARY_PATH", &folder.0);
    let run = run.output().unwrap();
    assert!(run.status.success(), "{}", said(&run));
    assert!(said(&run).contains("all as it should be"));
}
