//! Folders of the workspace, and how to run programs in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Arguments of every build of tests, so that nothing is built twice with different features.
pub(super) const ALL_TESTS: [&str; 4] = ["test", "--quiet", "--workspace", "--all-features"];

/// For a build that selects targets. Without link-time optimization (`.ci/run`), cargo builds what both programs and
/// procedural macros use in another way than what only macros use, and with it everything that uses these macros. This
/// program uses `syn` like the macros do. So whatever else is selected, this program is, too.
pub(super) const WITH_XTASK: [&str; 2] = ["--bin", "xtask"];

/// Folders of the workspace.
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// Folder of builds.
    pub(crate) target: PathBuf,
    /// The release build of the command.
    pub(crate) portolan: PathBuf,
    pub(crate) is_root: bool,
}

impl Workspace {
    pub(crate) fn here() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = manifest
            .parent()
            .context("xtask is in the workspace")?
            .to_owned();
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let portolan = target.join("release").join("portolan");
        Ok(Self {
            root,
            target,
            portolan,
            is_root: rustix::process::geteuid().is_root(),
        })
    }

    /// Runs a program in the workspace. It inherits our output.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let status = Command::new(program)
            .args(arguments)
            .current_dir(&self.root)
            .status()
            .with_context(|| format!("cannot start {program}"))?;
        if !status.success() {
            bail!("`{program} {}` ended with {status}", arguments.join(" "));
        }
        Ok(())
    }

    pub(crate) fn cargo(&self, arguments: &[&str]) -> Result<()> {
        self.run(&cargo(), arguments)
    }
}

/// The cargo that runs this.
pub(crate) fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

/// Builds a test target and returns the path of its program, whose name contains a hash.
pub(crate) fn test_program(workspace: &Workspace, target: &str) -> Result<PathBuf> {
    let output = Command::new(cargo())
        .args(ALL_TESTS)
        .args(["--test", target, "--no-run"])
        .args(WITH_XTASK)
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(&workspace.root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(
        output.status.success(),
        "cargo ended with {}",
        output.status
    );
    let text = String::from_utf8(output.stdout)?;
    let messages = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    messages
        .filter(|message: &Value| message["target"]["name"] == target)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .with_context(|| format!("cargo reports no program of the tests {target}"))
}

/// Builds a program of the laboratory and returns its path.
pub(crate) fn lab_program(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    // With the whole workspace's features, as in the part `tests`, so that nothing is built twice.
    let build = ["build", "--quiet", "--workspace", "--all-features"];
    workspace.cargo(&[&build[..], &["--bin", name], &WITH_XTASK].concat())?;
    Ok(workspace.target.join("debug").join(name))
}
