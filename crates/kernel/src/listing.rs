//! A listing of the kernel's RDMA devices: cheap to read, and different whenever a device was added or removed.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::DirEntryExt;
use std::path::Path;

/// Where the kernel lists its RDMA devices.
pub(crate) const DEVICES: &str = "/sys/class/infiniband";

/// The devices' names, each with its inode number. sysfs never reuses an inode number, so a device that was removed and
/// added again counts as another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listing(Vec<(OsString, u64)>);

impl Listing {
    /// The current devices; `None` if the folder is not readable, as in a container that hides it or on a kernel
    /// without RDMA.
    pub(crate) fn of(folder: &Path) -> Option<Self> {
        let entries = std::fs::read_dir(folder).ok()?;
        let listed = entries.map(|entry| entry.map(|entry| (entry.file_name(), entry.ino())));
        let mut listed = listed.collect::<Result<Vec<_>, _>>().ok()?;
        listed.sort();
        Some(Self(listed))
    }

    /// Whether the listing is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the names are exactly those of the listing, in any order.
    pub(crate) fn are_all<'a>(&self, names: impl Iterator<Item = &'a str>) -> bool {
        let mut names: Vec<&OsStr> = names.map(OsStr::new).collect();
        names.sort();
        names.into_iter().eq(self.0.iter().map(|(name, _)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_changes_when_devices_come_and_go_even_under_the_same_name() {
        let folder = std::env::temp_dir().join(format!("portolan-listing-{}", std::process::id()));
        assert_eq!(Listing::of(&folder), None);
        std::fs::create_dir_all(&folder).unwrap();
        let now = || Listing::of(&folder).unwrap();
        assert!(now().is_empty() && now().are_all([].into_iter()));
        std::fs::write(folder.join("rxe0"), "").unwrap();
        let first = now();
        assert_eq!(first, now());
        std::fs::write(folder.join("mlx5_0"), "").unwrap();
        assert_ne!(first, now());
        assert!(now().are_all(["rxe0", "mlx5_0"].into_iter()));
        assert!(!now().are_all(["rxe0"].into_iter()));
        std::fs::remove_file(folder.join("mlx5_0")).unwrap();
        assert_eq!(first, now());
        // Created beside it, so that the number differs.
        std::fs::write(folder.join("new"), "").unwrap();
        std::fs::rename(folder.join("new"), folder.join("rxe0")).unwrap();
        assert_ne!(first, now());
        assert!(now().are_all(["rxe0"].into_iter()));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
