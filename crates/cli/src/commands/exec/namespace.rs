//! Changes /sys and /dev for one program: a private mount namespace, in which files cover the machine's.
//!
//! sysfs allows no new folders, and a new one in /dev would be visible to everybody. If the folder does not exist, its
//! parent is covered too, and the parent's other contents are mounted there again.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{CWD, FileType, Mode, OFlags, chmod, mknodat, openat};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use rustix::process::{Resource, getegid, geteuid, getrlimit};
use thiserror::Error;

use super::view::Leaf;

/// Limits for the files: a page each, a few dozen per device. Memory is only used as needed.
const TMPFS_OPTIONS: &str = "mode=755,size=64m,nr_inodes=65536";
/// Maximum number of neighbours to mount again: Linux has about a hundred classes of devices, and a machine a few
/// hundred devices.
const NEIGHBOURS_MAX: usize = 4096;
/// The device that opens pseudo-terminals (pts(4)).
const PTMX: &str = "ptmx";
/// Permissions to open it, for everybody.
const BY_EVERYBODY: u32 = 0o666;
/// Where the covered folder is mounted for `ptmx`.
const ORIGINAL: &str = ".portolan";
/// The user number that represents all users that a user namespace does not map (user_namespaces(7)).
const OVERFLOW_UID: u32 = 65_534;

/// Why the tree is not visible.
#[derive(Debug, Error)]
pub(super) enum Hidden {
    /// The program may still run: its user and its view of the rest are unchanged.
    #[error("{0:#}")]
    Kept(anyhow::Error),
    /// This process has lost its user: nothing may run in it.
    #[error("this process lost its user in a user namespace that could not be finished: {0:#}")]
    Lost(anyhow::Error),
}

/// Moves this process, and the program that replaces it, to a private mount namespace. An ordinary user needs a user
/// namespace for that, which a process cannot leave again. So `try_elsewhere` first does the same in another process,
/// which then ends.
///
/// # Errors
///
/// What the system refused.
pub(super) fn leave(try_elsewhere: impl FnOnce() -> Result<()>) -> Result<(), Hidden> {
    match unshare(CloneFlags::CLONE_NEWNS) {
        Ok(()) => {}
        Err(Errno::EPERM) => {
            may_enter(geteuid().as_raw())
                .and_then(|()| try_elsewhere())
                .map_err(Hidden::Kept)?;
            enter()?;
        }
        Err(error) => return Err(Hidden::Kept(anyhow!("no mount namespace: {error}"))),
    }
    // Later mounts on the machine remain visible here, but ours are not visible there.
    let all = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(None::<&str>, "/", None::<&str>, all, None::<&str>)
        .context("mounts stay shared")
        .map_err(Hidden::Kept)
}

/// Checks whether this user can enter a user namespace.
fn may_enter(user: u32) -> Result<()> {
    match user {
        // For example root in a container, which would lose its privileges in a user namespace.
        0 => bail!("root may not create a mount namespace here: it lacks CAP_SYS_ADMIN"),
        OVERFLOW_UID => bail!(
            "in a user namespace, user {OVERFLOW_UID} cannot be distinguished from users without a number there"
        ),
        _ => Ok(()),
    }
}

/// Enters a mount namespace within a user namespace that keeps the user and the group.
fn enter() -> Result<(), Hidden> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)
        .context("this machine does not allow user namespaces for ordinary users")
        .map_err(Hidden::Kept)?;
    let write = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text)
            .with_context(|| format!("/proc/self/{file} of a user namespace"))
            .map_err(Hidden::Lost)
    };
    write("setgroups", "deny".into())?;
    write("uid_map", format!("{user} {user} 1"))?;
    write("gid_map", format!("{group} {group} 1"))
}

/// Covers `place` with `tree`, in the process's own namespace ([`leave`]).
///
/// # Errors
///
/// What the system refused; then the view is unchanged.
pub(super) fn lay_over(place: &Path, tree: &[(String, Leaf)]) -> Result<()> {
    let covered = cover(place)?;
    let filled = fill(place, tree).and_then(|()| seal(&covered));
    if filled.is_err() {
        // Remove our incomplete mount.
        let _ = umount2(&covered, MntFlags::MNT_DETACH);
    }
    filled
}

/// Covers `place` with an empty writable folder; returns the mount point of the covering file system.
fn cover(place: &Path) -> Result<PathBuf> {
    let mut covered = place;
    while !covered.is_dir() {
        covered = covered.parent().context("there is no root folder")?;
    }
    let parent = place.parent().context("a folder below another")?;
    ensure!(
        covered == place || covered == parent,
        "{} does not exist",
        parent.display()
    );
    // Keeps the original folder reachable under its cover.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let former = openat(CWD, covered, flags, Mode::empty()).map_err(io::Error::from)?;
    let neighbours = match covered == place {
        true => Vec::new(),
        false => neighbours(covered)?,
    };
    let limits = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(
        Some("portolan"),
        covered,
        Some("tmpfs"),
        limits,
        Some(TMPFS_OPTIONS),
    )
    .with_context(|| format!("nothing may be mounted at {}", covered.display()))?;
    let rebuilt = neighbours
        .iter()
        .try_for_each(|neighbour| neighbour.rebuild(covered, &former));
    if let Err(error) = rebuilt {
        let _ = umount2(covered, MntFlags::MNT_DETACH);
        return Err(error);
    }
    Ok(covered.to_owned())
}

