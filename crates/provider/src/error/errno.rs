//! Linux's generic errno values (`include/uapi/asm-generic/errno*.h`), for crates without libc.

#![allow(missing_docs, reason = "each is the errno of its name")]

pub const EPERM: i32 = 1;
pub const ENOENT: i32 = 2;
pub const EINTR: i32 = 4;
pub const EIO: i32 = 5;
pub const ENXIO: i32 = 6;
pub const EAGAIN: i32 = 11;
pub const ENOMEM: i32 = 12;
pub const EACCES: i32 = 13;
pub const EFAULT: i32 = 14;
pub const EBUSY: i32 = 16;
pub const ENODEV: i32 = 19;
pub const EINVAL: i32 = 22;
pub const EMFILE: i32 = 24;
pub const ENOSYS: i32 = 38;
pub const EPROTO: i32 = 71;
pub const EOPNOTSUPP: i32 = 95;
pub const EADDRINUSE: i32 = 98;
pub const EADDRNOTAVAIL: i32 = 99;
pub const ENETUNREACH: i32 = 101;
pub const ECONNABORTED: i32 = 103;
pub const ECONNRESET: i32 = 104;
pub const ENOBUFS: i32 = 105;
pub const ENOTCONN: i32 = 107;
pub const ETIMEDOUT: i32 = 110;
pub const ECONNREFUSED: i32 = 111;
pub const EHOSTUNREACH: i32 = 113;

/// Displays an errno as a number and, with `std`, as text.
pub(super) struct OsError(pub(super) i32);

impl core::fmt::Display for OsError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        #[cfg(feature = "std")]
        return std::io::Error::from_raw_os_error(self.0).fmt(f);
        #[cfg(not(feature = "std"))]
        write!(f, "errno {}", self.0)
    }
}
