//! Finds our libraries: installed beside the command, or as cargo built them.
//!
//! Cargo gives them other names than programs need, so these get [`links`] in a folder of the user's, one per build.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};

use super::{LIBRARY_PATH, links};
use crate::args::LibrarySet;

/// Path of installed libraries, relative to the command's folder.
const INSTALLED: &str = "../lib/portolan";
/// The preload library's name, and its installed path relative to the command's folder.
const SOCKETS: &str = "librspreload";
const INSTALLED_SOCKETS: &str = "../lib/portolan/rsocket/librspreload.so.1";
/// The name of the folder for a link to it.
const LINK_OF_SOCKETS: &str = "rsocket";
/// Path of installed headers, relative to the command's folder.
const INSTALLED_HEADERS: &str = "../include/portolan";
/// Their path in the sources of the command.
const SOURCE_HEADERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include");
/// The packages of the command and of all libraries, for cargo.
const PACKAGES: &str =
    "-p portolan-cli -p portolan-abi-rdmacm -p portolan-abi-verbs -p portolan-abi-preload";
/// A file that identifies a folder of headers.
const A_HEADER: &str = "portolan.h";

/// One of the library sets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Libraries {
    folder: PathBuf,
    /// The targets of the folder's links; empty if the libraries are installed.
    built: Vec<(&'static str, PathBuf)>,
}

impl Libraries {
    /// Finds them beside this command.
    ///
    /// # Errors
    ///
    /// A library is missing; the error says how to get it.
    pub(crate) fn find(set: LibrarySet) -> Result<Self> {
        let found = Self::find_beside(&own_folder()?, base, set)?;
        ensure!(
            links::is_nameable(&found.folder),
            "{} has a `:` or `;` in its name, which divide folders in LD_LIBRARY_PATH",
            found.folder.display()
        );
        Ok(found)
    }

    fn find_beside(
        folder: &Path,
        base: impl FnOnce(&str) -> Result<PathBuf>,
        set: LibrarySet,
    ) -> Result<Self> {
        let installed = folder.join(INSTALLED).join(set.name());
        let mut libraries = set.libraries().iter();
        let is_installed = libraries.try_fold(true, |all, name| {
            is_there(&installed.join(format!("{name}.so.1"))).map(|found| found && all)
        });
        if is_installed? {
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
        Self::links(folder, base, set.name(), built)
    }

    /// Links to libraries, in a folder with this name for the command in `folder`.
    fn links(
        folder: &Path,
        base: impl FnOnce(&str) -> Result<PathBuf>,
        name: &str,
        built: Vec<(&'static str, PathBuf)>,
    ) -> Result<Self> {
        let build = format!("{:016x}", hash(folder.as_os_str().as_encoded_bytes()));
        Ok(Self {
            folder: base(&build)?.join(build).join(name),
            built,
        })
    }

    /// The folder that contains them under the names that programs need.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether they are installed.
    pub(crate) fn is_installed(&self) -> bool {
        self.built.is_empty()
    }

    /// Creates the folder's links, if it consists of links.
    ///
    /// # Errors
    ///
    /// There is no place for them, or it belongs to another user.
    pub(crate) fn prepare(&self) -> Result<()> {
        let build = self.folder.parent().filter(|_| !self.is_installed());
        let Some((base, build)) = build.and_then(|build| Some((build.parent()?, build))) else {
            return Ok(());
        };
        links::make_own(base)?;
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("cannot make {}", self.folder.display()))?;
        links::refresh(build)?;
        links::tidy(base, build)?;
        for (name, library) in &self.built {
            for link in [format!("{name}.so.1"), format!("{name}.so")] {
                links::lead(&self.folder.join(link), library)?;
            }
        }
        Ok(())
    }
}

/// The folder of the C headers.
///
/// # Errors
///
/// There is none, neither beside the command nor in its sources.
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

/// The preload library, which turns a program's sockets into rsockets.
pub(super) struct Preload {
    /// Its path, without characters that separate paths in `LD_PRELOAD`.
    pub(super) path: PathBuf,
    /// The links that the path leads through, if the library's own path has such characters.
    links: Option<Libraries>,
}

impl Preload {
    /// Finds it beside this command.
    ///
    /// # Errors
    ///
    /// The library is missing, or there is no folder for a link to it.
    pub(super) fn find() -> Result<Self> {
        let folder = own_folder()?;
        let installed = folder.join(INSTALLED_SOCKETS);
        let found = match is_there(&installed)? {
            true => installed.canonicalize()?,
            false => find_built(&folder, SOCKETS)?,
        };
        if !has_separator(&found) {
            return Ok(Self {
                path: found,
                links: None,
            });
        }
        let links = Libraries::links(&folder, base, LINK_OF_SOCKETS, vec![(SOCKETS, found)])?;
        let path = links.folder.join(format!("{SOCKETS}.so.1"));
        ensure!(
            !has_separator(&path),
            "{} has a `:` or a space in its name, which divide libraries in LD_PRELOAD; set TMPDIR to another folder",
            path.display()
        );
        Ok(Self {
            path,
            links: Some(links),
        })
    }

