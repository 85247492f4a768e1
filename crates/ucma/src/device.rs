//! The device: its open channels, and whose each id is.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, Weak};

use portolan_provider::Result;
use portolan_provider::cm::{IdNumber, MembershipNumber, UserId};
use portolan_provider::traits::Provider;
use rustix::io::Errno;

use crate::channel::Channel;
use crate::lock;

/// The rdma_cm device of a provider.
pub struct RdmaCm {
    provider: Arc<dyn Provider>,
    /// Whose it is; a forked child's locks may be held for ever.
    process: u32,
    tables: Mutex<Tables>,
}

/// What there is. An id is of one channel at a time; its number is the provider's.
#[derive(Debug, Default)]
struct Tables {
    /// By their descriptors, which MIGRATE_ID names.
    channels: HashMap<RawFd, Weak<Channel>>,
    ids: HashMap<IdNumber, Known>,
    /// Ids by their owners' names: a request bears the listener's.
    by_uid: HashMap<UserId, IdNumber>,
    /// By the numbers that JOIN_MCAST answers.
    memberships: HashMap<u32, (IdNumber, MembershipNumber)>,
    next_channel: u64,
    next_membership: u32,
}

/// What the device knows of an id.
#[derive(Clone, Copy, Debug)]
struct Known {
    channel: u64,
    /// None of a request that is nobody's yet.
    uid: Option<UserId>,
    /// Events taken, those of its memberships too (`events_reported`).
    reported: u32,
}

impl RdmaCm {
    /// The device whose commands the provider carries out.
    pub fn new(provider: Arc<dyn Provider>) -> Arc<Self> {
        Arc::new(Self {
            provider,
            process: std::process::id(),
            tables: Mutex::default(),
        })
    }

    /// # Errors
    /// `EOPNOTSUPP` in a process that was forked off since it was made.
    pub(crate) fn check_process(&self) -> std::result::Result<(), Errno> {
        match self.process == std::process::id() {
            true => Ok(()),
            false => Err(Errno::OPNOTSUPP),
        }
    }

    pub(crate) fn provider(&self) -> &dyn Provider {
        &*self.provider
    }

    /// Opens an event channel, as opening `/dev/infiniband/rdma_cm` does.
    ///
    /// # Errors
    /// The provider's.
    pub fn open(self: &Arc<Self>) -> Result<Arc<Channel>> {
        let commands = self.provider.open_channel()?;
        let fd = commands.as_fd().as_raw_fd();
        let mut tables = lock(&self.tables);
        tables.next_channel += 1;
        let channel = Channel::new(self.clone(), commands, tables.next_channel);
        tables.channels.insert(fd, Arc::downgrade(&channel));
        Ok(channel)
    }

    /// The channel of a descriptor.
    pub(crate) fn channel(&self, fd: RawFd) -> Option<Arc<Channel>> {
        lock(&self.tables).channels.get(&fd)?.upgrade()
    }

    /// A channel goes, with its ids: these.
    pub(crate) fn close(&self, channel: &Channel) -> Vec<IdNumber> {
        let number = channel.number();
        let mut tables = lock(&self.tables);
        // Its descriptor is still open, so the entry is its own.
        tables.channels.remove(&channel.as_fd().as_raw_fd());
        let of_it = tables.ids.iter().filter(|(_, id)| id.channel == number);
        let of_it: Vec<IdNumber> = of_it.map(|(id, _)| *id).collect();
        of_it.iter().for_each(|id| tables.forget(*id));
        of_it
    }

    /// An id is of this channel from now on. One that was made by a request has no name.
    pub(crate) fn enlist(&self, id: IdNumber, uid: Option<UserId>, channel: &Channel) {
        let known = Known {
            channel: channel.number(),
            uid,
            reported: 0,
        };
        let mut tables = lock(&self.tables);
        tables.ids.insert(id, known);
        if let Some(uid) = uid {
            tables.by_uid.insert(uid, id);
        }
    }

    /// An id moves to another channel; the events of it that were taken.
    pub(crate) fn redirect(&self, id: IdNumber, channel: &Channel) -> u32 {
        let mut tables = lock(&self.tables);
        tables.ids.get_mut(&id).map_or(0, |known| {
            known.channel = channel.number();
            known.reported
        })
    }

    /// An id is destroyed; the events of it that were taken.
    pub(crate) fn strike(&self, id: IdNumber) -> u32 {
        let mut tables = lock(&self.tables);
        let reported = tables.ids.get(&id).map_or(0, |known| known.reported);
        tables.forget(id);
        reported
    }

    /// Finds an id of a channel.
    ///
    /// # Errors
    /// `ENOENT` if there is none, `EINVAL` if it is of another channel.
    pub(crate) fn check_owner(
        &self,
        id: IdNumber,
        channel: &Channel,
    ) -> std::result::Result<(), Errno> {
        match lock(&self.tables).ids.get(&id) {
            None => Err(Errno::NOENT),
            Some(known) if known.channel != channel.number() => Err(Errno::INVAL),
            Some(_) => Ok(()),
        }
    }

    /// An event of an id was taken.
    pub(crate) fn count(&self, id: IdNumber) {
        if let Some(known) = lock(&self.tables).ids.get_mut(&id) {
            known.reported += 1;
        }
    }

    /// A request to the listener of this name was taken.
    pub(crate) fn count_request(&self, listener: UserId) {
        let listener = lock(&self.tables).by_uid.get(&listener).copied();
        if let Some(listener) = listener {
            self.count(listener);
        }
    }

    /// The number by which a membership is left.
    pub(crate) fn enlist_membership(&self, id: IdNumber, membership: MembershipNumber) -> u32 {
        let mut tables = lock(&self.tables);
        loop {
            let number = tables.next_membership;
            tables.next_membership = number.wrapping_add(1);
            // After 2^32 of them numbers begin anew; as many at once no provider has.
            if let Entry::Vacant(place) = tables.memberships.entry(number) {
                place.insert((id, membership));
                return number;
            }
        }
    }

    /// The membership of this number, and its id.
    pub(crate) fn membership(&self, number: u32) -> Option<(IdNumber, MembershipNumber)> {
        lock(&self.tables).memberships.get(&number).copied()
    }

    /// A membership was left.
    pub(crate) fn strike_membership(&self, number: u32) {
        lock(&self.tables).memberships.remove(&number);
    }
}

impl Tables {
    fn forget(&mut self, id: IdNumber) {
        let uid = self.ids.remove(&id).and_then(|known| known.uid);
        if let Some(uid) = uid.filter(|uid| self.by_uid.get(uid) == Some(&id)) {
            self.by_uid.remove(&uid);
        }
        self.memberships.retain(|_, (of, _)| *of != id);
    }
}

/// Short: channels, which have it, are printed.
impl fmt::Debug for RdmaCm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaCm")
            .field("provider", &self.provider)
            .finish_non_exhaustive()
    }
}
