//! Whose each id is, and how many of its events were taken.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use portolan_provider::cm::{IdNumber, MembershipNumber, UserId};
use portolan_threads::lock::Mutex;
use rustix::io::Errno;

/// The ids of a device. An id is of one channel at a time; its number is the provider's, a channel's the device's.
#[derive(Debug, Default)]
pub(crate) struct Ids(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    ids: HashMap<IdNumber, Known>,
    /// Ids by their owners' names: a request bears the listener's.
    by_uid: HashMap<UserId, IdNumber>,
    /// By the numbers that JOIN_MCAST answers.
    memberships: HashMap<u32, (IdNumber, MembershipNumber)>,
    next_membership: u32,
}

/// What the device knows of an id.
#[derive(Clone, Copy, Debug)]
struct Known {
    channel: u64,
    /// None for a request without owner.
    uid: Option<UserId>,
    /// Events taken, those of its memberships too (`events_reported`).
    reported: u32,
}

impl Ids {
    /// A channel goes, with its ids: these.
    pub(crate) fn close(&self, channel: u64) -> Vec<IdNumber> {
        let mut tables = self.0.lock();
        let of_it = tables.ids.iter().filter(|(_, id)| id.channel == channel);
        let of_it: Vec<IdNumber> = of_it.map(|(id, _)| *id).collect();
        of_it.iter().for_each(|id| tables.forget(*id));
        of_it
    }

    /// An id is of this channel from now on. One that was made by a request has no name.
    pub(crate) fn enlist(&self, id: IdNumber, uid: Option<UserId>, channel: u64) {
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

    /// An id moves to another channel; the events of it that were taken.
    pub(crate) fn redirect(&self, id: IdNumber, channel: u64) -> u32 {
        let mut tables = self.0.lock();
        tables.ids.get_mut(&id).map_or(0, |known| {
            known.channel = channel;
            known.reported
        })
    }

    /// An id is destroyed; the events of it that were taken.
    pub(crate) fn strike(&self, id: IdNumber) -> u32 {
        let mut tables = self.0.lock();
        let reported = tables.ids.get(&id).map_or(0, |known| known.reported);
        tables.forget(id);
        reported
    }

    /// Finds an id of a channel.
    ///
    /// # Errors
    /// `ENOENT` if there is none, `EINVAL` if it is of another channel.
    pub(crate) fn check_owner(&self, id: IdNumber, channel: u64) -> Result<(), Errno> {
        match self.0.lock().ids.get(&id) {
            None => Err(Errno::NOENT),
            Some(known) if known.channel != channel => Err(Errno::INVAL),
            Some(_) => Ok(()),
        }
    }

    /// An event of an id was taken.
    pub(crate) fn count(&self, id: IdNumber) {
        if let Some(known) = self.0.lock().ids.get_mut(&id) {
            known.reported += 1;
        }
    }

    /// A request to the listener of this name was taken.
    pub(crate) fn count_request(&self, listener: UserId) {
        let listener = self.0.lock().by_uid.get(&listener).copied();
        if let Some(listener) = listener {
            self.count(listener);
        }
    }

    /// The number by which a membership is left.
    pub(crate) fn enlist_membership(&self, id: IdNumber, membership: MembershipNumber) -> u32 {
        let mut tables = self.0.lock();
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
        self.0.lock().memberships.get(&number).copied()
    }

    /// A membership was left.
    pub(crate) fn strike_membership(&self, number: u32) {
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
