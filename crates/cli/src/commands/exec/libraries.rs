//! Our libraries: installed beside the command, or as cargo built them.
//!
//! Cargo leaves them without the names that programs ask for, so these are links in a folder of the user's own. It is
//! made once for each build and found again; what leads nowhere is removed, and there are never many.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};

use crate::args::LibrarySet;

/// Builds whose links are kept at a time.
const BUILDS_MAX: usize = 16;
/// Where installed libraries lie, from the command's folder.
const INSTALLED: &str = "../lib/portolan";
/// Where headers lie, from the command's folder.
const INSTALLED_HEADERS: &str = "../include/portolan";
/// Where they lie in the sources that the command was built of.
const SOURCE_HEADERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include");
/// What tells a folder of headers.
const A_HEADER: &str = "portolan.h";
/// The permissions of what is a user's own.
const OWN: u32 = 0o700;

/// One of the sets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Libraries {
    folder: PathBuf,
    /// The files that the folder's links lead to; none if it is installed.
    built: Vec<(&'static str, PathBuf)>,
}

impl Libraries {
    /// Finds them beside this command.
    ///
    /// # Errors
    ///
    /// A library is not there: how to have it.
    pub(crate) fn find(set: LibrarySet) -> Result<Self> {
        let folder = own_folder()?;
        let base = links_base();
        Self::find_beside(&folder, &base, set)
    }

    fn find_beside(folder: &Path, base: &Path, set: LibrarySet) -> Result<Self> {
        let installed = folder.join(INSTALLED).join(set.name());
        let is_in = |name: &&str| installed.join(format!("{name}.so.1")).exists();
        if set.libraries().iter().all(is_in) {
            return Ok(Self {
                folder: installed.canonicalize()?,
                built: Vec::new(),
            });
        }
        let built = set
            .libraries()
            .iter()
            .map(|name| Ok((*name, find_built(folder, name)?)))
            .collect::<Result<Vec<_>>>()?;
        let build = format!("{:016x}", hash(folder.as_os_str().as_encoded_bytes()));
        Ok(Self {
            folder: base.join(build).join(set.name()),
            built,
        })
    }

    /// The folder that has them under the names that programs ask for.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether they are installed.
    pub(crate) fn is_installed(&self) -> bool {
        self.built.is_empty()
    }

    /// Makes the folder's links, if it is one of links.
    ///
    /// # Errors
    ///
    /// There is no place for them, or it is another user's.
    pub(crate) fn prepare(&self) -> Result<()> {
        let Some(base) = self
            .folder
            .ancestors()
            .nth(2)
            .filter(|_| !self.is_installed())
        else {
            return Ok(());
        };
        make_own(base)?;
        tidy(base)?;
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("cannot make {}", self.folder.display()))?;
        for (name, library) in &self.built {
            for link in [format!("{name}.so.1"), format!("{name}.so")] {
                lead(&self.folder.join(link), library)?;
            }
        }
        Ok(())
    }
}

/// The folder of the headers for C.
///
/// # Errors
///
/// There is none beside the command, nor in the sources it was built of.
pub(crate) fn headers() -> Result<PathBuf> {
    let installed = own_folder()?.join(INSTALLED_HEADERS);
    let places = [installed, SOURCE_HEADERS.into()];
    let found = places.iter().find(|place| place.join(A_HEADER).exists());
    let found = found.with_context(|| {
        format!(
            "no headers for C: neither {} nor {} has {A_HEADER}; `cargo xtask install --prefix DIR` installs them",
            places[0].display(),
            places[1].display()
        )
    })?;
    Ok(found.canonicalize()?)
}

fn own_folder() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let folder = own.parent().context("a program lies in a folder")?;
    Ok(folder.to_owned())
}

/// The newest of a library as cargo leaves them: beside the command, or beside the tests.
fn find_built(folder: &Path, name: &str) -> Result<PathBuf> {
    let file = format!("{name}.so");
    let places = [folder.join(&file), folder.join("deps").join(&file)];
    let age = |path: &&PathBuf| path.metadata().and_then(|found| found.modified());
    let newest = places
        .iter()
        .filter(|path| path.is_file())
        .max_by_key(|path| age(path).unwrap_or(SystemTime::UNIX_EPOCH));
    if let Some(found) = newest {
        return Ok(found.canonicalize()?);
    }
    let release = match folder.ends_with("release") {
        true => " --release",
        false => "",
    };
    let package = name
        .replacen("lib", "portolan-abi-", 1)
        .replace("ibverbs", "verbs");
    bail!(
        "{name}.so.1 is not there: {} has neither {INSTALLED} nor {file}; `cargo build{release} -p {package}` builds it, \
         `cargo xtask install --prefix DIR` installs all",
        folder.display()
    )
}

/// Where links are made: among what lasts as long as the user is there, else among temporary files.
fn links_base() -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    let is_own = |path: &PathBuf| path.metadata().is_ok_and(|found| is_private(&found, user));
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match runtime.filter(|path| path.is_absolute()).filter(is_own) {
        Some(runtime) => runtime.join("portolan-exec"),
        None => std::env::temp_dir().join(format!("portolan-exec-{user}")),
    }
}

fn is_private(found: &Metadata, user: u32) -> bool {
    found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0
}

