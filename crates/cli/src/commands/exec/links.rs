//! Links to cargo's builds, under the names that programs need, in a folder of the user's.
//!
//! Each build has a folder, which is created once and reused. A folder with dangling links is removed. If there are
//! many, so are those unused for a day; a shorter time is not safe, because a running program may still open files in
//! them.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};

use super::secure_path;

/// Number of unused builds whose links are kept.
const KEPT_MAX: usize = 16;
/// Maximum number of builds.
const BUILDS_MAX: usize = 256;
/// How long a build's links are always kept after their last use.
const KEPT_TIME: Duration = Duration::from_secs(24 * 60 * 60);
/// Permissions that only admit the user.
const OWN: u32 = 0o700;

/// The folder for the links of all builds: in the user's session folder, otherwise among temporary files.
///
/// # Errors
///
/// Why the folder for temporary files cannot be used.
pub(super) fn base() -> Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match runtime.and_then(|path| of_session(&path, user)) {
        Some(runtime) => Ok(runtime.join("portolan-exec")),
        None => {
            Ok(among_temporary(&std::env::temp_dir(), user)?.join(format!("portolan-exec-{user}")))
        }
    }
}

/// The folder that an enclosing `exec` chose for a build, if the library path contains it. In a user namespace root has
/// no number, so the folder's security could not be checked again.
pub(super) fn base_in_force(build: &str, library_path: Option<&OsStr>) -> Option<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    std::env::split_paths(library_path?).find_map(|folder| {
        let of_build = folder.parent().filter(|_| folder.is_absolute())?;
        let base = of_build.parent().filter(|_| of_build.ends_with(build))?;
        let is_own = base
            .symlink_metadata()
            .is_ok_and(|found| is_private(&found, user));
        is_own.then(|| base.to_owned())
    })
}

/// The folder of the user's session, if it is private and no other user can replace it.
fn of_session(place: &Path, user: u32) -> Option<PathBuf> {
    let place = secure_path::folder(place, user).ok()?;
    let is_own = place.metadata().is_ok_and(|found| is_private(&found, user));
    (is_own && is_nameable(&place)).then_some(place)
}

/// The folder for temporary files, if only root and this user can replace its files.
fn among_temporary(place: &Path, user: u32) -> Result<PathBuf> {
    ensure!(
        is_nameable(place),
        "TMPDIR is {:?}: libraries need a folder that begins with `/` and has neither `:` nor `;`",
        place.display()
    );
    secure_path::folder(place, user).with_context(|| {
        format!(
            "libraries cannot lie in {}; set TMPDIR to a folder that no other user can exchange",
            place.display()
        )
    })
}

fn is_private(found: &Metadata, user: u32) -> bool {
    found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0
}

/// Creates a folder that no other user can write to, because such a user could choose what the program runs.
pub(super) fn make_own(base: &Path) -> Result<()> {
    match fs::DirBuilder::new().mode(OWN).create(base) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {}", base.display()));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(base)?;
    let user = rustix::process::geteuid().as_raw();
    ensure!(
        is_private(&found, user),
        "{} is not a folder of this user's alone: remove it",
        base.display()
    );
    Ok(())
}

/// Marks a build's links as used now.
pub(super) fn refresh(build: &Path) -> Result<()> {
    let touched = File::open(build).and_then(|folder| folder.set_modified(SystemTime::now()));
    touched.with_context(|| format!("cannot mark {} as used", build.display()))
}

/// Removes the links of deleted builds, and if there are many, those unused for long; never `own`.
pub(super) fn tidy(base: &Path, own: &Path) -> Result<()> {
    let mut builds = Vec::new();
    for entry in fs::read_dir(base)? {
        let path = entry?.path();
        if path == own {
            continue;
        }
        if leads_nowhere(&path) {
            // Another process may have removed it already.
            let _ = fs::remove_dir_all(&path);
        } else {
            let used = path.symlink_metadata().and_then(|found| found.modified());
            builds.push((used.unwrap_or_else(|_| SystemTime::now()), path));
        }
    }
    builds.sort();
    let surplus = (builds.len() + 1).saturating_sub(KEPT_MAX);
    let is_old = |used: SystemTime| used.elapsed().is_ok_and(|age| age > KEPT_TIME);
    let mut left = builds.len() + 1;
    for (_, path) in builds
        .iter()
        .take(surplus)
        .filter(|(used, _)| is_old(*used))
    {
        let _ = fs::remove_dir_all(path);
        left -= 1;
    }
    ensure!(
        left <= BUILDS_MAX,
        "{} has links of {left} builds of the last day: remove it",
        base.display()
    );
    Ok(())
}

/// Whether a build's folder has a dangling link.
fn leads_nowhere(build: &Path) -> bool {
    let folders = fs::read_dir(build).into_iter().flatten().flatten();
    let links = folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten());
    links
        .flatten()
        .any(|link| link.path().is_symlink() && !link.path().exists())
}

/// Points a link at a library. Replaces the link atomically, because another process may be reading it.
pub(super) fn lead(link: &Path, library: &Path) -> Result<()> {
    if fs::read_link(link).is_ok_and(|to| to == library) {
        return Ok(());
    }
    let new = link.with_extension(format!("{}", std::process::id()));
    let made = symlink(library, &new).and_then(|()| fs::rename(&new, link));
    made.with_context(|| format!("cannot make {}", link.display()))
}

