//! What the kernel does not tell with an event: the service of its id, and of a group's event the
//! id itself.

use std::collections::HashMap;
use std::sync::Mutex;

use portolan_provider::cm::{IdNumber, MembershipNumber, Service, UserId};

use crate::lock;

/// The ids of a provider's channels. Numbers are the kernel's, one space for all channels; it gives a
/// number again once its id is destroyed.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    known: HashMap<IdNumber, Known>,
    by_uid: HashMap<UserId, IdNumber>,
}

#[derive(Debug)]
struct Known {
    service: Service,
    uid: Option<UserId>,
    memberships: HashMap<MembershipNumber, UserId>,
}

impl Ids {
    /// An id exists, with a name if its owner gave it one yet.
    pub(crate) fn insert(&self, id: IdNumber, uid: Option<UserId>, service: Service) {
        let mut tables = lock(&self.tables);
        let memberships = HashMap::new();
        let known = Known {
            service,
            uid,
            memberships,
        };
        tables.known.insert(id, known);
        if let Some(uid) = uid {
            tables.by_uid.insert(uid, id);
        }
    }

    /// The id's owner names it.
    pub(crate) fn name(&self, id: IdNumber, uid: UserId) {
        let mut tables = lock(&self.tables);
        let Some(known) = tables.known.get_mut(&id) else {
            return;
        };
        let before = known.uid.replace(uid);
        if let Some(before) = before {
            tables.by_uid.remove(&before);
        }
        tables.by_uid.insert(uid, id);
    }

    /// Events named `uid` are of the id: it joins a group.
    pub(crate) fn expect_membership(&self, id: IdNumber, uid: UserId) {
        lock(&self.tables).by_uid.insert(uid, id);
    }

    /// The id joined as `membership`, or not.
    pub(crate) fn note_membership(
        &self,
        id: IdNumber,
        uid: UserId,
        membership: Option<MembershipNumber>,
    ) {
        let mut tables = lock(&self.tables);
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

    /// The id left a group.
    pub(crate) fn forget_membership(&self, id: IdNumber, membership: MembershipNumber) {
        let mut tables = lock(&self.tables);
        let known = tables.known.get_mut(&id);
        if let Some(uid) = known.and_then(|known| known.memberships.remove(&membership)) {
            tables.by_uid.remove(&uid);
        }
    }

    /// The id is about to be destroyed. Before it is: its number may be another's right after.
    pub(crate) fn remove(&self, id: IdNumber) {
        let mut tables = lock(&self.tables);
        if let Some(known) = tables.known.remove(&id) {
            for uid in known.memberships.into_values().chain(known.uid) {
                tables.by_uid.remove(&uid);
            }
        }
    }

    /// The id that events of this name are of, and its service.
    pub(crate) fn owner(&self, uid: UserId) -> Option<(IdNumber, Service)> {
        let tables = lock(&self.tables);
        let id = *tables.by_uid.get(&uid)?;
        Some((id, tables.known.get(&id)?.service))
    }

    /// How many ids there are, and how many names.
    #[cfg(test)]
    pub(crate) fn len(&self) -> (usize, usize) {
        let tables = lock(&self.tables);
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
    fn an_id_is_found_by_its_name_and_those_of_its_memberships_until_it_is_gone() {
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
    fn a_membership_that_failed_or_was_left_has_no_name_any_more() {
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
    fn a_child_is_found_under_the_name_that_its_acceptance_gives_it() {
        let ids = Ids::default();
        let id = IdNumber(4);
        ids.insert(id, None, SERVICE);
        ids.name(id, UserId(1));
        ids.name(id, UserId(2));
        assert_eq!(ids.owner(UserId(1)), None);
        assert_eq!(ids.owner(UserId(2)), Some((id, SERVICE)));
    }
}
