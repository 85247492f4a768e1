//! Package information from apt: the newest version and its dependencies.

use std::fs;
use std::path::{Path, PathBuf};

use super::MachineError;

/// The encoding of a version's colon in Debian's file names.
const COLON: &str = "%3a";

/// An exact version of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) package: String,
    pub(crate) version: String,
}

impl Version {
    /// Name of the package's folder and content of its note in the cache. Downloaded files begin
    /// with it. Neither part can contain `_` or `/` (Debian policy 5.6.1 and 5.6.12). A colon would
    /// be taken for the end of a path in a list of paths.
    pub(super) fn folder(&self) -> String {
        format!("{}_{}", self.package, self.version.replace(':', COLON))
    }

    pub(super) fn parse(folder: &str) -> Option<Self> {
        let (package, version) = folder.trim().split_once('_')?;
        Some(Self {
            package: package.to_owned(),
            version: version.replace(COLON, ":"),
        })
    }

    /// The file downloaded to `folder` by `apt-get download`.
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

/// The newest version of a package known to apt, and its dependencies.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) version: Version,
    pub(crate) depends: String,
}

impl Candidate {
    /// Parses the output of `apt-cache show`.
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

#[cfg(test)]
mod tests {
    use super::*;

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
