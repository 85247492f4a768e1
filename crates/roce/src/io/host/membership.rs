//! Joins and leaves multicast groups, and attaches queue pairs to them.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::Qpn;

use crate::io::host::Host;
use crate::io::host::multicast::{MulticastGroup, MulticastKey, Users};
use crate::io::host::queue_pair::QpCore;
use crate::io::net::receive_batch;
use portolan_port_sharing::MulticastSocket;

/// A membership in an IP multicast group ([`Stack::join_group`](crate::io::Stack::join_group)). Dropping it leaves
/// the group, unless this process has other memberships in it.
#[derive(Debug)]
pub struct MulticastMembership {
    host: Arc<Host>,
    key: MulticastKey,
}

impl Host {
    /// Joins a group until the membership is dropped.
    pub(crate) fn join_group(self: &Arc<Self>, key: MulticastKey) -> Result<MulticastMembership> {
        self.use_group(Step::JoinMulticast, key, |users| {
            users.joins += 1;
            Ok(())
        })?;
        Ok(MulticastMembership {
            host: Arc::clone(self),
            key,
        })
    }

    pub(crate) fn attach(&self, key: MulticastKey, qp: &Arc<QpCore>) -> Result<()> {
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

    /// Detaches a queue pair from a group. Returns false if it was not attached. The caller holds no queue pair's
    /// lock.
    pub(crate) fn detach(&self, key: MulticastKey, qpn: Qpn) -> bool {
        self.leave_group(key, |users| {
            let before = users.attached.len();
            users.attached.retain(|qp| qp.qpn != qpn);
            users.attached.len() < before
        })
        .unwrap_or(false)
    }

    /// Detaches a queue pair from every group. The caller holds no queue pair's lock.
    pub(crate) fn detach_from_all(&self, qpn: Qpn) {
        let keys: Vec<_> = self.multicast.groups.read().keys().copied().collect();
        for key in keys {
            self.detach(key, qpn);
        }
    }

    /// Adds a user to a group. The first user joins the group.
    fn use_group(
        &self,
        step: Step,
        key: MulticastKey,
        add: impl FnOnce(&mut Users) -> Result<()>,
    ) -> Result<()> {
        let mut groups = self.multicast.lock();
        if self.progress.is_stopping() {
            // No thread would read the socket, and it would keep the port from other processes.
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

    fn open_group(&self, key: MulticastKey) -> Result<MulticastGroup> {
        let (port, buffer_bytes) = (self.port(), self.config.group.receive_buffer_bytes);
        let socket = MulticastSocket::join(port, key.group, key.interface, buffer_bytes)?;
        let version = socket.family().into();
        receive_batch::prepare(socket.as_fd(), version)
            .and_then(|()| receive_batch::tell_ip_fields(socket.as_fd(), version))
            .map_err(|error| {
                let (call, errno) = ("setsockopt", error.raw_os_error().unwrap_or(0));
                Error::new(Step::JoinMulticast, Cause::Os { call, errno })
            })?;
        let token = self.multicast.next_token.fetch_add(1, Ordering::Relaxed);
        Ok(MulticastGroup::new(token, socket))
    }

    /// Removes a user from a group. The last user leaves the group. Returns `None` if the group is not in use.
    fn leave_group<R>(&self, key: MulticastKey, remove: impl FnOnce(&mut Users) -> R) -> Option<R> {
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

impl Drop for MulticastMembership {
    fn drop(&mut self) {
        // In a forked child all state is a copy, whose locks may have been held at the fork.
        if self.host.entry.check(Step::LeaveMulticast).is_ok() {
            self.host.leave_group(self.key, |users| {
                users.joins = users.joins.saturating_sub(1)
            });
        }
    }
}
