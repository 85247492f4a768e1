//! A folder of sysfs as one program sees it: a mount namespace of its own, in which files lie over the kernel's.
//!
//! sysfs takes no new folders. Where the kernel has none of that name, the folder above is covered too, and all that it had is
//! mounted there again.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{getegid, geteuid};
use thiserror::Error;

use super::view::Leaf;

/// What the files may take: a page for each, of some dozens for each device. It is taken as it is used.
const TMPFS_OPTIONS: &str = "mode=755,size=64m,nr_inodes=65536";
/// Folders that are mounted again at most; Linux has about a hundred classes of devices.
const NEIGHBOURS_MAX: usize = 512;
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

/// Has this process, and the program that takes its place, see `tree` at `place`. An ordinary user needs a user namespace
/// for that, which cannot be left again: `try_elsewhere` is asked first, which does the same in a process that ends then.
///
/// # Errors
///
/// The system does not allow it, with what it refused.
pub(super) fn show(
    place: &Path,
    tree: &[(String, Leaf)],
    try_elsewhere: impl FnOnce() -> Result<()>,
) -> Result<(), Hidden> {
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
    lay_over(place, tree).map_err(Hidden::Kept)
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

/// Mounts the tree. If that fails, everything is seen as before.
fn lay_over(place: &Path, tree: &[(String, Leaf)]) -> Result<()> {
    // What is mounted on the machine from now on is still seen here, and nothing of ours there.
    let all = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(None::<&str>, "/", None::<&str>, all, None::<&str>).context("mounts stay shared")?;
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
        covered = covered.parent().context("there is no sysfs")?;
    }
    let parent = place.parent().context("a folder below another")?;
    ensure!(
        covered == place || covered == parent,
        "there is no {}",
        parent.display()
    );
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
    let rebuilt = neighbours.iter().try_for_each(Neighbour::rebuild);
    if let Err(error) = rebuilt {
        let _ = umount2(covered, MntFlags::MNT_DETACH);
        return Err(error);
    }
    Ok(covered.to_owned())
}

/// What lies in a folder that is to be covered.
enum Neighbour {
    Folder(PathBuf, OwnedFd),
    Link(PathBuf, PathBuf),
}

fn neighbours(folder: &Path) -> Result<Vec<Neighbour>> {
    let mut neighbours = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        ensure!(
            neighbours.len() < NEIGHBOURS_MAX,
            "{} is too full",
            folder.display()
        );
        if path.is_symlink() {
            neighbours.push(Neighbour::Link(path.clone(), fs::read_link(&path)?));
        } else if path.is_dir() {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let opened = openat(CWD, &path, flags, Mode::empty()).map_err(io::Error::from)?;
            neighbours.push(Neighbour::Folder(path, opened));
        }
    }
    Ok(neighbours)
}

impl Neighbour {
    /// Has it where it was, above what covers it.
    fn rebuild(&self) -> Result<()> {
        match self {
            Neighbour::Link(path, to) => std::os::unix::fs::symlink(to, path)?,
            Neighbour::Folder(path, opened) => {
                fs::create_dir(path)?;
                let from = format!("/proc/self/fd/{}", opened.as_raw_fd());
                let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
                mount(Some(from.as_str()), path, None::<&str>, bind, None::<&str>)
                    .with_context(|| format!("{} cannot be mounted again", path.display()))?;
            }
        }
        Ok(())
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
        }
    }
    Ok(())
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
