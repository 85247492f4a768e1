//! Where apt looks for packages: the host's own lists, or those of another suite, which the cache keeps
//! beside them and the host does not see.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use super::command::{command, failure, output, run};
use super::packages::{Candidate, REFRESH_ATTEMPTS, REFRESH_PAUSE, Version, single_entry};
use super::{Cache, MachineError, Unavailable};

/// Lists of packages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lists {
    options: Vec<String>,
    /// What notes in the cache have behind a package's name.
    pub(crate) suffix: String,
}

impl Lists {
    /// The host's own.
    pub(crate) fn of_host() -> Self {
        Self::default()
    }

    /// Those of a suite of Debian, whatever the host's is.
    pub(crate) fn of_suite(cache: &Cache, suite: &str) -> Result<Self, MachineError> {
        let all = cache.folder("lists")?;
        let folder = all.join(suite);
        let partial = folder.join("partial");
        fs::create_dir_all(&partial).map_err(MachineError::io("create", &partial))?;
        // Not in the folder of the lists: apt-get clears that of files that are not its own.
        let sources = all.join(format!("{suite}.sources"));
        let text = format!(
            "Types: deb\nURIs: http://deb.debian.org/debian\nSuites: {suite}\nComponents: main\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        );
        fs::write(&sources, text).map_err(MachineError::io("write", &sources))?;
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
        })
    }

    /// The newest version of a package.
    pub(crate) fn candidate(&self, package: &str) -> Result<Candidate, MachineError> {
        let mut show = command("apt-cache");
        show.args(&self.options);
        let text = output(show.args(["show", "--no-all-versions", package]))?;
        Candidate::parse(package, &text)
    }

    /// Downloads packages and unpacks them into the fresh folder `root`, one over the other.
    pub(crate) fn download(&self, versions: &[Version], root: &Path) -> Result<(), MachineError> {
        if root.exists() {
            fs::remove_dir_all(root).map_err(MachineError::io("remove", root))?;
        }
        for version in versions {
            let download = root.join("download");
            fs::create_dir_all(&download).map_err(MachineError::io("create", &download))?;
            let wanted = format!("{}={}", version.package, version.version);
            output(self.apt_get(&["download", &wanted]).current_dir(&download))?;
            let archive = single_entry(&download)?;
            output(command("dpkg").arg("-x").arg(&archive).arg(root))?;
            fs::remove_dir_all(&download).map_err(MachineError::io("remove", &download))?;
        }
        Ok(())
    }

    /// Tries `action`; if it fails and this process may, refreshes the package lists and tries again.
    /// Lists are absent on a fresh container and name vanished versions on one not updated lately.
    pub(crate) fn fresh<T>(
        &self,
        action: impl Fn() -> Result<T, MachineError>,
    ) -> Result<T, MachineError> {
        match action() {
            Err(error @ MachineError::Command { .. }) => {
                if !rustix::process::geteuid().is_root() {
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

    /// Somebody else's refreshing, as new machines do by themselves, holds the lists for a while; that lock
    /// apt-get does not wait for.
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
