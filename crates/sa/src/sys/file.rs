//! Reads small files and lists directories.

#![allow(
    unsafe_code,
    reason = "libc's functions by their names; see the folder"
)]

use std::ffi::{CStr, CString};

use portolan_provider::error::errno;

/// Maximum number of bytes to read from a file; a sysfs attribute has at most one page.
const FILE_LEN_MAX: usize = 4096;

/// The errno of the last call; EIO if it set none.
pub(super) fn last_errno() -> i32 {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(errno) if errno > 0 => errno,
        _ => errno::EIO,
    }
}

/// Converts a path to a C string; fails if it contains a zero byte.
pub(super) fn c_path(path: &str) -> Result<CString, i32> {
    CString::new(path).map_err(|_| errno::EINVAL)
}

/// Opens a file with `flags`.
pub(super) fn open(path: &str, flags: libc::c_int) -> Result<Descriptor, i32> {
    let path = c_path(path)?;
    // SAFETY: the path ends with a zero byte and outlives the call; opening without O_CREAT takes
    // no mode.
    let fd = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) };
    match fd {
        0.. => Ok(Descriptor(fd)),
        _ => Err(last_errno()),
    }
}

/// A descriptor that is closed on drop. Not an `OwnedFd`, because an emulator's descriptor is not
/// the kernel's (see the parent module).
#[derive(Debug)]
pub(super) struct Descriptor(pub(super) libc::c_int);

impl Descriptor {
    /// Reads once; returns the number of bytes.
    pub(super) fn read(&self, buffer: &mut [u8]) -> Result<usize, i32> {
        // SAFETY: `buffer` is writable for its whole length during the call.
        let count = unsafe { libc::read(self.0, buffer.as_mut_ptr().cast(), buffer.len()) };
        match count {
            // An emulator returns its errno, negative, for an empty queue.
            ..-1 => Err(i32::try_from(-count).unwrap_or(errno::EIO)),
            -1 => Err(last_errno()),
            _ => Ok(usize::try_from(count).unwrap_or(0).min(buffer.len())),
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor and does not use it after this.
        unsafe { libc::close(self.0) };
    }
}

/// Reads the first [`FILE_LEN_MAX`] bytes of a file.
///
/// # Errors
/// The errno, positive.
pub(crate) fn read(path: &str) -> Result<Vec<u8>, i32> {
    let file = open(path, libc::O_RDONLY)?;
    let mut text = vec![0; FILE_LEN_MAX];
    let mut filled = 0;
    loop {
        match file.read(text.get_mut(filled..).unwrap_or_default()) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    text.truncate(filled);
    Ok(text)
}

/// Lists the names in a directory, at most `count_max` of them. Names that are not UTF-8 are left
/// out.
///
/// # Errors
/// The errno, positive.
pub(crate) fn list(path: &str, count_max: usize) -> Result<Vec<String>, i32> {
    let path = c_path(path)?;
    // SAFETY: the path ends with a zero byte and outlives the call.
    let folder = unsafe { libc::opendir(path.as_ptr()) };
    if folder.is_null() {
        return Err(last_errno());
    }
    let mut names = Vec::new();
    while names.len() < count_max {
        // SAFETY: `folder` is open, and only this thread uses it.
        let entry = unsafe { libc::readdir(folder) };
        if entry.is_null() {
            break;
        }
        // SAFETY: an entry is valid until the next call with its directory; its name ends with a
        // zero byte.
        let name = unsafe { CStr::from_ptr((*entry).d_name.as_ptr()) };
        if let Ok(name) = name.to_str() {
            names.push(name.to_owned());
        }
    }
    // SAFETY: `folder` is open and not used after this.
    unsafe { libc::closedir(folder) };
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_to_its_end_and_no_further_than_the_bound() {
        let path = std::env::temp_dir().join(format!("portolan-sa-file-{}", std::process::id()));
        let text = path.to_str().unwrap();
        std::fs::write(&path, "4: ACTIVE\n").unwrap();
        assert_eq!(read(text).unwrap(), b"4: ACTIVE\n");
        std::fs::write(&path, vec![b'x'; FILE_LEN_MAX + 1]).unwrap();
        assert_eq!(read(text).unwrap().len(), FILE_LEN_MAX);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read(text), Err(errno::ENOENT));
    }

    #[test]
    fn a_folder_gives_its_names_up_to_the_bound() {
        let names = list("/proc/self/task", 100).unwrap();
        assert!(names.len() >= 3, "{names:?}");
        assert_eq!(list("/proc/self/task", 2).unwrap().len(), 2);
        assert_eq!(list("/proc/self/no such folder", 2), Err(errno::ENOENT));
    }
}
