//! Room for descriptors: the limit of open files (getrlimit(2), `RLIMIT_NOFILE`).
//!
//! It bounds two things. The numbers a process has: a hub needs one for each member. And, for users
//! without CAP_SYS_RESOURCE, the descriptors of all their processes that are under way in unix
//! sockets: a vault alone has 256. Most systems have a soft limit of 1024 and a far higher hard one.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the soft limit is raised to, where the hard one allows: more than a full group's hub needs.
const OPEN_FILES: u64 = 4096;

/// Tries again with a higher soft limit if there is no room for descriptors.
pub(super) fn with_room<T>(mut make: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    match make() {
        Err(Errno::MFILE | Errno::TOOMANYREFS) if raise_limit() => make(),
        result => result,
    }
}

/// Raises the soft limit; `false` if it is as high as it may be.
fn raise_limit() -> bool {
    let limit = getrlimit(Resource::Nofile);
    let Some(current) = limit.current else {
        return false;
    };
    let raised = limit
        .maximum
        .map_or(OPEN_FILES, |maximum| maximum.min(OPEN_FILES));
    if raised <= current {
        return false;
    }
    let wanted = Rlimit {
        current: Some(raised),
        maximum: limit.maximum,
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
