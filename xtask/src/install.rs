//! `cargo xtask install`: installs the command, the libraries for C programs and their headers below a prefix.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::test::Workspace;

/// The packages to build.
pub(crate) const PACKAGES: [&str; 8] = [
    "--package",
    "portolan-cli",
    "--package",
    "portolan-abi-rdmacm",
    "--package",
    "portolan-abi-verbs",
    "--package",
    "portolan-abi-preload",
];
/// The profile of installed and measured builds. It optimizes the whole program, which takes minutes.
const PROFILE: &str = "dist";
const PROGRAM: u32 = 0o755;
const TEXT: u32 = 0o644;

/// Arguments of `install`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Folder for `bin`, `lib/portolan` and `include/portolan`
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::here()?;
    let built = build(&workspace, &PACKAGES)?;
    lay_out(&workspace, &built, &arguments.prefix)?;
    println!("installed in {}", arguments.prefix.display());
    Ok(ExitCode::SUCCESS)
}

/// Builds packages as for an installation. Returns the folder with the programs and libraries.
pub(crate) fn build(workspace: &Workspace, packages: &[&str]) -> Result<PathBuf> {
    workspace.cargo(&[&["build", "--quiet", "--profile", PROFILE], packages].concat())?;
    Ok(workspace.target.join(PROFILE))
}

/// Copies the built files to their places below `prefix`.
pub(crate) fn lay_out(workspace: &Workspace, built: &Path, prefix: &Path) -> Result<()> {
    let libraries = prefix.join("lib/portolan");
    let (full, alone) = (libraries.join("full"), libraries.join("rdmacm"));
    copy(
        &built.join("portolan"),
        &prefix.join("bin/portolan"),
        PROGRAM,
    )?;
    copy(
        &built.join("libibverbs.so"),
        &full.join("libibverbs.so.1"),
        PROGRAM,
    )?;
    copy(
        &built.join("librdmacm.so"),
        &alone.join("librdmacm.so.1"),
        PROGRAM,
    )?;
    // Programs ask for the versioned names, linkers for the others.
    link("../rdmacm/librdmacm.so.1", &full.join("librdmacm.so.1"))?;
    for folder in [&full, &alone] {
        link("librdmacm.so.1", &folder.join("librdmacm.so"))?;
    }
    link("libibverbs.so.1", &full.join("libibverbs.so"))?;
    let sockets = libraries.join("rsocket");
    copy(
        &built.join("librspreload.so"),
        &sockets.join("librspreload.so.1"),
        PROGRAM,
    )?;
    link("librspreload.so.1", &sockets.join("librspreload.so"))?;
    copy_folder(
        &workspace.root.join("include"),
        &prefix.join("include/portolan"),
    )?;
    copy_folder(
        &workspace.root.join("packaging/pkgconfig"),
        &libraries.join("pkgconfig"),
    )
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("no {}", from.display()))? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_folder(&entry.path(), &to)?,
            false => copy(&entry.path(), &to, TEXT)?,
        }
    }
    Ok(())
}

/// Copies a file. A file in use is replaced and not overwritten.
fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let new = beside(to)?;
    fs::copy(from, &new).with_context(|| format!("{} is not built", from.display()))?;
    fs::set_permissions(&new, Permissions::from_mode(mode))?;
    fs::rename(&new, to).with_context(|| format!("cannot make {}", to.display()))
}

fn link(to: &str, place: &Path) -> Result<()> {
    let new = beside(place)?;
    symlink(to, &new)?;
    fs::rename(&new, place).with_context(|| format!("cannot make {}", place.display()))
}

/// A temporary name beside a future file. Creates its folder.
fn beside(place: &Path) -> Result<PathBuf> {
    let (Some(folder), Some(name)) = (place.parent(), place.file_name()) else {
        bail!("{} is not a file name", place.display());
    };
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let new = folder.join(format!(".{}.{}", name.display(), std::process::id()));
    // Left by an interrupted attempt.
    let _ = fs::remove_file(&new);
    Ok(new)
}
