//! The programs of the stress test: the command, and a C program with the same protocol.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::processes::Speaker;
use crate::test::Workspace;

/// The C program.
const SOURCE: &str = "crates/cli/tests/c/pings.c";

/// The language of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    Rust,
    C,
}

/// The programs, built.
pub(super) struct Programs {
    pub(super) portolan: PathBuf,
    /// Removed on drop.
    folder: PathBuf,
    in_c: String,
    /// Time between two pings, in milliseconds.
    interval_ms: u64,
}

impl Programs {
    /// Builds the C program against our headers and libraries.
    pub(super) fn build(workspace: &Workspace, interval_ms: u64) -> Result<Self> {
        let folder = format!("portolan-stress-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        // Never use an existing folder: its owner could replace the programs.
        fs::create_dir(&folder)?;
        let in_c = folder.join("pings");
        let in_c = in_c.to_str().context("a path in UTF-8")?.to_owned();
        let programs = Self {
            portolan: workspace.portolan.clone(),
            folder,
            in_c,
            interval_ms,
        };
        let status = Command::new("cc")
            .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"])
            .args(programs.option("--cflags")?.split_whitespace())
            .args(["-o", &programs.in_c])
            .arg(workspace.root.join(SOURCE))
            .args(programs.option("--libs")?.split_whitespace())
            .status()
            .context("cannot start cc")?;
        ensure!(status.success(), "cannot build {SOURCE}: {status}");
        Ok(programs)
    }

    /// One kind of `cc-env`'s output.
    fn option(&self, kind: &str) -> Result<String> {
        let output = Command::new(&self.portolan)
            .args(["cc-env", kind])
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start `cc-env`")?;
        ensure!(
            output.status.success(),
            "`cc-env` ended with {}",
            output.status
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Listens on a port of the loopback address.
    pub(super) fn listen(&self, language: Language, port: u16) -> Result<Speaker> {
        let port = port.to_string();
        let address = format!("127.0.0.1:{port}");
        match language {
            Language::Rust => self.start(&["listen", &address, "--json"]),
            Language::C => self.start(&["exec", "--", &self.in_c, "listen", "127.0.0.1", &port]),
        }
    }

    /// Pings the listener on this port.
    pub(super) fn ping(&self, language: Language, port: u16) -> Result<Speaker> {
        let port = port.to_string();
        let address = format!("127.0.0.1:{port}");
        match language {
            Language::Rust => {
                let interval_s = (self.interval_ms as f64 / 1000.0).to_string();
                self.start(&["ping", &address, "--interval", &interval_s, "--json"])
            }
            Language::C => {
                let interval_ms = self.interval_ms.to_string();
                let ping = ["ping", "127.0.0.1", &port, &interval_ms];
                self.start(&[&["exec", "--", &self.in_c], &ping[..]].concat())
            }
        }
    }

    fn start(&self, arguments: &[&str]) -> Result<Speaker> {
        Speaker::start(&self.portolan, arguments, Stdio::piped())
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
