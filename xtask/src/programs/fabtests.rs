//! libfabric's own tests, fabtests. Debian has no package of them. The crate rofisys contains the source of a libfabric and of its
//! tests; both are built, because the tests need a libfabric at least as new as they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use portolan_lab::machine::{Package, ensure_installed};
use serde_json::Value;

use crate::test::Workspace;

/// Packages to build libfabric's verbs provider.
const PACKAGES: [Package; 5] = [
    Package {
        name: "libibverbs-dev",
        purpose: "libfabric's verbs provider",
    },
    Package {
        name: "librdmacm-dev",
        purpose: "the same",
    },
    Package {
        name: "autoconf",
        purpose: "building libfabric's tests",
    },
    Package {
        name: "automake",
        purpose: "the same",
    },
    Package {
        name: "libtool",
        purpose: "the same",
    },
];
/// The crate and its version. Its libfabric and fabtests have version 1.21.0.
const CRATE: (&str, &str) = ("rofisys", "0.5.0");
/// Where the built libfabric and its tests are, relative to the workspace.
pub(super) const FOLDER: &str = "target/programs/fabtests";
/// Builds both: sh -ec BUILD sh SOURCE FOLDER. Only the verbs provider and the layers on it are built.
const BUILD: &str = include_str!("fabtests-build.sh");

/// Builds libfabric and its tests unless they are there.
pub(super) fn ensure_built(workspace: &Workspace) -> Result<()> {
    let folder = workspace.root.join(FOLDER);
    if folder.join("bin/runfabtests.sh").exists() {
        return Ok(());
    }
    ensure_installed(&PACKAGES)?;
    let source = source(workspace, &folder)?;
    let status = Command::new("sh")
        .args(["-ec", BUILD, "sh"])
        .args([&source, &folder])
        .status()?;
    ensure!(status.success(), "fabtests do not build");
    Ok(())
}

/// The folder of libfabric's source. Cargo fetches the crate, and checks its checksum.
fn source(workspace: &Workspace, folder: &Path) -> Result<PathBuf> {
    let (name, version) = CRATE;
    fs::create_dir_all(folder.join("fetch/src"))?;
    let manifest = folder.join("fetch/Cargo.toml");
    let text = format!(
        "[package]\nname = \"fetch\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n\
         [dependencies]\n{name} = \"={version}\"\n"
    );
    fs::write(&manifest, text)?;
    fs::write(folder.join("fetch/src/lib.rs"), "")?;
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--manifest-path"])
        .arg(&manifest)
        .current_dir(&workspace.root)
        .output()?;
    ensure!(
        output.status.success(),
        "no crate {name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let found = manifest_of(&serde_json::from_slice(&output.stdout)?, name)
        .with_context(|| format!("no crate {name}"))?;
    let root = found.parent().context("a manifest is in a folder")?;
    Ok(root.join("libfabric"))
}

/// The path of a package's manifest, in cargo's metadata.
fn manifest_of(metadata: &Value, name: &str) -> Option<PathBuf> {
    let packages = metadata["packages"].as_array()?;
    let package = packages.iter().find(|package| package["name"] == name)?;
    package["manifest_path"].as_str().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packages_manifest_is_found_in_cargos_metadata() {
        let metadata = serde_json::json!({"packages": [
            {"name": "fetch", "manifest_path": "/f/Cargo.toml"},
            {"name": "rofisys", "manifest_path": "/r/Cargo.toml"},
        ]});
        let found = manifest_of(&metadata, "rofisys");
        assert_eq!(found, Some(PathBuf::from("/r/Cargo.toml")));
        assert_eq!(manifest_of(&metadata, "others"), None);
    }
}
