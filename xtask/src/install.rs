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
/// The mode of folders, as of `install -d`: whatever the umask, all users may run what is installed.
const FOLDER: u32 = 0o755;
/// The folders below the prefix.
const FOLDERS: [&str; 4] = [
    "bin",
    "lib/portolan",
    "include/portolan",
    "share/doc/portolan",
];

/// Arguments of `install`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Folder for `bin`, `lib/portolan`, `include/portolan` and `share/doc/portolan`; below $DESTDIR, if that is set
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::here()?;
    let prefix = staged(
        std::env::var_os("DESTDIR").map(PathBuf::from),
        &arguments.prefix,
    );
    check_writable(&prefix)?;
    println!("building (with link-time optimization: several minutes)...");
    let built = build(&workspace, &PACKAGES)?;
    lay_out(&workspace, &built, &prefix)?;
    println!("installed in {}", prefix.display());
    Ok(ExitCode::SUCCESS)
}

/// The prefix below `DESTDIR`, the folder in which packagers collect an installation (GNU Coding Standards, 7.2.4).
fn staged(destination: Option<PathBuf>, prefix: &Path) -> PathBuf {
    match destination.filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => folder.join(prefix.strip_prefix("/").unwrap_or(prefix)),
        None => prefix.to_owned(),
    }
}

/// Fails if a folder that gets files cannot be written to, because the build takes minutes.
fn check_writable(prefix: &Path) -> Result<()> {
    for folder in FOLDERS {
        let folder = prefix.join(folder);
        make_folder(&folder)?;
        let trial = beside(&folder.join("trial"))?;
        let written = fs::write(&trial, "").and_then(|()| fs::remove_file(&trial));
        written.with_context(|| format!("cannot write to {}", folder.display()))?;
    }
    Ok(())
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
    )?;
    for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
        let to = prefix.join("share/doc/portolan").join(license);
        copy(&workspace.root.join(license), &to, TEXT)?;
    }
    Ok(())
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
    fs::copy(from, &new)
        .with_context(|| format!("cannot copy {} to {}", from.display(), new.display()))?;
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
    make_folder(folder)?;
    let new = folder.join(format!(".{}.{}", name.display(), std::process::id()));
    // Left by an interrupted attempt.
    let _ = fs::remove_file(&new);
    Ok(new)
}

/// Makes a folder and those on the way to it. Folders that exist keep their mode.
fn make_folder(folder: &Path) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(parent) = folder.parent().filter(|parent| *parent != Path::new("")) {
        make_folder(parent)?;
    }
    let made = fs::create_dir(folder)
        .and_then(|()| fs::set_permissions(folder, Permissions::from_mode(FOLDER)));
    made.with_context(|| format!("cannot make {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder for the test, removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("portolan-install-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_prefix_with_a_file_in_place_of_a_folder_is_refused_before_the_build() {
        let folder = Folder::new("refused");
        fs::write(folder.0.join("lib"), "").unwrap();
        let error = format!("{:#}", check_writable(&folder.0).unwrap_err());
        assert!(error.contains("lib"), "{error}");
        assert!(error.starts_with("cannot make "), "{error}");
    }

    #[test]
    fn new_folders_are_open_to_all_users_and_others_keep_their_mode() {
        let folder = Folder::new("modes");
        fs::set_permissions(&folder.0, Permissions::from_mode(0o700)).unwrap();
        check_writable(&folder.0).unwrap();
        let mode = |path: &str| {
            let found = fs::metadata(folder.0.join(path)).unwrap();
            found.permissions().mode() & 0o777
        };
        assert_eq!(mode(""), 0o700);
        for path in ["bin", "lib", "lib/portolan", "share/doc"] {
            assert_eq!(mode(path), 0o755, "{path}");
        }
        assert_eq!(fs::read_dir(folder.0.join("bin")).unwrap().count(), 0);
    }

    #[test]
    fn a_missing_file_is_named_with_where_it_should_go() {
        let folder = Folder::new("missing");
        let (from, to) = (folder.0.join("absent"), folder.0.join("bin/absent"));
        let error = copy(&from, &to, TEXT).unwrap_err().to_string();
        let begin = format!("cannot copy {} to {}", from.display(), folder.0.display());
        assert!(error.starts_with(&begin), "{error}");
    }

    #[test]
    fn the_prefix_is_below_destdir_if_that_is_set() {
        let below = |folder: &str| staged(Some(folder.into()), Path::new("/usr"));
        assert_eq!(below("/tmp/package"), Path::new("/tmp/package/usr"));
        assert_eq!(below(""), Path::new("/usr"));
        assert_eq!(staged(None, Path::new("/usr")), Path::new("/usr"));
    }
}
