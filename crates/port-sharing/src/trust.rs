//! Who may share the port: checks the credentials that the kernel reports for a connection's peer.

#![allow(unsafe_code, reason = "getsockopt(2) by pointers")]

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

use portolan_provider::Holder;
use rustix::io::Errno;

use super::users::stands_for_others;
use super::witness;

/// Which users' processes may join the group, and whose group this process joins.
///
/// Members share the sockets that all packets arrive on, so an admitted process could read and answer every packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Processes of the same effective user, and root's, because root can read a user's memory anyway. Root does not
    /// trust other users.
    ///
    /// Exception: the same user's processes are not trusted if the number may mean any user. In a user namespace, the
    /// kernel reports the overflow user id (65534) for all users that the namespace does not map.
    #[default]
    SameUser,
    /// Those of [`SameUser`](Self::SameUser), and these user ids'.
    Users(Vec<u32>),
    /// All processes that can reach the name, which are those in the network namespace.
    Anyone,
}

impl Trust {
    /// Whether a process of user `own` trusts one of user `peer`.
    pub(super) fn admits(&self, own: Own, peer: u32) -> bool {
        (peer == own.uid && own.is_certain)
            || peer == 0
            || match self {
                Self::SameUser => false,
                Self::Users(users) => users.contains(&peer),
                Self::Anyone => true,
            }
    }
}

/// The credentials of the process at the other end, as the kernel reports them (unix(7), `SO_PEERCRED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credentials {
    /// Process id in this PID namespace; 0 if it is not visible.
    pub(super) pid: u32,
    /// Effective user id.
    pub(super) uid: u32,
}

impl Credentials {
    /// Reads the credentials of the process that connected or listened.
    pub(super) fn of_peer(socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        let mut peer = libc::ucred {
            pid: 0,
            uid: u32::MAX,
            gid: u32::MAX,
        };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: both pointers are to locals that outlive the call, and `length` is the size of the first. (A typed
        // wrapper would have to refuse pid 0, which the kernel does report.)
        let status = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &mut length,
            )
        };
        if status < 0 {
            return Err(super::raw::last_errno());
        }
        Ok(Self {
            pid: u32::try_from(peer.pid).unwrap_or(0),
            uid: peer.uid,
        })
    }
}

impl Credentials {
    /// The process with its program's name.
    pub(super) fn holder(self) -> Holder {
        witness::seen(self.pid, Some(self.uid))
    }

    /// Whether the process is stopped; see [`witness::is_stopped`].
    pub(super) fn is_stopped(self) -> bool {
        witness::is_stopped(self.pid)
    }

    /// The process's limit of open files, if it is reached; see [`witness::reached_open_files`].
    pub(super) fn reached_open_files(self) -> Option<u64> {
        witness::reached_open_files(self.pid)
    }
}

impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of user {}", self.pid, self.uid)
    }
}

/// The effective user of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) uid: u32,
    /// Whether another process with the same number belongs to the same user.
    is_certain: bool,
}

impl Own {
    /// Reads this process's user and whether its number is ambiguous.
    pub(super) fn here() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self {
            uid,
            is_certain: !stands_for_others(uid),
        }
    }

    /// A user with an unambiguous number.
    #[cfg(test)]
    pub(super) fn certain(uid: u32) -> Self {
        Self {
            uid,
            is_certain: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::users::OVERFLOW_UID;

    #[test]
    fn the_same_user_and_root_are_trusted_by_default_and_others_are_not() {
        let trust = Trust::default();
        assert!(trust.admits(Own::certain(1000), 1000));
        assert!(trust.admits(Own::certain(1000), 0));
        assert!(!trust.admits(Own::certain(1000), 1001));
        assert!(!trust.admits(Own::certain(0), 1000));
    }

    #[test]
    fn a_setting_adds_users_or_everybody() {
        let trust = Trust::Users(vec![1001]);
        assert!(trust.admits(Own::certain(1000), 1001));
        assert!(trust.admits(Own::certain(1000), 0));
        assert!(!trust.admits(Own::certain(1000), 1002));
        assert!(Trust::Anyone.admits(Own::certain(1000), 1002));
    }

    #[test]
    fn the_overflow_user_id_is_not_the_same_user() {
        let nobody = Own {
            uid: OVERFLOW_UID,
            is_certain: false,
        };
        assert!(!Trust::SameUser.admits(nobody, OVERFLOW_UID));
        assert!(Trust::SameUser.admits(nobody, 0));
        assert!(Trust::SameUser.admits(Own::certain(OVERFLOW_UID), OVERFLOW_UID));
        assert!(Trust::Users(vec![OVERFLOW_UID]).admits(nobody, OVERFLOW_UID));
    }
}
