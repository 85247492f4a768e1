//! The owner of each id, and the number of its events that were taken.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use portolan_provider::cm::{IdNumber, MembershipNumber, UserId};
use portolan_threads::lock::Mutex;
use rustix::io::Errno;

/// The ids of a device. An id belongs to one channel at a time. The provider assigns its number; the device assigns a
/// channel's.
#[derive(Debug, Default)]
pub(crate) struct Ids(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    ids: HashMap<IdNumber, Known>,
    /// Ids by their owners' tags. A request carries the listener's tag.
    by_uid: HashMap<UserId, IdNumber>,
    /// By the numbers that JOIN_MCAST returns.
    memberships: HashMap<u32, (IdNumber, MembershipNumber)>,
    next_membership: u32,
}

/// The state of an id.
#[derive(Clone, Copy, Debug)]
struct Known {
    channel: u64,
    /// `None` for a request without an owner.
    uid: Option<UserId>,
    /// Number of events taken, including those of its memberships (`events_reported`).
    reported: u32,
}

impl Ids {
    /// Removes a channel and returns its ids.
    pub(crate) fn close(&self, channel: u64) -> Vec<IdNumber> {
        let mut tables = self.0.lock();
        let of_it = tables.ids.iter().filter(|(_, id)| id.channel == channel);
        let of_it: Vec<IdNumber> = of_it.map(|(id, _)| *id).collect();
        of_it.iter().for_each(|id| tables.forget(*id));
        of_it
    }

    /// Adds an id to a channel. An id that a request created has no tag.
    pub(crate) fn add(&self, id: IdNumber, uid: Option<UserId>, channel: u64) {
        let known = Known {
            channel,
            uid,
            reported: 0,
        };
        let mut tables = self.0.lock();
        tables.ids.insert(id, known);
        if let Some(uid) = uid {
            tables.by_uid.insert(uid, id);
        }
    }

    /// Moves an id to another channel; returns the number of its events taken.
    pub(crate) fn redirect(&self, id: IdNumber, channel: u64) -> u32 {
        let mut tables = self.0.lock();
        tables.ids.get_mut(&id).map_or(0, |known| {
            known.channel = channel;
            known.reported
        })
    }

    /// Removes an id; returns the number of its events taken.
    pub(crate) fn remove(&self, id: IdNumber) -> u32 {
        let mut tables = self.0.lock();
        let reported = tables.ids.get(&id).map_or(0, |known| known.reported);
        tables.forget(id);
        reported
    }

    /// Checks that a channel owns an id.
    ///
    /// # Errors
    /// `ENOENT` if the id does not exist, `EINVAL` if it belongs to another channel.
    pub(crate) fn check_owner(&self, id: IdNumber, channel: u64) -> Result<(), Errno> {
        match self.0.lock().ids.get(&id) {
            None => Err(Errno::NOENT),
            Some(known) if known.channel != channel => Err(Errno::INVAL),
            Some(_) => Ok(()),
        }
    }

    /// Counts an event of an id as taken.
    pub(crate) fn count(&self, id: IdNumber) {
        if let Some(known) = self.0.lock().ids.get_mut(&id) {
            known.reported += 1;
        }
    }

    /// Counts a request to the listener with this tag as taken.
    pub(crate) fn count_request(&self, listener: UserId) {
        let listener = self.0.lock().by_uid.get(&listener).copied();
        if let Some(listener) = listener {
            self.count(listener);
        }
    }

    /// Adds a membership; returns the number to leave it by.
    pub(crate) fn add_membership(&self, id: IdNumber, membership: MembershipNumber) -> u32 {
        let mut tables = self.0.lock();
        loop {
            let number = tables.next_membership;
            tables.next_membership = number.wrapping_add(1);
            // Numbers restart after 2^32, but no provider has that many at once.
            if let Entry::Vacant(place) = tables.memberships.entry(number) {
                place.insert((id, membership));
                return number;
            }
        }
    }

    /// The membership with this number, and its id.
    pub(crate) fn membership(&self, number: u32) -> Option<(IdNumber, MembershipNumber)> {
        self.0.lock().memberships.get(&number).copied()
    }

    /// Removes a membership.
    pub(crate) fn remove_membership(&self, number: u32) {
        self.0.lock().memberships.remove(&number);
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
