//! Programs of other Rust crates, which cargo fetches and builds: their examples, with the versions of their own lock files.

use std::path::Path;

use anyhow::Result;
use portolan_lab::machine::{Package, ensure_installed};

use crate::test::Workspace;

/// What the crates' builds ask for.
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
/// Crates, and which of their examples.
const CRATES: [(&str, &[&str]); 2] = [
    ("ibverbs@0.9.2", &["loopback"]),
    (
        "sideway@0.4.3",
        &["rc_pingpong", "rc_pingpong_split", "cmtime"],
    ),
];
/// Folder of the programs, from the workspace's.
pub(super) const FOLDER: &str = "target/programs/bin";

/// Builds those that are not there.
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
