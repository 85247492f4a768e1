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
/// The crates, their examples to build, and the `cmake` that they use.
const CRATES: [(&str, &[&str], &str); 2] = [
    ("ibverbs@0.9.2", &["loopback"], CONFIGURE_ONLY),
    (
        "sideway@0.4.3",
        &["rc_pingpong", "rc_pingpong_split", "cmtime"],
        "cmake",
    ),
];
/// Relative to the workspace.
const CONFIGURE_ONLY: &str = "xtask/src/programs/configure_only.sh";
/// Folder of the programs, relative to the workspace.
pub(super) const FOLDER: &str = "target/programs/bin";

/// Builds the missing programs, as a part of the tests beside the other builds.
pub(crate) fn build(workspace: &Workspace) -> Result<Outcome> {
    match ensure_installed(&PACKAGES) {
        Err(MachineError::Unavailable(unavailable)) => {
            return Ok(Outcome::LeftOut(unavailable.to_string()));
        }
        installed => installed?,
    }
    ensure_built(workspace)?;
    Ok(Outcome::Passed(String::new()))
}

/// Builds the missing programs.
pub(super) fn ensure_built(workspace: &Workspace) -> Result<()> {
    let folder = workspace.root.join(FOLDER);
    let is_there = |example: &&str| folder.join(example).exists();
    for (name, examples, cmake) in CRATES {
        if examples.iter().all(is_there) {
            continue;
        }
        ensure_installed(&PACKAGES)?;
        let cmake = match cmake {
            CONFIGURE_ONLY => workspace.root.join(CONFIGURE_ONLY),
            other => other.into(),
        };
        let examples = examples.iter().flat_map(|example| ["--example", example]);
        let status = Command::new(cargo())
            .args(["install", "--locked", "--force", "--quiet"])
            .args(["--root", "target/programs", name])
            .args(examples)
            .env("CMAKE", cmake)
            .current_dir(&workspace.root)
            .status()?;
        ensure!(status.success(), "building {name}: {status}");
    }
    Ok(())
}

/// The path of an example.
pub(super) fn program(example: &str) -> String {
    Path::new(FOLDER).join(example).display().to_string()
}