/// Whether a list of folders can contain it: the dynamic loader splits the list at both characters, and resolves
/// relative paths from the program's working directory.
pub(super) fn is_nameable(folder: &Path) -> bool {
    let name = folder.as_os_str().as_encoded_bytes();
    folder.is_absolute() && !name.contains(&b':') && !name.contains(&b';')
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A folder for the test, removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder =
                std::env::temp_dir().join(format!("portolan-links-{name}-{}", std::process::id()));
            fs::create_dir(&folder).unwrap();
            Self(folder.canonicalize().unwrap())
        }

        /// The links of a build that were last used this long ago.
        fn build(&self, name: &str, age: Duration) -> PathBuf {
            let build = self.0.join(name);
            fs::create_dir_all(build.join("full")).unwrap();
            let folder = File::open(&build).unwrap();
            folder.set_modified(SystemTime::now() - age).unwrap();
            build
        }

        fn count(&self) -> usize {
            fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn links_that_lead_nowhere_are_removed_and_of_many_those_that_were_not_used_for_a_day() {
        let folder = Folder::new("tidied");
        let gone = folder.build("gone", Duration::ZERO);
        symlink("/nonexistent", gone.join("full/librdmacm.so.1")).unwrap();
        let own = folder.build("own", 9 * KEPT_TIME);
        for build in 0..KEPT_MAX {
            folder.build(&format!("old{build}"), 2 * KEPT_TIME);
            folder.build(&format!("new{build}"), KEPT_TIME / 2);
        }
        refresh(&own).unwrap();
        tidy(&folder.0, &own).unwrap();
        assert!(!gone.exists());
        assert!(own.exists());
        // Those of the last day stay, however many.
        assert_eq!(folder.count(), KEPT_MAX + 1);
        for build in 0..KEPT_MAX {
            assert!(folder.0.join(format!("new{build}")).exists());
        }
        assert!(
            own.metadata()
                .unwrap()
                .modified()
                .unwrap()
                .elapsed()
                .unwrap()
                < KEPT_TIME
        );
    }

    #[test]
    fn a_few_old_builds_stay_and_too_many_of_a_day_are_an_error() {
        let folder = Folder::new("many");
        let own = folder.build("own", Duration::ZERO);
        folder.build("old", 9 * KEPT_TIME);
        tidy(&folder.0, &own).unwrap();
        assert_eq!(folder.count(), 2);
        for build in 0..BUILDS_MAX {
            folder.build(&format!("new{build}"), Duration::ZERO);
        }
        let error = tidy(&folder.0, &own).unwrap_err().to_string();
        assert!(error.contains("of the last day"), "{error}");
    }

    #[test]
    fn links_are_not_made_where_others_could_change_them() {
        let folder = Folder::new("shared");
        let base = folder.0.join("links");
        fs::DirBuilder::new().mode(0o755).create(&base).unwrap();
        let error = make_own(&base).unwrap_err().to_string();
        assert!(
            error.contains("not a folder of this user's alone"),
            "{error}"
        );
    }

    #[test]
    fn temporary_files_are_in_a_folder_that_no_other_user_can_replace() {
        let folder = Folder::new("temporary");
        let user = rustix::process::geteuid().as_raw();
        let with_mode = |mode| {
            fs::set_permissions(&folder.0, fs::Permissions::from_mode(mode)).unwrap();
            among_temporary(&folder.0, user)
        };
        assert_eq!(with_mode(0o755).unwrap(), folder.0);
        assert_eq!(with_mode(0o1777).unwrap(), folder.0);
        for mode in [0o775, 0o777] {
            let error = format!("{:#}", with_mode(mode).unwrap_err());
            assert!(
                error.contains("set TMPDIR") && error.contains("not sticky"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_folder_of_a_session_is_used_if_no_other_user_can_replace_it() {
        let folder = Folder::new("session");
        let user = rustix::process::geteuid().as_raw();
        let session = folder.0.join("shared/session");
        fs::create_dir_all(&session).unwrap();
        fs::set_permissions(&session, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(of_session(&session, user).unwrap(), session);
        // A user who can write to the parent folder can replace this one.
        let above = folder.0.join("shared");
        fs::set_permissions(above, fs::Permissions::from_mode(0o775)).unwrap();
        assert_eq!(of_session(&session, user), None);
    }

    #[test]
    fn an_exec_within_another_keeps_the_folder_that_libraries_are_taken_from() {
        let folder = Folder::new("nested");
        let base = folder.0.join("base");
        fs::create_dir(&base).unwrap();
        let find = |mode, list: &str| {
            fs::set_permissions(&base, fs::Permissions::from_mode(mode)).unwrap();
            base_in_force("0123", Some(OsStr::new(list)))
        };
        let list = format!("/usr/lib:{}/0123/full:/lib", base.display());
        assert_eq!(find(0o700, &list).unwrap(), base);
        assert_eq!(find(0o770, &list), None);
        let other = format!("/usr/lib:{}/4567/full", base.display());
        assert_eq!(find(0o700, &other), None);
        assert_eq!(find(0o700, "0123/full:/0123"), None);
        assert_eq!(base_in_force("0123", None), None);
    }

    #[test]
    fn temporary_files_have_a_path_that_the_dynamic_loader_accepts() {
        for place in ["", "tmp", "/tmp:/etc", "/tmp;"] {
            let error = among_temporary(Path::new(place), 0)
                .unwrap_err()
                .to_string();
            assert!(error.contains("TMPDIR"), "{error}");
        }
    }

    #[test]
    fn a_list_of_folders_can_contain_absolute_paths_without_separators() {
        assert!(is_nameable(Path::new("/tmp/portolan-exec-7/1/full")));
        for folder in ["", "full", "./full", "/tmp/a:b", "/tmp/a;b"] {
            assert!(!is_nameable(Path::new(folder)), "{folder}");
        }
    }
}