    /// Creates the link, if there is one.
    ///
    /// # Errors
    ///
    /// As [`Libraries::prepare`].
    pub(super) fn prepare(&self) -> Result<()> {
        self.links.as_ref().map_or(Ok(()), Libraries::prepare)
    }
}

/// Whether a path has a character that separates paths in `LD_PRELOAD`.
fn has_separator(path: &Path) -> bool {
    let is_separator = |byte: &u8| b": \t".contains(byte);
    path.as_os_str().as_encoded_bytes().iter().any(is_separator)
}

/// The folder for the links of all builds.
fn base(build: &str) -> Result<PathBuf> {
    let library_path = std::env::var_os(LIBRARY_PATH);
    match links::base_in_force(build, library_path.as_deref()) {
        Some(base) => Ok(base),
        None => links::base(),
    }
}

fn own_folder() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let folder = own.parent().context("a program lies in a folder")?;
    Ok(folder.to_owned())
}

/// Whether a library exists.
///
/// # Errors
///
/// That is not known, because a folder on the way may not be searched.
fn is_there(library: &Path) -> Result<bool> {
    let found = library.try_exists();
    found.with_context(|| format!("cannot look for {}", library.display()))
}

/// The newest build of a library in cargo's folders: beside the command, or beside the tests.
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
    bail!(
        "{name}.so.1 is not there: {} has neither {INSTALLED} nor {file}; `cargo build{release} {PACKAGES}` builds \
         the command and all libraries, `cargo xtask install --prefix DIR` installs them",
        folder.display()
    )
}

/// The FNV-1a hash, as a short name for a path.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder for the test, removed on drop.
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
            let base = |_: &str| Ok(self.0.join("links"));
            Libraries::find_beside(&self.0.join("bin"), base, set)
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
    fn a_library_that_cannot_be_looked_for_is_not_taken_for_a_missing_one() {
        let folder = Folder::new("unsearchable");
        folder.file("bin/librdmacm.so");
        folder.file("lib/portolan/rdmacm");
        let error = folder.find(LibrarySet::Rdmacm).unwrap_err();
        let text = format!("{error:#}");
        assert!(
            text.contains("cannot look for") && text.contains("librdmacm.so.1: "),
            "{text}"
        );
    }

    #[test]
    fn the_error_for_a_missing_library_names_the_packages_of_all() {
        let folder = Folder::new("sockets");
        let error = find_built(&folder.0.join("bin"), SOCKETS)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("cargo build -p portolan-cli -p portolan-abi-rdmacm -p portolan-abi-verbs -p portolan-abi-preload`"),
            "{error}"
        );
        let built = folder.file("bin/deps/librspreload.so");
        assert_eq!(find_built(&folder.0.join("bin"), SOCKETS).unwrap(), built);
    }

    #[test]
    fn built_libraries_get_links_with_the_names_that_programs_load() {
        let folder = Folder::new("built");
        let rdmacm = folder.file("bin/deps/librdmacm.so");
        let error = folder.find(LibrarySet::Full).unwrap_err().to_string();
        assert!(
            error.contains("-p portolan-abi-rdmacm -p portolan-abi-verbs "),
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
}
