//! The program to run: its path, and whether it accepts other libraries.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, getxattr};
use thiserror::Error;

/// Number of bytes to read from the start of a program: its headers.
const HEAD_LEN: usize = 4096;
/// A segment that names the dynamic loader (`PT_INTERP` of ELF).
const SEGMENT_OF_LOADER: u32 = 3;
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
/// The extended attribute with a file's capabilities (capabilities(7)).
const CAPABILITIES: &str = "security.capability";
/// The length of its longest version, the third (linux/capability.h).
const CAPABILITIES_LEN_MAX: usize = 24;
const ROOT: u32 = 0;

/// A program that can be run.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
}

/// Why there is no program.
#[derive(Debug, Error)]
pub(super) enum Missing {
    #[error("the program's name is empty")]
    Unnamed,
    #[error("{}: no such program", .0.display())]
    NotFound(PathBuf),
    #[error("{}: not a program that may be run", .0.display())]
    NotRunnable(PathBuf),
}

impl Program {
    /// Finds it as a shell does: a name without a slash in the folders of `PATH`.
    ///
    /// # Errors
    ///
    /// It does not exist, or may not be run.
    pub(super) fn find(name: &OsStr) -> Result<Self, Missing> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self::find_in(name, std::env::split_paths(&path))
    }

    fn find_in(name: &OsStr, folders: impl Iterator<Item = PathBuf>) -> Result<Self, Missing> {
        if name.is_empty() {
            return Err(Missing::Unnamed);
        }
        let has_slash =
            Path::new(name).components().count() > 1 || name.as_encoded_bytes().contains(&b'/');
        let places: Vec<PathBuf> = match has_slash {
            true => vec![name.into()],
            false => folders.map(|folder| folder.join(name)).collect(),
        };
        let mut missing = Missing::NotFound(name.into());
        for path in places {
            if path.is_file() && access(&path, Access::EXEC_OK).is_ok() {
                return Ok(Self { path });
            }
            if path.exists() {
                missing = Missing::NotRunnable(path);
            }
        }
        Err(missing)
    }

    /// Why it would ignore libraries in the environment, if so.
    pub(super) fn deaf_to_environment(&self) -> Option<String> {
        let name = self.path.display();
        // If it cannot be read, run it without a warning.
        let metadata = self.path.metadata().ok()?;
        let user = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        let takes_user = metadata.mode() & SET_USER != 0 && metadata.uid() != user;
        let takes_group = metadata.mode() & SET_GROUP != 0 && metadata.gid() != group;
        if takes_user || takes_group {
            return Some(format!(
                "{name} runs as another user or group (set-user-id): the dynamic loader takes no libraries from the \
                 environment there, so it gets the machine's own"
            ));
        }
        if rustix::process::getuid().as_raw() != ROOT && self.has_capabilities() {
            return Some(format!(
                "{name} has file capabilities (setcap): the dynamic loader takes no libraries from the environment \
                 there, so it gets the machine's own"
            ));
        }
        let mut head = Vec::new();
        let file = File::open(&self.path).ok()?;
        file.take(HEAD_LEN as u64).read_to_end(&mut head).ok()?;
        (is_elf(&head) && !has_loader(&head)).then(|| {
            format!(
                "{name} is linked statically: Portolan's libraries have no effect on it; link it dynamically"
            )
        })
    }
}

impl Program {
    /// Whether the file has capabilities in this user namespace. Those of another one cannot be read (`EOVERFLOW`),
    /// and running the program does not give them.
    fn has_capabilities(&self) -> bool {
        getxattr(&self.path, CAPABILITIES, &mut [0; CAPABILITIES_LEN_MAX]).is_ok()
    }

    /// The reason why a preloaded library would not see the program's socket calls. `None` if it would.
    pub(super) fn calls_the_kernel(&self) -> Option<String> {
        let mut head = Vec::new();
        let file = File::open(&self.path).ok()?;
        file.take(HEAD_LEN as u64).read_to_end(&mut head).ok()?;
        (is_elf(&head) && is_go(&head)).then(|| {
            format!(
                "{} is a Go program: it calls the kernel without libc, so its sockets stay TCP's",
                self.path.display()
            )
        })
    }
}

