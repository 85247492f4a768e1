//! The C compiler, with a folder for its output.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A compiler with its own folder, which is removed on drop.
pub(crate) struct Compiler(PathBuf);

impl Compiler {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("portolan-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    /// The folder of its programs.
    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// Compiles the C text to the program `name` with these options.
    pub(crate) fn build(&self, name: &str, source: &str, options: &[&str]) -> PathBuf {
        let program = self.0.join(name);
        let path = program.with_extension("c");
        std::fs::write(&path, source).unwrap();
        let mut compiler = Command::new("cc");
        compiler
            .args(["-std=gnu11", "-o"])
            .args([&program, &path])
            .args(options);
        said(&mut compiler);
        program
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The output of a program, which must succeed.
pub(crate) fn said(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{out}{err}",
        output.status
    );
    out.into_owned()
}
