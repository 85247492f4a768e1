//! Makes room for descriptors under the limit of open files (getrlimit(2), `RLIMIT_NOFILE`).
//!
//! The limit applies to two things:
//! * the descriptor numbers of a process: a coordinator needs one for each member;
//! * for users without CAP_SYS_RESOURCE, all their descriptors in flight in unix sockets, in all network namespaces
//!   together: one descriptor store has 256.
//!
//! Most systems have a soft limit of 1024 and a far higher hard limit.
//!
//! Where the soft limit is the program's affair ([`keep_limit`]), it is raised only while a descriptor is made, which stays open
//! above it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use portolan_provider::Cause;
use portolan_threads::lock::Mutex;
use portolan_threads::{ProcessCell, with_signals_blocked};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::raw::{self, Limited};

/// First value to which the soft limit is raised: more than the coordinator of a full group needs.
const OPEN_FILES: u64 = 4096;
/// Maximum number of doublings after that, enough for any hard limit.
const DOUBLINGS_MAX: u32 = 64;
/// Least number of a descriptor that is set [`aside`].
const ASIDE_MIN: i32 = 512;
/// Maximum soft limit above which descriptors are set [`aside`]: the kernel's table of a process is as long as its highest number.
const BEYOND_MAX: u64 = 1 << 16;
/// No limit is to be restored.
const NONE: u64 = u64::MAX;

static KEEPS_LIMIT: AtomicBool = AtomicBool::new(false);
/// The soft limit to restore, while it is raised for a moment.
static KEPT: AtomicU64 = AtomicU64::new(NONE);

/// From now on this process's soft limit is raised only for the moment in which a descriptor is made. A program may rely on it: one
/// that uses select(2) must not get numbers from `FD_SETSIZE` (1024) on.
pub fn keep_limit() {
    KEEPS_LIMIT.store(true, Ordering::Relaxed);
}

/// Calls what looks at the program's soft limit or changes it. It is not raised meanwhile.
pub fn with_limit<T>(call: impl FnOnce() -> T) -> T {
    static LIMIT: ProcessCell<Mutex<()>> = ProcessCell::new();
    // A handler of the program may come here, too.
    with_signals_blocked(|| {
        let _held = LIMIT.get_or_make(Mutex::default).lock();
        call()
    })
}

/// In a forked child: restores the limit if another thread had raised it at the fork.
pub fn restore_limit() {
    let kept = KEPT.swap(NONE, Ordering::Relaxed);
    if kept != NONE {
        set_limit(kept, raw::limit(Limited::OpenFiles)[1]);
    }
}

/// Moves a descriptor to a number that the program does not expect for a file of its own, above its soft limit if that may be
/// ([`keep_limit`]).
pub fn aside(made: OwnedFd) -> OwnedFd {
    let move_beyond = |soft| match i32::try_from(soft) {
        Ok(least) if soft <= BEYOND_MAX => fcntl_dupfd_cloexec(&made, least.max(ASIDE_MIN)),
        _ => Err(Errno::INVAL),
    };
    if KEEPS_LIMIT.load(Ordering::Relaxed)
        && let Ok(moved) = beyond(move_beyond)
    {
        return moved;
    }
    fcntl_dupfd_cloexec(&made, ASIDE_MIN).unwrap_or(made)
}

/// Calls `make` with the program's soft limit while the limit is the hard one.
fn beyond<T>(make: impl FnOnce(u64) -> Result<T, Errno>) -> Result<T, Errno> {
    /// Restores the limit, also after a panic.
    struct Raised(Option<u64>);
    impl Drop for Raised {
        fn drop(&mut self) {
            set_limit(KEPT.swap(NONE, Ordering::Relaxed), self.0);
        }
    }

    with_limit(|| {
        let [current, maximum] = raw::limit(Limited::OpenFiles);
        let Some(current) = current else {
            return make(u64::MAX);
        };
        KEPT.store(current, Ordering::Relaxed);
        let _raised = Raised(maximum);
        set_limit(maximum.unwrap_or(u64::MAX), maximum);
        make(current)
    })
}

/// Sets the limits of open files. If a filter of system calls forbids that, they stay as they were.
fn set_limit(current: u64, maximum: Option<u64>) {
    let current = (current != u64::MAX).then_some(current);
    let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
}

/// Retries with a higher soft limit, up to the hard limit, while there is no room for descriptors.
pub fn with_room<T>(mut make: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    if KEEPS_LIMIT.load(Ordering::Relaxed) {
        return match make() {
            Err(Errno::MFILE | Errno::TOOMANYREFS) => beyond(|_| make()),
            made => made,
        };
    }
    for _ in 0..DOUBLINGS_MAX {
        match make() {
            Err(Errno::MFILE | Errno::TOOMANYREFS) if raise_limit() => {}
            result => return result,
        }
    }
    make()
}

/// The soft limit of open files. `None` if it is unlimited or unknown.
pub fn open_files() -> Option<u64> {
    with_limit(|| raw::limit(Limited::OpenFiles)[0])
}

/// Maximum size of a file that this process may write (getrlimit(2), `RLIMIT_FSIZE`), bytes. `None` if it is unlimited
/// or unknown.
pub fn file_size_limit() -> Option<u64> {
    raw::limit(Limited::FileSize)[0]
}

/// Why a system call failed; names the limit if it is the reason.
pub fn cause(call: &'static str, errno: Errno) -> Cause {
    let bounded = match errno {
        Errno::MFILE => "the descriptors of this process",
        Errno::TOOMANYREFS => {
            "what the processes of this user keep in unix sockets (256 descriptors for each network namespace in which \
             they share UDP port 4791)"
        }
        _ => {
            let errno = errno.raw_os_error();
            return Cause::Os { call, errno };
        }
    };
    Cause::DescriptorLimit {
        call,
        errno: errno.raw_os_error(),
        limit: raw::limit(Limited::OpenFiles)[1].unwrap_or(u64::MAX),
        bounded,
    }
}

/// Raises the soft limit; `false` if it is at the maximum.
fn raise_limit() -> bool {
    let [current, maximum] = raw::limit(Limited::OpenFiles);
    let Some(current) = current else {
        return false;
    };
    let wanted = current.saturating_mul(2).max(OPEN_FILES);
    let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if raised <= current {
        return false;
    }
    let wanted = Rlimit {
        current: Some(raised),
        maximum,
    };
    match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => {
            tracing::info!(
                from = current,
                to = raised,
                "raised the soft limit of open files"
            );
            true
        }
        Err(errno) => {
            tracing::warn!(%errno, "cannot raise the soft limit of open files");
            false
        }
    }
}