/// A folder that nobody else can put anything into: whoever could would choose what the program runs.
fn make_own(base: &Path) -> Result<()> {
    match fs::DirBuilder::new().mode(OWN).create(base) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {}", base.display()));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(base)?;
    let user = rustix::process::geteuid().as_raw();
    ensure!(
        is_private(&found, user),
        "{} is not a folder of this user's alone: remove it",
        base.display()
    );
    Ok(())
}

/// Removes links of builds that are gone, and the oldest of too many.
fn tidy(base: &Path) -> Result<()> {
    let mut builds = Vec::new();
    for entry in fs::read_dir(base)? {
        let path = entry?.path();
        if leads_nowhere(&path) {
            // Another process may have done so.
            let _ = fs::remove_dir_all(&path);
        } else {
            let made = path.symlink_metadata().and_then(|found| found.modified());
            builds.push((made.unwrap_or(SystemTime::UNIX_EPOCH), path));
        }
    }
    builds.sort();
    let surplus = builds.len().saturating_sub(BUILDS_MAX);
    for (_, path) in builds.drain(..surplus) {
        let _ = fs::remove_dir_all(&path);
    }
    Ok(())
}

/// Whether a build's folder has a link, and one to what is not there.
fn leads_nowhere(build: &Path) -> bool {
    let folders = fs::read_dir(build).into_iter().flatten().flatten();
    let links = folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten());
    links
        .flatten()
        .any(|link| link.path().is_symlink() && !link.path().exists())
}

/// Has a link lead to a library. It is replaced as a whole: another process may be looking at it.
fn lead(link: &Path, library: &Path) -> Result<()> {
    if fs::read_link(link).is_ok_and(|to| to == library) {
        return Ok(());
    }
    let new = link.with_extension(format!("{}", std::process::id()));
    let made = symlink(library, &new).and_then(|()| fs::rename(&new, link));
    made.with_context(|| format!("cannot make {}", link.display()))
}

/// The FNV-1a hash: a short name for a path.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of the test's own, gone when dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder =
                std::env::temp_dir().join(format!("portolan-{name}-{}", std::process::id()));
            fs::create_dir_all(folder.join("bin/deps")).unwrap();
            Self(folder.canonicalize().unwrap())
        }

        fn file(&self, path: &str) -> PathBuf {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        }

        fn find(&self, set: LibrarySet) -> Result<Libraries> {
            Libraries::find_beside(&self.0.join("bin"), &self.0.join("links"), set)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn installed_libraries_are_taken_where_they_are() {
        let folder = Folder::new("installed");
        folder.file("lib/portolan/full/libibverbs.so.1");
        folder.file("lib/portolan/full/librdmacm.so.1");
        folder.file("bin/librdmacm.so");
        let full = folder.find(LibrarySet::Full).unwrap();
        assert_eq!(full.folder(), folder.0.join("lib/portolan/full"));
        assert!(full.is_installed());
        // Only half of it is installed.
        assert!(!folder.find(LibrarySet::Rdmacm).unwrap().is_installed());
    }

    #[test]
    fn built_libraries_get_links_with_the_names_that_programs_ask_for() {
        let folder = Folder::new("built");
        let rdmacm = folder.file("bin/deps/librdmacm.so");
        let error = folder.find(LibrarySet::Full).unwrap_err().to_string();
        assert!(
            error.contains("cargo build -p portolan-abi-verbs`"),
            "{error}"
        );
        let verbs = folder.file("bin/libibverbs.so");
        let full = folder.find(LibrarySet::Full).unwrap();
        full.prepare().unwrap();
        full.prepare().unwrap();
        let to = |name: &str| fs::read_link(full.folder().join(name)).unwrap();
        assert_eq!(to("libibverbs.so.1"), verbs);
        assert_eq!(to("librdmacm.so.1"), rdmacm);
        assert_eq!(to("librdmacm.so"), rdmacm);
        assert_eq!(fs::read_dir(full.folder()).unwrap().count(), 4);
    }

    #[test]
    fn links_that_lead_nowhere_and_the_oldest_of_many_are_removed() {
        let folder = Folder::new("tidied");
        folder.file("bin/librdmacm.so");
        let base = folder.0.join("links");
        make_own(&base).unwrap();
        fs::create_dir_all(base.join("gone/full")).unwrap();
        symlink("/nonexistent", base.join("gone/full/librdmacm.so.1")).unwrap();
        for build in 0..2 * BUILDS_MAX {
            fs::create_dir(base.join(format!("{build}"))).unwrap();
        }
        let set = folder.find(LibrarySet::Rdmacm).unwrap();
        set.prepare().unwrap();
        assert!(set.folder().join("librdmacm.so.1").exists());
        assert!(!base.join("gone").exists());
        assert_eq!(fs::read_dir(&base).unwrap().count(), BUILDS_MAX + 1);
    }

    #[test]
    fn links_are_not_made_where_others_could_change_them() {
        let folder = Folder::new("shared");
        folder.file("bin/librdmacm.so");
        let base = folder.0.join("links");
        fs::DirBuilder::new().mode(0o755).create(&base).unwrap();
        let error = folder.find(LibrarySet::Rdmacm).unwrap().prepare();
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("not a folder of this user's alone"),
            "{error}"
        );
    }
}
