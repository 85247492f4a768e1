//! Data that the kernel does not report with an event: the service of its id, and for a group's event the id. Also the
//! addresses of ids, which the kernel forgets when their device is removed.

use portolan_threads::lock::Mutex;

use portolan_provider::cm::{EventType, IdAddresses, IdNumber, MembershipNumber, Service, UserId};
use portolan_provider::number_map::NumberMap;
use portolan_provider::{Cause, Error, Result, Step};

/// The ids of a provider's channels. The kernel assigns the numbers, from one space for all channels, and reuses a
/// number once its id is destroyed.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    known: NumberMap<IdNumber, Known>,
    by_uid: NumberMap<UserId, IdNumber>,
}

#[derive(Debug)]
struct Known {
    service: Service,
    uid: Option<UserId>,
    memberships: NumberMap<MembershipNumber, UserId>,
    /// Events written to it and not taken yet.
    written: usize,
    /// Known once they are final: after binding, resolution, or the request that created the id.
    addresses: Option<IdAddresses>,
}

/// Maximum number of pending written events of the program per id. The kernel has no limit.
const WRITTEN_MAX: usize = 256;
/// Maximum number of the library's own events in addition: one name lookup per id.
const OWN_MAX: usize = 1;

impl Ids {
    /// Adds an id, with a tag if its owner set one.
    pub(crate) fn insert(&self, id: IdNumber, uid: Option<UserId>, service: Service) {
        let mut tables = self.tables.lock();
        let memberships = NumberMap::default();
        let known = Known {
            service,
            uid,
            memberships,
            written: 0,
            addresses: None,
        };
        tables.known.insert(id, known);
        if let Some(uid) = uid {
            tables.by_uid.insert(uid, id);
        }
    }

    /// Sets the id's tag and returns the previous one.
    pub(crate) fn name(&self, id: IdNumber, uid: UserId) -> Option<UserId> {
        self.rename(id, Some(uid))
    }

    /// Restores the tag, or its absence, from before [`Ids::name`].
    pub(crate) fn name_again(&self, id: IdNumber, before: Option<UserId>) {
        self.rename(id, before);
    }

    fn rename(&self, id: IdNumber, uid: Option<UserId>) -> Option<UserId> {
        let mut tables = self.tables.lock();
        let known = tables.known.get_mut(&id)?;
        let before = std::mem::replace(&mut known.uid, uid);
        if let Some(before) = before {
            tables.by_uid.remove(&before);
        }
        if let Some(uid) = uid {
            tables.by_uid.insert(uid, id);
        }
        before
    }

    /// Whether the id has no tag, because its request is not accepted yet.
    pub(crate) fn is_unnamed(&self, id: IdNumber) -> bool {
        let tables = self.tables.lock();
        let known = tables.known.get(&id);
        known.is_some_and(|known| known.uid.is_none())
    }

    /// Counts an event that is about to be written to the id.
    ///
    /// # Errors
    /// `LimitReached` if the maximum number is pending.
    pub(crate) fn note_written(&self, id: IdNumber, event: EventType) -> Result<()> {
        let mut tables = self.tables.lock();
        let Some(known) = tables.known.get_mut(&id) else {
            return Ok(());
        };
        let own = if event == EventType::User { 0 } else { OWN_MAX };
        if known.written >= WRITTEN_MAX + own {
            let (what, limit) = ("pending written events", WRITTEN_MAX as u64);
            let cause = Cause::LimitReached { what, limit };
            return Err(Error::new(Step::Event, cause));
        }
        known.written += 1;
        Ok(())
    }

    /// Counts off an event that was written to the id.
    pub(crate) fn note_taken(&self, id: IdNumber) {
        if let Some(known) = self.tables.lock().known.get_mut(&id) {
            known.written = known.written.saturating_sub(1);
        }
    }

    /// Records that events with the tag `uid` belong to the id, which joins a group.
    pub(crate) fn expect_membership(&self, id: IdNumber, uid: UserId) {
        self.tables.lock().by_uid.insert(uid, id);
    }

