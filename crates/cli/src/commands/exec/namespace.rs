//! Folders of /sys and /dev as one program sees them: a mount namespace of its own, in which files lie over the machine's.
//!
//! sysfs takes no new folders, and a new one in /dev would be everybody's. Where there is none of that name, the folder above
//! is covered too, and all that it had is mounted there again.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{CWD, FileType, Mode, OFlags, chmod, mknodat, openat};
use rustix::process::{getegid, geteuid};
use thiserror::Error;

use super::view::Leaf;

/// What the files may take: a page for each, of some dozens for each device. It is taken as it is used.
const TMPFS_OPTIONS: &str = "mode=755,size=64m,nr_inodes=65536";
/// Neighbours that are mounted again at most: Linux has about a hundred classes of devices, and a machine some hundreds of
/// devices.
const NEIGHBOURS_MAX: usize = 4096;
/// The user that stands for all whom a user namespace does not know (user_namespaces(7)).
const OVERFLOW_UID: u32 = 65_534;

/// Why the tree is not seen.
#[derive(Debug, Error)]
pub(super) enum Hidden {
    /// The program may run all the same: its user and what else it sees are as before.
    #[error("{0:#}")]
    Kept(anyhow::Error),
    /// This process has no user any more: nothing may run in its place.
    #[error("this process lost its user in a user namespace that could not be finished: {0:#}")]
    Lost(anyhow::Error),
}

/// Takes this process, and the program that takes its place, to a mount namespace of its own. An ordinary user needs a user
/// namespace for that, which cannot be left again: `try_elsewhere` is asked first, which does the same in a process that ends
/// then.
///
/// # Errors
///
/// The system does not allow it, with what it refused.
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
    // What is mounted on the machine from now on is still seen here, and nothing of ours there.
    let all = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(None::<&str>, "/", None::<&str>, all, None::<&str>)
        .context("mounts stay shared")
        .map_err(Hidden::Kept)
}

/// Whether a user namespace is for this user.
fn may_enter(user: u32) -> Result<()> {
    match user {
        // Root of a container, say. In a user namespace it would lose what it may do.
        0 => bail!("root may make no mount namespace here: it lacks CAP_SYS_ADMIN"),
        OVERFLOW_UID => bail!(
            "in a user namespace, user {OVERFLOW_UID} cannot be told from users without a number there"
        ),
        _ => Ok(()),
    }
}

/// Enters a mount namespace within a user namespace, where the user and the group stay what they are.
fn enter() -> Result<(), Hidden> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)
        .context("this machine lets ordinary users have no user namespaces")
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

/// Has `tree` seen at `place`, in a namespace of the process's own ([`leave`]).
///
/// # Errors
///
/// The system does not allow it, with what it refused; everything is then seen as before.
pub(super) fn lay_over(place: &Path, tree: &[(String, Leaf)]) -> Result<()> {
    let covered = cover(place)?;
    let filled = fill(place, tree).and_then(|()| seal(&covered));
    if filled.is_err() {
        // It was ours, and shows half of what it should.
        let _ = umount2(&covered, MntFlags::MNT_DETACH);
    }
    filled
}

/// Makes `place` an empty folder that can be filled; gives where the file system lies that does it.
fn cover(place: &Path) -> Result<PathBuf> {
    let mut covered = place;
    while !covered.is_dir() {
        covered = covered.parent().context("there is no root folder")?;
    }
    let parent = place.parent().context("a folder below another")?;
    ensure!(
        covered == place || covered == parent,
        "there is no {}",
        parent.display()
    );
    // From here the original folder is found, under the one that covers it.
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

/// What lies in a folder that is to be covered.
struct Neighbour {
    name: OsString,
    kind: NeighbourKind,
}

enum NeighbourKind {
    Folder,
    /// A device, a socket and the like, too.
    File,
    Link(PathBuf),
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
    /// Has it where it was, above what covers it.
    fn rebuild(&self, covered: &Path, former: &OwnedFd) -> Result<()> {
        let path = covered.join(&self.name);
        match &self.kind {
            NeighbourKind::Link(to) => return Ok(std::os::unix::fs::symlink(to, path)?),
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
            Leaf::Text(text) => fs::write(path, text)?,
            Leaf::Link(to) => std::os::unix::fs::symlink(to, path)?,
            Leaf::Node => make_node(&path)?,
        }
    }
    Ok(())
}

/// A character device of number 0:0, which no driver has and any user may make (Linux 5.8).
fn make_node(path: &Path) -> Result<()> {
    let everybody = Mode::from_raw_mode(0o666);
    mknodat(CWD, path, FileType::CharacterDevice, everybody, 0)
        .and_then(|()| chmod(path, everybody))
        .with_context(|| format!("{} cannot be made", path.display()))
}

/// Nobody changes it any more.
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
