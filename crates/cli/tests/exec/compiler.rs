//! The C compiler, told by `portolan cc-env` where things are.

#![allow(dead_code, reason = "each test program uses its part of this")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{output_of, portolan, run, stderr, stdout};

/// A folder for what is compiled, gone when dropped.
pub(crate) struct Compiled {
    folder: PathBuf,
}

impl Compiled {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("portolan-exec-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        Self { folder }
    }

    /// The program of a C file, given from the workspace's folder. No warning is let pass.
    pub(crate) fn program(&self, source: &str) -> PathBuf {
        self.compile(source, &[], &option("--libs"))
    }

    /// As [`Self::program`], for one that is not linked to our libraries.
    pub(crate) fn plain_program(&self, source: &str) -> PathBuf {
        self.compile(source, &[], "")
    }

    /// What a program may load that has our libraries.
    pub(crate) fn plug_in(&self, source: &str) -> PathBuf {
        self.compile(source, &["-shared", "-fPIC"], &option("--libs"))
    }

    fn compile(&self, source: &str, options: &[&str], libraries: &str) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(source);
        let made = self.folder.join(source.file_stem().unwrap());
        let compiler = Command::new("cc")
            .args(["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror"])
            .args(option("--cflags").split(' '))
            .args(options)
            .arg("-o")
            .args([&made, &source])
            .args(libraries.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = output_of(compiler);
        assert!(output.status.success(), "{}", stderr(&output));
        made
    }
}

/// What `cc-env` tells of one kind.
fn option(kind: &str) -> String {
    stdout(&run(&["cc-env", kind])).trim().to_owned()
}

impl Drop for Compiled {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// `portolan exec` of a program with its output piped.
pub(crate) fn exec(program: &Path, arguments: &[&str]) -> Command {
    let mut command = portolan();
    command.args(["exec", "--"]).arg(program).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}
