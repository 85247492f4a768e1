//! Multicast groups of this process: a socket for each group and interface that a queue pair is
//! attached to or a connection manager has joined, and the queue pairs that get copies.
//!
//! The progress thread alone reads these sockets: datagrams to groups are not worth a system call of
//! every poll.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::Qpn;

use super::config::Limits;
use super::group::MulticastSocket;
use super::qp::QpCore;
use super::receive_batch;
use super::shared::Shared;

/// A group on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct GroupKey {
    pub(super) interface: u32,
    pub(super) group: IpAddr,
}

/// The groups of a stack.
#[derive(Debug)]
pub(super) struct Multicast {
    groups: RwLock<HashMap<GroupKey, Arc<Group>>>,
    next_token: AtomicU64,
    max_groups: u32,
    max_attached: u32,
}

/// A group in use.
#[derive(Debug)]
pub(super) struct Group {
    token: u64,
    socket: MulticastSocket,
    users: RwLock<Users>,
}

/// Who needs a group. While they are locked for reading, a datagram is delivered.
#[derive(Debug, Default)]
struct Users {
    /// Memberships of connection managers.
    joins: u32,
    attached: Vec<Arc<QpCore>>,
}

/// A membership in an IP multicast group ([`Stack::join_group`](super::Stack::join_group)). Dropping it
/// leaves, unless others of this process are members still.
#[derive(Debug)]
pub struct GroupMembership {
    shared: Arc<Shared>,
    key: GroupKey,
}

impl Multicast {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            groups: RwLock::default(),
            next_token: AtomicU64::new(0),
            max_groups: limits.max_mcast_grp,
            max_attached: limits.max_mcast_qp_attach,
        }
    }

    /// The group whose socket has this token in epoll.
    pub(super) fn by_token(&self, token: u64) -> Option<Arc<Group>> {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        // Few, and looked for once for many packets.
        groups.values().find(|group| group.token == token).cloned()
    }

    /// Leaves all groups; whoever still needs them gets nothing any more.
    pub(super) fn leave_all(&self) {
        let groups = std::mem::take(&mut *self.lock());
        // Their end closes sockets, with no lock held.
        drop(groups);
    }

    fn lock(&self) -> RwLockWriteGuard<'_, HashMap<GroupKey, Arc<Group>>> {
        self.groups.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Group {
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Hands something to each queue pair attached. Whoever is being detached waits for the end.
    pub(super) fn for_each(&self, mut deliver: impl FnMut(&QpCore)) -> usize {
        let users = self.users.read().unwrap_or_else(PoisonError::into_inner);
        for qp in &users.attached {
            deliver(qp);
        }
        users.attached.len()
    }

    /// Changes who needs it; the change's result, and whether nobody does any more.
    fn change<R>(&self, change: impl FnOnce(&mut Users) -> R) -> (R, bool) {
        let mut users = self.users.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut users);
        (result, users.joins == 0 && users.attached.is_empty())
    }
}

impl Shared {
    /// Becomes a member of a group until the membership is dropped.
    pub(super) fn join_group(self: &Arc<Self>, key: GroupKey) -> Result<GroupMembership> {
        self.use_group(Step::JoinMulticast, key, |users| {
            users.joins += 1;
            Ok(())
        })?;
        Ok(GroupMembership {
            shared: Arc::clone(self),
            key,
        })
    }

    /// Attaches a queue pair to a group.
    pub(super) fn attach(&self, key: GroupKey, qp: &Arc<QpCore>) -> Result<()> {
        let (step, limit) = (Step::AttachMulticast, self.multicast.max_attached);
        self.use_group(step, key, |users| {
            if users.attached.iter().any(|other| other.qpn == qp.qpn) {
                return Ok(());
            }
            if users.attached.len() >= limit as usize {
                let (what, limit) = ("queue pairs attached to a multicast group", limit.into());
                return Err(Error::new(step, Cause::LimitReached { what, limit }));
            }
            users.attached.push(Arc::clone(qp));
            Ok(())
        })
    }

    /// Detaches a queue pair from a group; `false` if it was not attached. Not to be called with a
    /// queue pair's lock held.
    pub(super) fn detach(&self, key: GroupKey, qpn: Qpn) -> bool {
        self.leave_group(key, |users| {
            let before = users.attached.len();
            users.attached.retain(|qp| qp.qpn != qpn);
            users.attached.len() < before
        })
        .unwrap_or(false)
    }

    /// Detaches a queue pair from every group. As [`detach`](Self::detach).
    pub(super) fn detach_from_all(&self, qpn: Qpn) {
        let groups = self.multicast.groups.read();
        let keys: Vec<_> = groups
            .unwrap_or_else(PoisonError::into_inner)
            .keys()
            .copied()
            .collect();
        for key in keys {
            self.detach(key, qpn);
        }
    }

    /// Adds a user to a group, which is joined first if this is its first.
    fn use_group(
        &self,
        step: Step,
        key: GroupKey,
        add: impl FnOnce(&mut Users) -> Result<()>,
    ) -> Result<()> {
        let mut groups = self.multicast.lock();
        if self.progress.is_stopping() {
            // Nobody would read the socket, which would keep the port from others.
            return Err(Error::new(step, Cause::NoSuchObject("stack")));
        }
        if let Some(group) = groups.get(&key) {
            return group.change(add).0;
        }
        let limit = self.multicast.max_groups;
        if groups.len() >= limit as usize {
            let (what, limit) = ("multicast groups", limit.into());
            return Err(Error::new(step, Cause::LimitReached { what, limit }));
        }
        let group = self.open_group(key)?;
        group.change(add).0?;
        self.progress.watch_multicast(group.token, group.socket())?;
        groups.insert(key, Arc::new(group));
        Ok(())
    }

    fn open_group(&self, key: GroupKey) -> Result<Group> {
        let (port, buffer_bytes) = (self.port(), self.config.group.receive_buffer_bytes);
        let socket = MulticastSocket::join(port, key.group, key.interface, buffer_bytes)?;
        let version = socket.family().into();
        receive_batch::prepare(socket.as_fd(), version)
            .and_then(|()| receive_batch::tell_ip_fields(socket.as_fd(), version))
            .map_err(|error| {
                let (call, errno) = ("setsockopt", error.raw_os_error().unwrap_or(0));
                Error::new(Step::JoinMulticast, Cause::Os { call, errno })
            })?;
        Ok(Group {
            token: self.multicast.next_token.fetch_add(1, Ordering::Relaxed),
            socket,
            users: RwLock::default(),
        })
    }

    /// Takes a user from a group, which is left if that was its last; `None` if it is not in use.
    fn leave_group<R>(&self, key: GroupKey, remove: impl FnOnce(&mut Users) -> R) -> Option<R> {
        let mut groups = self.multicast.lock();
        let (result, is_unused) = groups.get(&key)?.change(remove);
        let gone = is_unused.then(|| groups.remove(&key)).flatten();
        drop(groups);
        if let Some(group) = gone {
            self.progress.forget_multicast(group.socket());
        }
        Some(result)
    }
}

impl Drop for GroupMembership {
    fn drop(&mut self) {
        // In a forked child everything is a copy whose locks may have been held at the fork.
        if self.shared.fork.check(Step::LeaveMulticast).is_ok() {
            self.shared.leave_group(self.key, |users| {
                users.joins = users.joins.saturating_sub(1)
            });
        }
    }
}
