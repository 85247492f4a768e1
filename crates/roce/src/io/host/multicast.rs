//! Multicast groups of this process. There is a socket for each group and interface that a queue pair is attached to
//! or a connection manager has joined.
//!
//! Only the progress thread reads these sockets: multicast is too rare for a system call in every poll.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use portolan_threads::lock::{RwLock, RwLockWriteGuard};

use crate::io::config::Limits;
use crate::io::host::queue_pair::QpCore;
use portolan_port_sharing::MulticastSocket;

/// A group on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MulticastKey {
    pub(crate) interface: u32,
    pub(crate) group: IpAddr,
}

#[derive(Debug)]
pub(crate) struct MulticastGroups {
    pub(crate) groups: RwLock<HashMap<MulticastKey, Arc<MulticastGroup>>>,
    pub(crate) next_token: AtomicU64,
    pub(crate) max_groups: u32,
    pub(crate) max_attached: u32,
}

#[derive(Debug)]
pub(crate) struct MulticastGroup {
    pub(crate) token: u64,
    socket: MulticastSocket,
    users: RwLock<Users>,
}

/// The users of a group. While this is locked for reading, a datagram is delivered.
#[derive(Debug, Default)]
pub(crate) struct Users {
    /// Number of memberships of connection managers.
    pub(crate) joins: u32,
    pub(crate) attached: Vec<Arc<QpCore>>,
}

impl MulticastGroups {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            groups: RwLock::default(),
            next_token: AtomicU64::new(0),
            max_groups: limits.max_mcast_grp,
            max_attached: limits.max_mcast_qp_attach,
        }
    }

    /// The group whose socket has this epoll token.
    pub(crate) fn by_token(&self, token: u64) -> Option<Arc<MulticastGroup>> {
        let groups = self.groups.read();
        // There are few groups, and one search serves many packets.
        groups.values().find(|group| group.token == token).cloned()
    }

    /// Leaves all groups. Attached queue pairs receive no more multicast.
    pub(crate) fn leave_all(&self) {
        let groups = std::mem::take(&mut *self.lock());
        // Dropping the groups closes sockets, so do it without the lock.
        drop(groups);
    }

    pub(crate) fn lock(&self) -> RwLockWriteGuard<'_, HashMap<MulticastKey, Arc<MulticastGroup>>> {
        self.groups.write()
    }
}

impl MulticastGroup {
    /// A group without users.
    pub(crate) fn new(token: u64, socket: MulticastSocket) -> Self {
        Self {
            token,
            socket,
            users: RwLock::default(),
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Calls `deliver` for each attached queue pair. A detach waits until this returns.
    pub(crate) fn for_each(&self, mut deliver: impl FnMut(&QpCore)) -> usize {
        let users = self.users.read();
        for qp in &users.attached {
            deliver(qp);
        }
        users.attached.len()
    }

    /// Changes the users. Returns the change's result, and whether the last user is gone.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Users) -> R) -> (R, bool) {
        let mut users = self.users.write();
        let result = change(&mut users);
        (result, users.joins == 0 && users.attached.is_empty())
    }
}
