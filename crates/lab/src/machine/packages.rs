//! Debian packages: install what is missing, unpack what must not be installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::command::{command, output, run};
use super::lists::Lists;
use super::{Cache, MachineError, Unavailable};

/// How often, and how far apart, the package lists are tried to be refreshed.
pub(crate) const REFRESH_ATTEMPTS: u32 = 5;
pub(crate) const REFRESH_PAUSE: Duration = Duration::from_secs(10);

/// A Debian package that a check needs installed on this host, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Package {
    /// The package's name.
    pub name: &'static str,
    /// What it is needed for, in a few words.
    pub purpose: &'static str,
}

/// Installs those of `packages` that are not installed, through apt-get.
///
/// # Errors
/// [`MachineError::Unavailable`] if some are missing and this process is not root, or if this is
/// no Debian system; [`MachineError::Command`] if apt-get fails.
pub fn ensure_installed(packages: &[Package]) -> Result<(), MachineError> {
    let mut missing = Vec::new();
    for package in packages {
        if !is_installed(package.name)? {
            missing.push(*package);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(MachineError::Unavailable(needs_root(&missing)));
    }
    let names = missing.iter().map(|package| package.name);
    let lists = Lists::of_host();
    lists.fresh(|| {
        let mut install = lists.apt_get(&["install", "--yes", "--no-install-recommends"]);
        output(install.args(names.clone())).map(drop)
    })
}

fn needs_root(missing: &[Package]) -> Unavailable {
    let list = |describe: fn(&Package) -> String, separator: &str| {
        missing
            .iter()
            .map(describe)
            .collect::<Vec<_>>()
            .join(separator)
    };
    let purposes = list(
        |package| format!("{} ({})", package.name, package.purpose),
        ", ",
    );
    let names = list(|package| package.name.to_owned(), " ");
    Unavailable {
        what: format!("packages {purposes}"),
        why: format!("installing needs root: apt-get install {names}"),
    }
}

/// How names of Debian's files have a version's colon.
const COLON: &str = "%3a";

/// An exact version of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) package: String,
    pub(crate) version: String,
}

/// A package unpacked into the cache.
#[derive(Debug)]
pub(crate) struct Unpacked {
    pub(crate) version: Version,
    pub(crate) root: PathBuf,
}

/// Unpacks, without installing them, a package or several into one folder of the cache, which the first
/// names.
///
/// Which they are is decided by `select` from what apt says of `package` (itself, or those it depends
/// on), and noted in the cache, so that later runs need neither network nor apt and repeat what
/// the first one did. `finish` completes the folder, once, before it counts as unpacked.
pub(crate) fn unpack(
    cache: &Cache,
    lists: &Lists,
    package: &str,
    select: impl Fn(&Candidate) -> Result<Vec<Version>, MachineError>,
    finish: impl Fn(&Version, &Path) -> Result<(), MachineError>,
) -> Result<Unpacked, MachineError> {
    let folder = cache.folder("packages")?;
    let note = folder.join(format!("{package}{}.unpacked", lists.suffix));
    if let Some(version) = fs::read_to_string(&note)
        .ok()
        .as_deref()
        .and_then(Version::parse)
    {
        let root = folder.join(version.folder());
        if root.is_dir() {
            return Ok(Unpacked { version, root });
        }
    }
    let partial = folder.join(format!("{package}.partial"));
    let version = lists.fresh(|| {
        let versions = select(&lists.candidate(package)?)?;
        let nothing = || MachineError::unexpected(package, "nothing of it is to be unpacked");
        lists.download(&versions, &partial)?;
        versions.into_iter().next().ok_or_else(nothing)
    })?;
    finish(&version, &partial)?;
    // Renamed into place only when complete: an interrupted run leaves nothing half made.
    let root = folder.join(version.folder());
    if root.exists() {
        fs::remove_dir_all(&root).map_err(MachineError::io("remove", &root))?;
    }
    fs::rename(&partial, &root).map_err(MachineError::io("rename", &partial))?;
    fs::write(&note, version.folder()).map_err(MachineError::io("write", &note))?;
    Ok(Unpacked { version, root })
}

