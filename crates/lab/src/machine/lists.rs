//! Package lists for apt: the host's own, or those of another suite, kept in the cache and hidden
//! from the host.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::candidate::{Candidate, Version};
use super::command::{command, failure, output, run};
use super::{Cache, MachineError, Unavailable};

/// How often to try to refresh the package lists, and the pause between two attempts.
const REFRESH_ATTEMPTS: u32 = 5;
const REFRESH_PAUSE: Duration = Duration::from_secs(10);

/// Package lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lists {
    options: Vec<String>,
    /// Appended to the package's name in the names of the cache's notes.
    pub(crate) suffix: String,
    /// Whether the lists belong to the cache, so that refreshing them does not need root.
    are_own: bool,
}

impl Lists {
    /// The host's own lists.
    pub(crate) fn of_host() -> Self {
        Self::default()
    }

    /// Lists of a Debian suite, whatever the host's suite is, from the host's archive.
    pub(crate) fn of_suite(cache: &Cache, suite: &str) -> Result<Self, MachineError> {
        Self::of_suites(cache, &[suite])
    }

    /// Lists of several suites, because a package of one may depend on packages of another.
    pub(crate) fn of_suites(cache: &Cache, suites: &[&str]) -> Result<Self, MachineError> {
        let all = cache.folder("lists")?;
        let (suite, suites) = (suites.join("+"), suites.join(" "));
        let folder = all.join(&suite);
        let partial = folder.join("partial");
        fs::create_dir_all(&partial).map_err(MachineError::io("create", &partial))?;
        // Not in the folder of the lists: apt-get deletes foreign files there.
        let sources = all.join(format!("{suite}.sources"));
        // Only once: later runs need no apt for packages in the cache.
        if !sources.exists() {
            let text = format!(
                "Types: deb\nURIs: {}\nSuites: {suites}\nComponents: main\n\
                 Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
                archive_of_host()?
            );
            fs::write(&sources, text).map_err(MachineError::io("write", &sources))?;
        }
        let settings = [
            ("Dir::Etc::sourcelist", sources.display().to_string()),
            ("Dir::Etc::sourceparts", "/dev/null".to_owned()),
            ("Dir::State::lists", folder.display().to_string()),
        ];
        let options = settings
            .into_iter()
            .flat_map(|(name, value)| ["-o".to_owned(), format!("{name}={value}")]);
        Ok(Self {
            options: options.collect(),
            suffix: format!(".{suite}"),
            are_own: true,
        })
    }

    /// The newest version of a package.
    pub(crate) fn candidate(&self, package: &str) -> Result<Candidate, MachineError> {
        let mut show = command("apt-cache");
        show.args(&self.options);
        let text = output(show.args(["show", "--no-all-versions", package]))?;
        Candidate::parse(package, &text)
    }

    /// Resolves packages with all dependencies, for an empty system. The first result is the first
    /// package asked for. Each package is `NAME` or `NAME=VERSION`.
    pub(crate) fn with_dependencies(
        &self,
        packages: &[impl AsRef<str>],
    ) -> Result<Vec<Version>, MachineError> {
        let names: Vec<_> = packages.iter().map(AsRef::as_ref).collect();
        let mut install = self.apt_get(&["install", "--simulate", "--no-install-recommends"]);
        install.args(["-o", "Dir::State::status=/dev/null"]);
        let mut all = parse_simulation(&output(install.args(&names))?);
        let first = names.first().and_then(|name| name.split('=').next());
        let own = all
            .iter()
            .position(|version| Some(&*version.package) == first);
        let own = own.ok_or_else(|| {
            let origin = format!("apt-get install --simulate {}", names.join(" "));
            MachineError::unexpected(origin, "the first package is not among those to install")
        })?;
        all.swap(0, own);
        Ok(all)
    }

    /// Downloads packages and unpacks all of them into the fresh folder `root`.
    pub(crate) fn download(&self, versions: &[Version], root: &Path) -> Result<(), MachineError> {
        if root.exists() {
            fs::remove_dir_all(root).map_err(MachineError::io("remove", root))?;
        }
        let download = root.join("download");
        fs::create_dir_all(&download).map_err(MachineError::io("create", &download))?;
        let wanted = versions
            .iter()
            .map(|version| format!("{}={}", version.package, version.version));
        let mut all = self.apt_get(&["download"]);
        output(all.args(wanted).current_dir(&download))?;
        for version in versions {
            let archive = version.archive_in(&download)?;
            output(command("dpkg").arg("-x").arg(&archive).arg(root))?;
        }
        fs::remove_dir_all(&download).map_err(MachineError::io("remove", &download))
    }

