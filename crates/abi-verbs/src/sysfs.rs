//! Reads sysfs files for programs that do so through libibverbs.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use once_cell::race::OnceBox;
use rustix::io::Errno;

use crate::guard::Result;

/// The path of sysfs: `SYSFS_PATH` if the program may trust its environment, otherwise `/sys`.
pub(crate) fn path() -> *const c_char {
    static PATH: OnceBox<CString> = OnceBox::new();
    let found = || {
        // SAFETY: reads a number of the process's.
        let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
        let said = std::env::var_os("SYSFS_PATH").filter(|said| !is_secure && !said.is_empty());
        let said = said.as_deref().map_or(&b"/sys"[..], OsStr::as_bytes);
        let end = said
            .iter()
            .rposition(|byte| *byte != b'/')
            .map_or(0, |last| last + 1);
        CString::new(&said[..end]).unwrap_or_else(|_| c"/sys".into())
    };
    PATH.get_or_init(|| Box::new(found())).as_ptr()
}

/// Reads a file into `into`, without the trailing newline, and returns the number of bytes. Leaves room for a NUL.
///
/// # Errors
/// Errors of open(2) and read(2).
pub(crate) fn read(folder: &CStr, file: &CStr, into: &mut [u8]) -> Result<c_int> {
    let path =
        Path::new(OsStr::from_bytes(folder.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let mut opened = std::fs::File::open(path).map_err(errno)?;
    let mut length = 0;
    while length < into.len() {
        match opened.read(&mut into[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(errno(error)),
        }
    }
    if length > 0 && into[length - 1] == b'\n' {
        length -= 1;
    }
    if let Some(end) = into.get_mut(length) {
        *end = 0;
    }
    Ok(c_int::try_from(length).unwrap_or(c_int::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_without_its_last_line_end() {
        let mut buffer = [0xff; 64];
        let length = read(c"/proc/sys/kernel", c"ostype", &mut buffer).unwrap();
        assert_eq!(&buffer[..length as usize + 1], b"Linux\0");
        let mut short = [0xff; 3];
        assert_eq!(read(c"/proc/sys/kernel", c"ostype", &mut short), Ok(3));
        assert_eq!(&short, b"Lin");
        assert_eq!(
            read(c"/proc", c"no-such-file", &mut buffer),
            Err(Errno::NOENT)
        );
    }
}