impl Version {
    /// The folder's name, which is also what the note says, and how a downloaded file's begins. Neither part of it can
    /// contain `_` or `/` (Debian policy 5.6.1 and 5.6.12); a colon would end a path in a list of them.
    fn folder(&self) -> String {
        format!("{}_{}", self.package, self.version.replace(':', COLON))
    }

    fn parse(folder: &str) -> Option<Self> {
        let (package, version) = folder.trim().split_once('_')?;
        Some(Self {
            package: package.to_owned(),
            version: version.replace(COLON, ":"),
        })
    }

    /// The file that `apt-get download` has left in `folder`.
    pub(crate) fn archive_in(&self, folder: &Path) -> Result<PathBuf, MachineError> {
        let beginning = format!("{}_", self.folder());
        let entries = fs::read_dir(folder).map_err(MachineError::io("list", folder))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let found: Vec<String> = names.filter(|name| name.starts_with(&beginning)).collect();
        match found.as_slice() {
            [name] => Ok(folder.join(name)),
            _ => Err(MachineError::unexpected(
                format!("apt-get download into {}", folder.display()),
                format!("expected one file of {beginning}…, found {}", found.len()),
            )),
        }
    }
}

/// The newest version of a package that apt knows, and what it depends on.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) version: Version,
    pub(crate) depends: String,
}

impl Candidate {
    /// Reads what `apt-cache show` prints.
    pub(crate) fn parse(package: &str, text: &str) -> Result<Self, MachineError> {
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name))
                .map(|value| value.trim().to_owned())
        };
        let version = field("Version:").ok_or_else(|| {
            MachineError::unexpected(format!("apt-cache show {package}"), "no Version field")
        })?;
        let version = Version {
            package: package.to_owned(),
            version,
        };
        Ok(Self {
            version,
            depends: field("Depends:").unwrap_or_default(),
        })
    }
}

fn is_installed(package: &str) -> Result<bool, MachineError> {
    // dpkg-query fails for a package it has never heard of; that is an answer, not an error.
    let query = run(command("dpkg-query").args(["-W", "-f", "${db:Status-Status}", package]))?;
    Ok(query.status.success() && query.stdout == b"installed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_dpkg_has_never_heard_of_is_not_installed() {
        match is_installed("portolan-no-such-package") {
            Ok(installed) => assert!(!installed),
            // Not a Debian system: said, not guessed.
            Err(error) => assert!(matches!(error, MachineError::Unavailable(_)), "{error}"),
        }
    }

    #[test]
    fn missing_packages_are_told_with_their_purpose_and_what_would_install_them() {
        let [first, second] = [("kmod", "modules"), ("tshark", "captures")]
            .map(|(name, purpose)| Package { name, purpose });
        assert_eq!(
            needs_root(&[first, second]).to_string(),
            "packages kmod (modules), tshark (captures) unavailable: \
             installing needs root: apt-get install kmod tshark"
        );
    }

    #[test]
    fn the_file_of_a_version_is_found_among_those_downloaded() {
        let folder =
            std::env::temp_dir().join(format!("portolan-lab-archives-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let version = Version {
            package: "a".to_owned(),
            version: "1:2-3".to_owned(),
        };
        assert!(matches!(
            version.archive_in(&folder),
            Err(MachineError::Unexpected { .. })
        ));
        for name in [
            "a_1%3a2-3_all.deb",
            "a_1%3a2-31_all.deb",
            "ab_1%3a2-3_all.deb",
        ] {
            fs::write(folder.join(name), b"").unwrap();
        }
        let found = version.archive_in(&folder).unwrap();
        assert_eq!(found, folder.join("a_1%3a2-3_all.deb"));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_version_is_read_again_from_its_folders_name() {
        let version = Version {
            package: "a".to_owned(),
            version: "1:2-3".to_owned(),
        };
        assert_eq!(Version::parse(&version.folder()), Some(version));
    }
}