/// Whether a program has the ELF note of Go's linker: name length, text length, type 4, and the name.
fn is_go(head: &[u8]) -> bool {
    let mut notes = head.windows(16);
    notes.any(|note| note[..4] == [4, 0, 0, 0] && note[8..] == *b"\x04\0\0\0Go\0\0")
}

fn is_elf(head: &[u8]) -> bool {
    const CLASS_64: u8 = 2;
    const LITTLE_ENDIAN: u8 = 1;
    head.starts_with(&[0x7f, b'E', b'L', b'F', CLASS_64, LITTLE_ENDIAN])
}

/// Whether a 64-bit program has a dynamic loader. A program whose headers are elsewhere is unusual rather than static,
/// so the answer is yes.
fn has_loader(head: &[u8]) -> bool {
    let number = |at: usize, len: usize| {
        let bytes = head.get(at..at.checked_add(len)?)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0u64, |sum, byte| sum << 8 | u64::from(*byte)),
        )
    };
    // The offset of the program headers, their size and their number.
    let (Some(table), Some(len), Some(count)) = (number(32, 8), number(54, 2), number(56, 2))
    else {
        return true;
    };
    let kind = |entry: u64| {
        let at = table.checked_add(entry.checked_mul(len)?)?;
        number(usize::try_from(at).ok()?, 4)
    };
    (0..count).any(|entry| kind(entry).is_none_or(|kind| kind == u64::from(SEGMENT_OF_LOADER)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_slash_is_searched_in_the_folders_of_the_path() {
        let folders = || {
            ["/nonexistent", "/bin", "/usr/bin"]
                .map(PathBuf::from)
                .into_iter()
        };
        let found = Program::find_in(OsStr::new("sh"), folders()).unwrap();
        assert!(found.path.ends_with("bin/sh"), "{found:?}");
        assert!(Program::find_in(OsStr::new("/bin/sh"), std::iter::empty()).is_ok());
        assert!(matches!(
            Program::find_in(OsStr::new("no-such-program"), folders()),
            Err(Missing::NotFound(_))
        ));
        assert!(matches!(
            Program::find_in(OsStr::new(""), folders()),
            Err(Missing::Unnamed)
        ));
        assert!(matches!(
            Program::find_in(OsStr::new("/etc/passwd"), folders()),
            Err(Missing::NotRunnable(_))
        ));
        assert!(matches!(
            Program::find_in(OsStr::new("/etc"), folders()),
            Err(Missing::NotRunnable(_))
        ));
    }

    /// The head of a program with one segment of this kind.
    fn head(kind: u32) -> Vec<u8> {
        let mut head = vec![0u8; 120];
        head[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        head[32] = 64;
        head[54] = 56;
        head[56] = 1;
        head[64..68].copy_from_slice(&kind.to_le_bytes());
        head
    }

    #[test]
    fn a_static_program_is_recognised_by_its_segments_and_no_bytes_panic() {
        assert!(is_elf(&head(1)) && !has_loader(&head(1)));
        assert!(has_loader(&head(SEGMENT_OF_LOADER)));
        let whole = head(1);
        for len in 0..whole.len() {
            has_loader(&whole[..len]);
        }
        let mut far = head(1);
        far[32..40].fill(0xff);
        assert!(has_loader(&far));
        assert!(!is_elf(b"#!/bin/sh\n"));
    }

    #[test]
    fn a_go_program_is_recognised_by_its_note() {
        let note = b"\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0an id";
        let go = [&head(SEGMENT_OF_LOADER)[..], note].concat();
        assert!(is_go(&go));
        assert!(!is_go(&head(SEGMENT_OF_LOADER)));
        assert!(!is_go(b"Go"));
    }

    #[test]
    fn an_ordinary_program_gets_no_warning() {
        let program = Program::find_in(OsStr::new("/bin/sh"), std::iter::empty()).unwrap();
        assert_eq!(program.deaf_to_environment(), None);
        assert_eq!(program.calls_the_kernel(), None);
    }
}