    /// Runs `action`. If it fails and this process may refresh the package lists, refreshes them
    /// and runs it again. A new container has no lists, and outdated lists name versions that no
    /// longer exist.
    pub(crate) fn fresh<T>(
        &self,
        action: impl Fn() -> Result<T, MachineError>,
    ) -> Result<T, MachineError> {
        match action() {
            Err(error @ MachineError::Command { .. }) => {
                if !self.are_own && !rustix::process::geteuid().is_root() {
                    return Err(MachineError::Unavailable(Unavailable {
                        what: "a package".to_owned(),
                        why: format!("{error} (refreshing the package lists needs root)"),
                    }));
                }
                self.refresh()?;
                action()
            }
            other => other,
        }
    }

    /// Refreshes the lists, with retries. New machines refresh their lists at boot and hold a lock
    /// that apt-get does not wait for.
    fn refresh(&self) -> Result<(), MachineError> {
        let mut attempt = 1;
        loop {
            let mut update = self.apt_get(&["update"]);
            let result = run(&mut update)?;
            if result.status.success() {
                return Ok(());
            }
            if attempt == REFRESH_ATTEMPTS {
                return Err(failure(&update, &result));
            }
            attempt += 1;
            thread::sleep(REFRESH_PAUSE);
        }
    }

    pub(crate) fn apt_get(&self, arguments: &[&str]) -> Command {
        let mut command = command("apt-get");
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["--quiet", "-o", "DPkg::Lock::Timeout=120"])
            .args(&self.options)
            .args(arguments);
        command
    }
}

/// The archive from which the host gets Debian packages, whether or not it has lists yet.
fn archive_of_host() -> Result<String, MachineError> {
    let text = output(command("apt-get").args(["update", "--print-uris"]))?;
    parse_archive(&text).ok_or_else(|| {
        MachineError::Unavailable(Unavailable {
            what: "packages of another suite".to_owned(),
            why: "apt has no source of this host's own suite".to_owned(),
        })
    })
}

/// The archive of the first complete suite: not updates, backports or security fixes.
fn parse_archive(uris: &str) -> Option<String> {
    uris.lines().find_map(|line| {
        let uri = line.strip_prefix('\'')?.split('\'').next()?;
        let (archive, suite) = uri.strip_suffix("/InRelease")?.split_once("/dists/")?;
        (!suite.contains(['-', '/'])).then(|| archive.to_owned())
    })
}

/// Parses the output of `apt-get --simulate install`: `Inst NAME (VERSION ORIGIN [ARCHITECTURE])`.
fn parse_simulation(text: &str) -> Vec<Version> {
    text.lines()
        .filter_map(|line| {
            let (package, rest) = line.strip_prefix("Inst ")?.split_once(" (")?;
            Some(Version {
                package: package.to_owned(),
                version: rest.split(' ').next()?.to_owned(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_that_of_the_hosts_suite_and_not_of_its_fixes() {
        let text = "'http://a/security/dists/bookworm-security/InRelease' a_InRelease 0 \n\
                    'http://a/debian/dists/bookworm/main/binary-amd64/Packages.xz' a_Packages 0 \n\
                    'http://a/debian/dists/bookworm/InRelease' a_InRelease 0 \n";
        assert_eq!(parse_archive(text).as_deref(), Some("http://a/debian"));
        assert_eq!(parse_archive(""), None);
    }

    #[test]
    fn packages_to_install_are_read_with_their_versions() {
        let text = "NOTE: This is only a simulation!\n\
                    Inst gcc-14-base (14.2.0-19 Debian:13.7/stable [amd64])\n\
                    Inst seabios (1.16.3-2 Debian:13.7/stable [all]) []\n\
                    Conf seabios (1.16.3-2 Debian:13.7/stable [all])\n";
        let version = |package: &str, version: &str| Version {
            package: package.to_owned(),
            version: version.to_owned(),
        };
        let expected = [
            version("gcc-14-base", "14.2.0-19"),
            version("seabios", "1.16.3-2"),
        ];
        assert_eq!(parse_simulation(text), expected);
    }
}