    /// Stores the id's membership, or that joining failed.
    pub(crate) fn note_membership(
        &self,
        id: IdNumber,
        uid: UserId,
        membership: Option<MembershipNumber>,
    ) {
        let mut tables = self.tables.lock();
        let known = tables.known.get_mut(&id);
        match (membership, known) {
            (Some(membership), Some(known)) => {
                known.memberships.insert(membership, uid);
            }
            _ => {
                tables.by_uid.remove(&uid);
            }
        }
    }

    /// Removes a membership that the id left.
    pub(crate) fn forget_membership(&self, id: IdNumber, membership: MembershipNumber) {
        let mut tables = self.tables.lock();
        let known = tables.known.get_mut(&id);
        if let Some(uid) = known.and_then(|known| known.memberships.remove(&membership)) {
            tables.by_uid.remove(&uid);
        }
    }

    /// Stores the id's final addresses, or `None` if they may change.
    pub(crate) fn note_addresses(&self, id: IdNumber, addresses: Option<IdAddresses>) {
        if let Some(known) = self.tables.lock().known.get_mut(&id) {
            known.addresses = addresses;
        }
    }

    /// The id's addresses, if final.
    pub(crate) fn addresses(&self, id: IdNumber) -> Option<IdAddresses> {
        self.tables.lock().known.get(&id)?.addresses.clone()
    }

    /// The number of the id's device, if its addresses are final.
    pub(crate) fn device_index(&self, id: IdNumber) -> Option<Option<u32>> {
        let tables = self.tables.lock();
        Some(tables.known.get(&id)?.addresses.as_ref()?.device_index)
    }

    /// Stores queried GIDs, if the addresses are still those that they belong to.
    pub(crate) fn note_gids(&self, id: IdNumber, asked: &IdAddresses) {
        let mut tables = self.tables.lock();
        let settled = tables.known.get_mut(&id);
        if let Some(settled) = settled.and_then(|known| known.addresses.as_mut())
            && (settled.local, settled.remote) == (asked.local, asked.remote)
            && settled.device_index == asked.device_index
        {
            (settled.sgid, settled.dgid) = (asked.sgid, asked.dgid);
        }
    }

    /// Removes an id that is about to be destroyed. Call this first, because the number may be reused right after.
    pub(crate) fn remove(&self, id: IdNumber) {
        let mut tables = self.tables.lock();
        if let Some(known) = tables.known.remove(&id) {
            for uid in known.memberships.into_values().chain(known.uid) {
                tables.by_uid.remove(&uid);
            }
        }
    }

    /// The id and service for events with this tag.
    pub(crate) fn owner(&self, uid: UserId) -> Option<(IdNumber, Service)> {
        let tables = self.tables.lock();
        let id = *tables.by_uid.get(&uid)?;
        Some((id, tables.known.get(&id)?.service))
    }

    /// Number of ids and of tags.
    #[cfg(test)]
    pub(crate) fn len(&self) -> (usize, usize) {
        let tables = self.tables.lock();
        (tables.known.len(), tables.by_uid.len())
    }
}

#[cfg(test)]
mod tests {
    use portolan_provider::verbs::QpType;
    use portolan_wire::addr::PortSpace;

    use super::*;

    const SERVICE: Service = Service {
        port_space: PortSpace::Udp,
        qp_type: QpType::Ud,
    };

    #[test]
    fn an_id_is_found_by_its_name_and_its_memberships_names_until_it_is_destroyed() {
        let ids = Ids::default();
        let (id, uid, group) = (IdNumber(3), UserId(7), UserId(8));
        ids.insert(id, Some(uid), SERVICE);
        ids.expect_membership(id, group);
        assert_eq!(ids.owner(group), Some((id, SERVICE)));
        ids.note_membership(id, group, Some(MembershipNumber(1)));
        assert_eq!(ids.owner(uid), Some((id, SERVICE)));
        ids.remove(id);
        assert_eq!((ids.owner(uid), ids.owner(group)), (None, None));
        assert_eq!(ids.len(), (0, 0));
    }

