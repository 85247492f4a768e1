//! Example programs of other Rust crates. Cargo fetches and builds them with their own lock files.

use std::path::Path;

use anyhow::Result;
use portolan_lab::machine::{Package, ensure_installed};

use crate::test::Workspace;

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
        purpose: "the headers of which they make bindings",
    },
    Package {
        name: "libnl-3-dev",
        purpose: "the same",
    },
    Package {
        name: "libnl-route-3-dev",
        purpose: "the same",
    },
];
/// The crates and their examples to build.
const CRATES: [(&str, &[&str]); 2] = [
    ("ibverbs@0.9.2", &["loopback"]),
    (
        "sideway@0.4.3",
        &["rc_pingpong", "rc_pingpong_split", "cmtime"],
    ),
];
/// Folder of the programs, relative to the workspace.
pub(super) const FOLDER: &str = "target/programs/bin";

/// Builds the missing programs.
pub(super) fn ensure_built(workspace: &Workspace) -> Result<()> {
    let folder = workspace.root.join(FOLDER);
    let is_there = |example: &&str| folder.join(example).exists();
    for (name, examples) in CRATES {
        if examples.iter().all(is_there) {
            continue;
        }
        ensure_installed(&PACKAGES)?;
        let mut words = vec![
            "install",
            "--locked",
            "--force",
            "--quiet",
            "--root",
            "target/programs",
        ];
        words.push(name);
        for example in examples {
            words.extend(["--example", example]);
        }
        workspace.cargo(&words)?;
    }
    Ok(())
}

/// The path of an example.
pub(super) fn program(example: &str) -> String {
    Path::new(FOLDER).join(example).display().to_string()
}