/// An entry of a folder to be covered.
struct Neighbour {
    name: OsString,
    kind: NeighbourKind,
}

enum NeighbourKind {
    Folder,
    /// Also represents devices, sockets and the like.
    File,
    Link(PathBuf),
    /// The device that opens pseudo-terminals, and a copy of its folder's mounts.
    Ptmx(OwnedFd),
}

impl NeighbourKind {
    /// The kernel looks for the pseudo-terminals in `pts` beside the device, and a file that is mounted alone has
    /// nothing beside it.
    fn of_ptmx(folder: &Path) -> Result<Self> {
        let other = Path::new("pts").join(PTMX);
        // Most machines only let root open this one. A program of root may open terminals as another user.
        let may_open = |found: fs::Metadata| found.mode() & BY_EVERYBODY == BY_EVERYBODY;
        if folder.join(&other).metadata().is_ok_and(may_open) {
            return Ok(Self::Link(other));
        }
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let copy = open_tree(CWD, folder, flags)
            .with_context(|| format!("{} cannot be mounted twice", folder.display()))?;
        Ok(Self::Ptmx(copy))
    }
}

fn neighbours(folder: &Path) -> Result<Vec<Neighbour>> {
    let mut neighbours = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        ensure!(
            neighbours.len() < NEIGHBOURS_MAX,
            "{} is too full",
            folder.display()
        );
        let kind = if kind.is_symlink() {
            NeighbourKind::Link(fs::read_link(&path)?)
        } else if kind.is_char_device() && entry.file_name() == PTMX {
            NeighbourKind::of_ptmx(folder)?
        } else if kind.is_dir() {
            NeighbourKind::Folder
        } else {
            NeighbourKind::File
        };
        let name = entry.file_name();
        neighbours.push(Neighbour { name, kind });
    }
    Ok(neighbours)
}

impl Neighbour {
    /// Mounts the entry at its original path, above the cover.
    fn rebuild(&self, covered: &Path, former: &OwnedFd) -> Result<()> {
        let path = covered.join(&self.name);
        match &self.kind {
            NeighbourKind::Link(to) => return Ok(symlink(to, path)?),
            NeighbourKind::Ptmx(original) => {
                let place = covered.join(ORIGINAL);
                fs::create_dir(&place)?;
                move_mount(
                    original,
                    "",
                    CWD,
                    &place,
                    MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
                )
                .with_context(|| format!("{} cannot be mounted", place.display()))?;
                return Ok(symlink(Path::new(ORIGINAL).join(PTMX), path)?);
            }
            NeighbourKind::Folder => fs::create_dir(&path)?,
            NeighbourKind::File => fs::write(&path, [])?,
        }
        let from = Path::new("/proc/self/fd").join(former.as_raw_fd().to_string());
        let from = from.join(&self.name);
        let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(&from), &path, None::<&str>, bind, None::<&str>)
            .with_context(|| format!("{} cannot be mounted again", path.display()))
    }
}

fn fill(place: &Path, tree: &[(String, Leaf)]) -> Result<()> {
    fs::create_dir_all(place)?;
    for (path, leaf) in tree {
        let path = place.join(path);
        fs::create_dir_all(path.parent().unwrap_or(place))?;
        match leaf {
            Leaf::Text(text) => write(&path, text)?,
            Leaf::Link(to) => symlink(to, path)?,
            Leaf::Node => make_node(&path)?,
        }
    }
    Ok(())
}

/// Writes a file, unless that would exceed the limit of file sizes and kill the process (SIGXFSZ, setrlimit(2)).
fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(limit) = getrlimit(Resource::Fsize).current {
        ensure!(
            text.len() as u64 <= limit,
            "the limit of file sizes (RLIMIT_FSIZE) is {limit} bytes"
        );
    }
    Ok(fs::write(path, text)?)
}

/// Creates a character device with the number 0:0, which has no driver and which any user may create (Linux 5.8).
fn make_node(path: &Path) -> Result<()> {
    let everybody = Mode::from_raw_mode(0o666);
    mknodat(CWD, path, FileType::CharacterDevice, everybody, 0)
        .and_then(|()| chmod(path, everybody))
        .with_context(|| format!("{} cannot be made", path.display()))
}

/// Makes it read-only.
fn seal(covered: &Path) -> Result<()> {
    let flags = MsFlags::MS_REMOUNT
        | MsFlags::MS_RDONLY
        | MsFlags::MS_NOSUID
        | MsFlags::MS_NODEV
        | MsFlags::MS_NOEXEC;
    mount(
        None::<&str>,
        covered,
        None::<&str>,
        flags,
        Some(TMPFS_OPTIONS),
    )
    .with_context(|| format!("{} stays writable", covered.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_namespace_is_for_users_that_it_can_name_and_that_lose_nothing_in_it() {
        assert!(may_enter(1000).is_ok());
        assert!(
            may_enter(0)
                .unwrap_err()
                .to_string()
                .contains("CAP_SYS_ADMIN")
        );
        assert!(may_enter(OVERFLOW_UID).is_err());
    }
}
