//! The C compiler, and a folder for what it makes.

use std::path::PathBuf;
use std::process::Command;

/// A compiler with a folder of its own, gone when dropped.
pub(crate) struct Compiler(PathBuf);

impl Compiler {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("portolan-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// What the preprocessor makes of the headers, with the definitions of macros left in.
    pub(crate) fn preprocess(&self, headers: &[&str]) -> String {
        let path = self.0.join("headers.c");
        let lines: String = headers
            .iter()
            .map(|header| format!("#include <{header}>\n"))
            .collect();
        std::fs::write(&path, lines).unwrap();
        let output = Command::new("cc")
            .args(["-std=gnu11", "-E", "-dD"])
            .arg(&path)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a C program prints that is compiled with these options; it must end well.
    pub(crate) fn run(&self, name: &str, source: &str, options: &[&str]) -> String {
        let program = self.0.join(name);
        let path = program.with_extension("c");
        std::fs::write(&path, source).unwrap();
        let compiled = Command::new("cc")
            .args(["-std=gnu11", "-O1", "-Werror=incompatible-pointer-types"])
            .args(options)
            .arg("-o")
            .args([&program, &path])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{name}: {said}");
        let output = Command::new(&program).output().unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
