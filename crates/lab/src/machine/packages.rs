//! Debian packages: installs missing ones, and unpacks others without installing them.

use std::fs;
use std::path::{Path, PathBuf};

use super::candidate::{Candidate, Version};
use super::command::{command, output, run};
use super::lists::Lists;
use super::{Cache, MachineError, Unavailable};

/// A Debian package that a check needs on this host, and its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Package {
    /// The package's name.
    pub name: &'static str,
    /// Its purpose in a few words.
    pub purpose: &'static str,
}

/// Installs the missing packages of `packages` through apt-get.
///
/// # Errors
/// [`MachineError::Unavailable`] if some are missing and this process is not root, or if this is
/// not a Debian system; [`MachineError::Command`] if apt-get fails.
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

/// A package unpacked into the cache.
#[derive(Debug)]
pub(crate) struct Unpacked {
    pub(crate) version: Version,
    pub(crate) root: PathBuf,
}

/// Unpacks one or more packages into a folder of the cache, without installing them. The folder is
/// named after the first.
///
/// `select` chooses the packages from apt's information about `package`: the package itself, or
/// some of its dependencies. A note in the cache records the choice, so later runs need neither
/// network nor apt. `finish` completes the folder once, before it counts as unpacked.
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
        let nothing = || MachineError::unexpected(package, "no package was selected for unpacking");
        lists.download(&versions, &partial)?;
        versions.into_iter().next().ok_or_else(nothing)
    })?;
    finish(&version, &partial)?;
    // Renamed into place only when complete, so an interrupted run leaves no partial folder.
    let root = folder.join(version.folder());
    if root.exists() {
        fs::remove_dir_all(&root).map_err(MachineError::io("remove", &root))?;
    }
    fs::rename(&partial, &root).map_err(MachineError::io("rename", &partial))?;
    fs::write(&note, version.folder()).map_err(MachineError::io("write", &note))?;
    Ok(Unpacked { version, root })
}

fn is_installed(package: &str) -> Result<bool, MachineError> {
    // dpkg-query fails for an unknown package, which is an answer and not an error.
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
            // Not a Debian system.
            Err(error) => assert!(matches!(error, MachineError::Unavailable(_)), "{error}"),
        }
    }

    #[test]
    fn an_error_names_missing_packages_with_their_purpose_and_the_command_to_install_them() {
        let [first, second] = [("kmod", "modules"), ("tshark", "captures")]
            .map(|(name, purpose)| Package { name, purpose });
        assert_eq!(
            needs_root(&[first, second]).to_string(),
            "packages kmod (modules), tshark (captures) unavailable: \
             installing needs root: apt-get install kmod tshark"
        );
    }
}
