//! Example programs of other Rust crates. Cargo fetches and builds them with their own lock files.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use portolan_lab::machine::{MachineError, Package, ensure_installed};

use crate::test::{Outcome, Workspace, cargo};

/// Packages that the crates need to build.
const PACKAGES: [Package; 5] = [
    Package {
        name: "libibverbs-dev",
        purpose: "what other Rust crates link with",
    },
    Package {
        name: "libclang-dev",
        purpose: "their bindings",
    },
    Package {
        name: "cmake",
        purpose: "the headers that they make bindings of",
    },
    Package {
        name: "libnl-3-dev",
        purpose: "what these headers include",
    },
    Package {
        name: "libnl-route-3-dev",
        purpose: "what these headers include",
    },
];
/// A crate with examples to build.
struct Foreign {
    /// With its version.
    name: &'static str,
    examples: &'static [&'static str],
    /// The `cmake` that it uses.
    cmake: &'static str,
    /// The tests' selection has its examples.
    is_in_tests: bool,
}

const CRATES: [Foreign; 2] = [
    Foreign {
        name: "ibverbs@0.9.2",
        examples: &["loopback"],
        cmake: CONFIGURE_ONLY,
        is_in_tests: false,
    },
    Foreign {
        name: "sideway@0.4.3",
        examples: &["rc_pingpong", "rc_pingpong_split", "cmtime"],
        cmake: "cmake",
        is_in_tests: true,
    },
];
/// Relative to the workspace.
const CONFIGURE_ONLY: &str = "xtask/src/programs/configure_only.sh";
/// Folder of the programs, relative to the workspace.
pub(super) const FOLDER: &str = "target/programs/bin";
/// Folder of the builds, which share their dependencies. Relative to the workspace.
const BUILDS: &str = "target/programs/build";

/// Builds the missing programs of the tests' selection, as a part of the tests beside the other builds.
pub(crate) fn build(workspace: &Workspace) -> Result<Outcome> {
    match ensure_installed(&PACKAGES) {
        Err(MachineError::Unavailable(unavailable)) => {
            return Ok(Outcome::LeftOut(unavailable.to_string()));
        }
        installed => installed?,
    }
    ensure_selection_built(workspace)?;
    Ok(Outcome::Passed(String::new()))
}

/// Builds the missing programs of the tests' selection.
pub(super) fn ensure_selection_built(workspace: &Workspace) -> Result<()> {
    let mut selection = CRATES.iter().filter(|each| each.is_in_tests);
    selection.try_for_each(|each| each.ensure_built(workspace))
}

/// Builds the missing programs of all crates.
pub(super) fn ensure_all_built(workspace: &Workspace) -> Result<()> {
    CRATES
        .iter()
        .try_for_each(|each| each.ensure_built(workspace))
}

impl Foreign {
    fn ensure_built(&self, workspace: &Workspace) -> Result<()> {
        let folder = workspace.root.join(FOLDER);
        let is_there = |example: &&str| folder.join(example).exists();
        if self.examples.iter().all(is_there) {
            return Ok(());
        }
        ensure_installed(&PACKAGES)?;
        let cmake = match self.cmake {
            CONFIGURE_ONLY => workspace.root.join(CONFIGURE_ONLY),
            other => other.into(),
        };
        let examples = self.examples.iter().flat_map(|name| ["--example", name]);
        // Optimizing what they link with takes longer than running them.
        let status = Command::new(cargo())
            .args(["install", "--locked", "--force", "--quiet", "--debug"])
            .args(["--root", "target/programs", self.name])
            .args(examples)
            .env("CMAKE", cmake)
            .env("CARGO_TARGET_DIR", workspace.root.join(BUILDS))
            .current_dir(&workspace.root)
            .status()?;
        ensure!(status.success(), "building {}: {status}", self.name);
        Ok(())
    }
}

/// The path of an example.
pub(super) fn program(example: &str) -> String {
    Path::new(FOLDER).join(example).display().to_string()
}
