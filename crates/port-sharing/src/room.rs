//! Makes room for descriptors under the limit of open files (getrlimit(2), `RLIMIT_NOFILE`).
//!
//! The limit applies to two things:
//! * the descriptor numbers of a process: a coordinator needs one for each member;
//! * for users without CAP_SYS_RESOURCE, all their descriptors in flight in unix sockets, in all network namespaces
//!   together: one descriptor store has 256.
//!
//! Most systems have a soft limit of 1024 and a far higher hard limit.

use portolan_provider::Cause;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};

use super::raw::{self, Limited};

/// First value to which the soft limit is raised: more than the coordinator of a full group needs.
const OPEN_FILES: u64 = 4096;
/// Maximum number of doublings after that, enough for any hard limit.
const DOUBLINGS_MAX: u32 = 64;

/// Retries with a higher soft limit, up to the hard limit, while there is no room for descriptors.
pub fn with_room<T>(mut make: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..DOUBLINGS_MAX {
        match make() {
            Err(Errno::MFILE | Errno::TOOMANYREFS) if raise_limit() => {}
            result => return result,
        }
    }
    make()
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
