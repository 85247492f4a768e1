//! Paths that only root and this user can redirect.
//!
//! The rule is that of OpenSSH's `StrictModes`: each folder from the root on belongs to root or the user, and neither
//! its group nor others may write to it. A sticky folder may be shared, because only the owner of an entry can replace
//! it there. Symbolic links are followed one by one, and the same rule applies to the folders on their way.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use portolan::provider::stands_for_others;
use thiserror::Error;

/// Maximum number of symbolic links in one path, as in Linux (path_resolution(7)).
const LINKS_MAX: usize = 40;
/// Write permission of the group and of others. If a folder has an ACL, the group's bits are its mask (acl(5)).
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// The bits of a mode that are permissions.
const PERMISSIONS: u32 = 0o7777;
const ROOT: u32 = 0;
/// Folders that root has created on every system (Filesystem Hierarchy Standard 3.0).
const ROOTS_FOLDERS: [&str; 7] = [
    "/",
    "/home",
    "/run",
    "/run/user",
    "/tmp",
    "/var",
    "/var/tmp",
];

/// Why a path is not secure.
#[derive(Debug, Error)]
pub(super) enum Insecure {
    #[error("{} belongs to user {owner}, who is neither root nor user {user}", .path.display())]
    Owner {
        path: PathBuf,
        owner: u32,
        user: u32,
    },
    #[error(
        "{} may be written by others (mode {mode:o}) and is not sticky; `chmod go-w` it",
        .path.display()
    )]
    Writable { path: PathBuf, mode: u32 },
    #[error("{} does not begin at /", .0.display())]
    Relative(PathBuf),
    #[error("{} is not a folder", .0.display())]
    NotAFolder(PathBuf),
    #[error("more than {LINKS_MAX} symbolic links")]
    Links,
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// Resolves an absolute path to a folder without symbolic links, if only root and `user` can redirect the path.
///
/// # Errors
///
/// The first part of the path that another user can replace, or that is not a folder.
pub(super) fn folder(path: &Path, user: u32) -> Result<PathBuf, Insecure> {
    if !path.is_absolute() {
        return Err(Insecure::Relative(path.to_owned()));
    }
    let mut found = root(user)?;
    let mut ahead = names(path);
    let mut links = 0;
    while let Some(name) = ahead.pop_front() {
        if name == ".." {
            // The parent was checked on the way here.
            found.pop();
            continue;
        }
        let next = found.join(name);
        let metadata = look(&next, user)?;
        if metadata.is_dir() {
            found = next;
        } else if metadata.is_symlink() {
            links += 1;
            if links > LINKS_MAX {
                return Err(Insecure::Links);
            }
            let target = std::fs::read_link(&next).map_err(|error| Insecure::Io {
                path: next.clone(),
                error,
            })?;
            if target.is_absolute() {
                found = root(user)?;
            }
            ahead = names(&target).into_iter().chain(ahead).collect();
        } else {
            return Err(Insecure::NotAFolder(next));
        }
    }
    Ok(found)
}

fn root(user: u32) -> Result<PathBuf, Insecure> {
    let root = PathBuf::from("/");
    look(&root, user)?;
    Ok(root)
}

/// The names in a path, including `..`.
fn names(path: &Path) -> VecDeque<OsString> {
    let is_name =
        |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    let parts = path.components().filter(is_name);
    parts.map(|part| part.as_os_str().to_owned()).collect()
}

/// Whether a folder is root's although the user namespace does not map root (user_namespaces(7)). All unmapped users
/// look alike there, so this only holds for folders that are root's on every system.
fn is_roots_without_a_number(path: &Path, owner: u32) -> bool {
    ROOTS_FOLDERS.iter().any(|roots| path == Path::new(roots)) && stands_for_others(owner)
}