    #[test]
    fn the_name_of_a_failed_or_left_membership_is_forgotten() {
        let ids = Ids::default();
        let id = IdNumber(3);
        ids.insert(id, None, SERVICE);
        ids.expect_membership(id, UserId(8));
        ids.note_membership(id, UserId(8), None);
        assert_eq!(ids.owner(UserId(8)), None);
        ids.expect_membership(id, UserId(9));
        ids.note_membership(id, UserId(9), Some(MembershipNumber(2)));
        ids.forget_membership(id, MembershipNumber(2));
        assert_eq!(ids.len(), (1, 0));
    }

    #[test]
    fn addresses_are_cached_while_they_cannot_change() {
        let ids = Ids::default();
        let (id, settled) = (IdNumber(5), Some(IdAddresses::default()));
        ids.note_addresses(id, settled.clone());
        assert_eq!(ids.addresses(id), None, "an unknown id");
        ids.insert(id, None, SERVICE);
        assert_eq!(ids.addresses(id), None);
        ids.note_addresses(id, settled.clone());
        assert_eq!(ids.addresses(id), settled);
        ids.note_addresses(id, None);
        assert_eq!(ids.addresses(id), None);
        ids.note_addresses(id, settled);
        ids.remove(id);
        assert_eq!(ids.addresses(id), None);
    }

    #[test]
    fn gids_are_added_only_to_the_addresses_they_were_queried_for() {
        let ids = Ids::default();
        let id = IdNumber(5);
        let gid = Some(portolan_wire::addr::Gid([7; 16]));
        let on = |device_index| IdAddresses {
            device_index: Some(device_index),
            ..IdAddresses::default()
        };
        let whole = IdAddresses { sgid: gid, ..on(1) };
        ids.insert(id, None, SERVICE);
        ids.note_gids(id, &whole);
        assert_eq!(ids.addresses(id), None, "they may change");
        ids.note_addresses(id, Some(on(2)));
        ids.note_gids(id, &whole);
        assert_eq!(ids.addresses(id), Some(on(2)));
        assert_eq!(ids.device_index(id), Some(Some(2)));
        ids.note_addresses(id, Some(on(1)));
        ids.note_gids(id, &whole);
        assert_eq!(ids.addresses(id), Some(whole));
    }

    #[test]
    fn a_child_is_found_under_the_name_that_its_acceptance_gives_it() {
        let ids = Ids::default();
        let id = IdNumber(4);
        ids.insert(id, None, SERVICE);
        ids.name(id, UserId(1));
        ids.name(id, UserId(2));
        assert_eq!(ids.owner(UserId(1)), None);
        assert_eq!(ids.owner(UserId(2)), Some((id, SERVICE)));
    }

    #[test]
    fn an_acceptance_that_fails_leaves_the_child_without_a_name() {
        let ids = Ids::default();
        let id = IdNumber(4);
        ids.insert(id, None, SERVICE);
        assert!(ids.is_unnamed(id));
        let before = ids.name(id, UserId(1));
        assert!(!ids.is_unnamed(id));
        ids.name_again(id, before);
        assert!(ids.is_unnamed(id));
        assert_eq!(ids.len(), (1, 0));
    }

    #[test]
    fn untaken_written_events_are_bounded_and_taking_one_makes_room() {
        let ids = Ids::default();
        let id = IdNumber(4);
        ids.insert(id, Some(UserId(1)), SERVICE);
        let write = |event| ids.note_written(id, event);
        let written = (0..=WRITTEN_MAX).take_while(|_| write(EventType::User).is_ok());
        assert_eq!(written.count(), WRITTEN_MAX);
        let error = write(EventType::User).unwrap_err();
        assert!(matches!(error.cause, Cause::LimitReached { .. }), "{error}");
        write(EventType::AddrinfoResolved).unwrap();
        for _ in 0..2 {
            ids.note_taken(id);
        }
        write(EventType::User).unwrap();
    }
}
