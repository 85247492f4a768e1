//! The C compiler, told by `portolan cc-env` where things are.

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
        std::fs::create_dir_all(&folder).unwrap();
        Self { folder }
    }

    /// The program of a C file, given from the workspace's folder. No warning is let pass.
    pub(crate) fn program(&self, source: &str) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(source);
        let program = self.folder.join(source.file_stem().unwrap());
        let compiler = Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror"])
            .args(option("--cflags").split(' '))
            .arg("-o")
            .args([&program, &source])
            .args(option("--libs").split(' '))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = output_of(compiler);
        assert!(output.status.success(), "{}", stderr(&output));
        program
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