/// Reads one part of the path without following a link.
fn look(path: &Path, user: u32) -> Result<std::fs::Metadata, Insecure> {
    let metadata = path.symlink_metadata().map_err(|error| Insecure::Io {
        path: path.to_owned(),
        error,
    })?;
    let (owner, mode) = (metadata.uid(), metadata.mode());
    if ![ROOT, user].contains(&owner) && !is_roots_without_a_number(path, owner) {
        let path = path.to_owned();
        return Err(Insecure::Owner { path, owner, user });
    }
    // A link has no permissions of its own.
    let is_shared = mode & WRITABLE_BY_OTHERS != 0 && mode & STICKY == 0;
    if is_shared && !metadata.is_symlink() {
        let (path, mode) = (path.to_owned(), mode & PERMISSIONS);
        return Err(Insecure::Writable { path, mode });
    }
    Ok(metadata)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A folder for the test, removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("portolan-secure-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir(&folder).unwrap();
            Self(folder.canonicalize().unwrap())
        }

        fn make(&self, name: &str) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir_all(&path).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn chown(path: &Path) {
        std::os::unix::fs::lchown(path, Some(60_001), None).unwrap();
    }

    #[test]
    fn a_folder_and_its_parents_must_be_writable_only_by_their_owner_or_sticky() {
        let tree = Folder::new("modes");
        let place = tree.make("shared/own");
        for part in [&place, place.parent().unwrap()] {
            for mode in [0o700, 0o755, 0o1777, 0o1775] {
                set_mode(part, mode);
                assert_eq!(folder(&place, own()).unwrap(), place, "{mode:o}");
            }
            for mode in [0o777, 0o775, 0o757, 0o2775] {
                set_mode(part, mode);
                let error = folder(&place, own()).unwrap_err();
                assert!(
                    matches!(&error, Insecure::Writable { path, mode: found } if path == part && *found == mode),
                    "{error}"
                );
            }
            set_mode(part, 0o755);
        }
    }

    #[test]
    fn a_link_is_followed_through_folders_under_the_same_rule() {
        let tree = Folder::new("links");
        let (place, shared) = (tree.make("own"), tree.make("shared"));
        let link = shared.join("link");
        symlink("../own", &link).unwrap();
        assert_eq!(folder(&link, own()).unwrap(), place);
        let winding = link.join("../own/./");
        assert_eq!(folder(&winding, own()).unwrap(), place);
        set_mode(&shared, 0o775);
        let error = folder(&link, own()).unwrap_err();
        assert!(
            matches!(&error, Insecure::Writable { path, .. } if *path == shared),
            "{error}"
        );
        // A link elsewhere that leads through it is refused too.
        symlink(&link, tree.0.join("outer")).unwrap();
        assert!(folder(&tree.0.join("outer"), own()).is_err());
    }

    #[test]
    fn a_circular_path_or_one_without_a_folder_is_refused() {
        let tree = Folder::new("round");
        symlink("round", tree.0.join("round")).unwrap();
        let round = folder(&tree.0.join("round"), own());
        assert!(matches!(round, Err(Insecure::Links)), "{round:?}");
        fs::write(tree.0.join("file"), "").unwrap();
        let file = folder(&tree.0.join("file"), own());
        assert!(matches!(file, Err(Insecure::NotAFolder(_))), "{file:?}");
        let missing = folder(&tree.0.join("missing"), own());
        assert!(matches!(missing, Err(Insecure::Io { .. })), "{missing:?}");
        let relative = folder(Path::new("tmp"), own());
        assert!(
            matches!(relative, Err(Insecure::Relative(_))),
            "{relative:?}"
        );
        assert_eq!(folder(Path::new("/.."), own()).unwrap(), Path::new("/"));
    }

    #[test]
    fn a_part_owned_by_another_ordinary_user_is_refused_anywhere_in_the_path() {
        if own() != 0 {
            return;
        }
        let tree = Folder::new("owners");
        let place = tree.make("another/own");
        assert!(folder(&place, 0).is_ok());
        chown(place.parent().unwrap());
        let error = folder(&place, 0).unwrap_err();
        assert!(
            matches!(error, Insecure::Owner { owner: 60_001, .. }),
            "{error}"
        );
        // That user may use it.
        assert!(folder(&place, 60_001).is_ok());
        // In a sticky folder, the owner of a link can replace it.
        let shared = tree.make("shared");
        set_mode(&shared, 0o1777);
        let link = shared.join("link");
        symlink("/", &link).unwrap();
        assert!(folder(&link, 0).is_ok());
        chown(&link);
        assert!(folder(&link, 0).is_err());
    }
}
