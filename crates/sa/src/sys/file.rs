//! Small files, and the names in a folder.

#![allow(
    unsafe_code,
    reason = "libc's functions by their names; see the folder"
)]

use std::ffi::{CStr, CString};

use portolan_provider::error::errno;

/// Most bytes of a file that are read; an attribute of sysfs has a page at most.
const FILE_LEN_MAX: usize = 4096;

/// The errno of the call before; EIO if it set none.
pub(super) fn last_errno() -> i32 {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(errno) if errno > 0 => errno,
        _ => errno::EIO,
    }
}

/// A path without a zero byte, with one behind it.
pub(super) fn c_path(path: &str) -> Result<CString, i32> {
    CString::new(path).map_err(|_| errno::EINVAL)
}

/// Opens for reading, or as `flags` say.
pub(super) fn open(path: &str, flags: libc::c_int) -> Result<Descriptor, i32> {
    let path = c_path(path)?;
    // SAFETY: the path ends with a zero byte and outlives the call; no mode is needed, for nothing is created.
    let fd = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) };
    match fd {
        0.. => Ok(Descriptor(fd)),
        _ => Err(last_errno()),
    }
}

/// A descriptor that is closed when dropped. It need not be one of the kernel's (see the folder), so it is no
/// `OwnedFd`.
#[derive(Debug)]
pub(super) struct Descriptor(pub(super) libc::c_int);

impl Descriptor {
    /// Reads once; the number of bytes.
    pub(super) fn read(&self, buffer: &mut [u8]) -> Result<usize, i32> {
        // SAFETY: `buffer` may be written for its whole length during the call.
        let count = unsafe { libc::read(self.0, buffer.as_mut_ptr().cast(), buffer.len()) };
        match count {
            // What stands for the kernel returns its errno, negative, for a queue that is empty.
            ..-1 => Err(i32::try_from(-count).unwrap_or(errno::EIO)),
            -1 => Err(last_errno()),
            _ => Ok(usize::try_from(count).unwrap_or(0).min(buffer.len())),
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's own, and not used after it.
        unsafe { libc::close(self.0) };
    }
}

/// What a file says, the first [`FILE_LEN_MAX`] bytes of it.
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

/// The names in a folder, at most `count_max` of them; those that are not UTF-8 are left out.
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
        // SAFETY: `folder` is open, and this thread alone has it.
        let entry = unsafe { libc::readdir(folder) };
        if entry.is_null() {
            break;
        }
        // SAFETY: an entry stays as it is until the next call with its folder; its name ends with a zero byte.
        let name = unsafe { CStr::from_ptr((*entry).d_name.as_ptr()) };
        if let Ok(name) = name.to_str() {
            names.push(name.to_owned());
        }
    }
    // SAFETY: `folder` is open, and not used after this.
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
