//! The C compiler with the paths from `portolan cc-env`.

#![allow(dead_code, reason = "each test program uses its part of this")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{output_of, portolan, run, stderr, stdout};

/// A folder for compiled programs, removed on drop.
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

    /// Compiles a C file, given by its path in the workspace. Warnings are errors.
    pub(crate) fn program(&self, source: &str) -> PathBuf {
        self.compile(source, &[], &option("--libs"))
    }

    /// Like [`Self::program`], without linking our libraries.
    pub(crate) fn plain_program(&self, source: &str) -> PathBuf {
        self.compile(source, &[], "")
    }

    /// Compiles a plug-in that links our libraries.
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

/// One kind of `cc-env`'s output.
fn option(kind: &str) -> String {
    stdout(&run(&["cc-env", kind])).trim().to_owned()
}

impl Drop for Compiled {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// `portolan exec` of a program, with piped output.
pub(crate) fn exec(program: &Path, arguments: &[&str]) -> Command {
    let mut command = portolan();
    command.args(["exec", "--"]).arg(program).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}
