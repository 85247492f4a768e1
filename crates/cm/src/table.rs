//! The ids, by number, by communication id and by their peers' keys.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use portolan_provider::cm::IdNumber;
use portolan_provider::error::{Cause, Error, Result, Step};

use crate::hash::{Keyed, Map};
use crate::id::{Connection, Id, RemoteId, RemoteQp};
use crate::mutant::{Mutant, is_planted};
use crate::sidr::Inquiry;
use crate::sidr::RemoteRequest;

/// Bits of an id number for the slot; the others are the slot's generation.
const SLOT_BITS: u32 = 20;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
const GENERATION_MAX: u32 = u32::MAX >> SLOT_BITS;

/// All ids of an engine. Each look-up is one probe of a hash table or array.
#[derive(Debug)]
pub(crate) struct IdTable {
    slots: Vec<Slot>,
    /// Free slots, used in the order in which they were freed, so that numbers are reused late.
    free: VecDeque<u32>,
    live: u32,
    max_ids: u32,
    by_comm_id: Map<u32, IdNumber>,
    by_remote_id: Map<RemoteId, IdNumber>,
    by_remote_qp: Map<RemoteQp, IdNumber>,
    by_remote_request: Map<RemoteRequest, IdNumber>,
}

#[derive(Debug)]
struct Slot {
    /// Starts at 1, so that no number is 0.
    generation: u32,
    id: Option<Box<Id>>,
}

impl IdTable {
    pub(crate) fn new(max_ids: u32, hash: Keyed) -> Self {
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            live: 0,
            max_ids,
            by_comm_id: Map::with_hasher(hash),
            by_remote_id: Map::with_hasher(hash),
            by_remote_qp: Map::with_hasher(hash),
            by_remote_request: Map::with_hasher(hash),
        }
    }

    /// Number of ids.
    pub(crate) fn len(&self) -> usize {
        self.live as usize
    }

    /// Adds an id.
    ///
    /// # Errors
    /// `LimitReached`.
    pub(crate) fn insert(&mut self, id: Id, step: Step) -> Result<IdNumber> {
        if self.live >= self.max_ids {
            let cause = Cause::LimitReached {
                what: "ids",
                limit: self.max_ids.into(),
            };
            return Err(Error::new(step, cause));
        }
        let slot = match self.free.pop_front() {
            Some(slot) => slot,
            None => {
                self.slots.push(Slot {
                    generation: 1,
                    id: None,
                });
                self.slots.len() as u32 - 1
            }
        };
        let number = self.slots.get_mut(slot as usize).map(|entry| {
            entry.id = Some(Box::new(id));
            IdNumber(entry.generation << SLOT_BITS | slot)
        });
        self.live += 1;
        number.ok_or_else(|| Error::new(step, Cause::NoSuchObject("id")))
    }

    /// Removes an id with its communication id and its peer's keys.
    pub(crate) fn remove(&mut self, number: IdNumber) -> Option<Box<Id>> {
        if !is_planted(Mutant::NamesLeak) {
            self.forget_remote(number);
        }
        let id = self.get(number)?;
        let (comm_id, asked) = (id.comm_id(), id.asked.as_deref().map(|asked| asked.name));
        if let Some(comm_id) = comm_id {
            remove_if(&mut self.by_comm_id, &comm_id, number);
        }
        if let Some(name) = asked {
            remove_if(&mut self.by_remote_request, &name, number);
        }
        let slot = self.slots.get_mut((number.0 & SLOT_MASK) as usize)?;
        let id = slot.id.take()?;
        slot.generation = if slot.generation == GENERATION_MAX {
            1
        } else {
            slot.generation + 1
        };
        self.free.push_back(number.0 & SLOT_MASK);
        self.live -= 1;
        Some(id)
    }

    pub(crate) fn get(&self, number: IdNumber) -> Option<&Id> {
        let slot = self.slots.get((number.0 & SLOT_MASK) as usize)?;
        if slot.generation != number.0 >> SLOT_BITS {
            return None;
        }
        slot.id.as_deref()
    }

    pub(crate) fn get_mut(&mut self, number: IdNumber) -> Option<&mut Id> {
        let slot = self.slots.get_mut((number.0 & SLOT_MASK) as usize)?;
        if slot.generation != number.0 >> SLOT_BITS {
            return None;
        }
        slot.id.as_deref_mut()
    }

    /// The id with this number.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub(crate) fn find(&self, number: IdNumber, step: Step) -> Result<&Id> {
        self.get(number)
            .ok_or_else(|| Error::new(step, Cause::NoSuchObject("id")))
    }

    /// The id with this number.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub(crate) fn find_mut(&mut self, number: IdNumber, step: Step) -> Result<&mut Id> {
        self.get_mut(number)
            .ok_or_else(|| Error::new(step, Cause::NoSuchObject("id")))
    }

    /// Every id, for listings.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (IdNumber, &Id)> {
        self.slots.iter().zip(0u32..).filter_map(|(slot, index)| {
            Some((
                IdNumber(slot.generation << SLOT_BITS | index),
                slot.id.as_deref()?,
            ))
        })
    }

    /// Whether the communication id is in use.
    pub(crate) fn has_comm_id(&self, comm_id: u32) -> bool {
        self.by_comm_id.contains_key(&comm_id)
    }

    /// Indexes `number` by its communication id.
    pub(crate) fn set_comm_id(&mut self, comm_id: u32, number: IdNumber) {
        self.by_comm_id.insert(comm_id, number);
    }

    /// The connection that has the communication id.
    pub(crate) fn by_comm_id(&self, comm_id: u32) -> Option<(IdNumber, &Id, &Connection)> {
        let number = *self.by_comm_id.get(&comm_id)?;
        let id = self.get(number)?;
        Some((number, id, id.connection.as_deref()?))
    }

    /// The id with this SIDR request number, if any.
    pub(crate) fn by_request_id(&self, request_id: u32) -> Option<(IdNumber, &Inquiry)> {
        let number = *self.by_comm_id.get(&request_id)?;
        Some((number, self.get(number)?.inquiry.as_deref()?))
    }

    /// The id that a peer's SIDR request created.
    pub(crate) fn by_remote_request(&self, name: &RemoteRequest) -> Option<IdNumber> {
        self.by_remote_request.get(name).copied()
    }

    /// Indexes `number` by the SIDR request that created it (`cm_insert_remote_sidr`).
    pub(crate) fn set_remote_request(&mut self, name: RemoteRequest, number: IdNumber) {
        self.by_remote_request.insert(name, number);
    }

    /// The id whose peer has this key.
    pub(crate) fn by_remote_id(&self, remote: &RemoteId) -> Option<IdNumber> {
        self.by_remote_id.get(remote).copied()
    }

    /// The id whose peer uses this queue pair.
    pub(crate) fn by_remote_qp(&self, remote: &RemoteQp) -> Option<IdNumber> {
        self.by_remote_qp.get(remote).copied()
    }

    /// Indexes `number` by its peer's keys (`cm_insert_remote_id`, `cm_insert_remote_qpn`).
    pub(crate) fn set_remote(&mut self, remote: RemoteId, qp: RemoteQp, number: IdNumber) {
        self.by_remote_id.insert(remote, number);
        self.by_remote_qp.insert(qp, number);
    }

    /// Forgets the peer's queue pair, which may now be used for another connection.
    pub(crate) fn forget_remote_qp(&mut self, number: IdNumber) {
        let Some(connection) = self.get(number).and_then(|id| id.connection.as_deref()) else {
            return;
        };
        let qp = connection.remote_qp();
        remove_if(&mut self.by_remote_qp, &qp, number);
    }

    /// Forgets both keys of the peer.
    pub(crate) fn forget_remote(&mut self, number: IdNumber) {
        self.forget_remote_qp(number);
        let connection = self.get(number).and_then(|id| id.connection.as_deref());
        if let Some(remote) = connection.and_then(Connection::remote_id) {
            remove_if(&mut self.by_remote_id, &remote, number);
        }
    }

    /// Forgets the SIDR request that created an id. A copy is then new.
    pub(crate) fn forget_remote_request(&mut self, number: IdNumber) {
        let asked = self.get(number).and_then(|id| id.asked.as_deref());
        if let Some(name) = asked.map(|asked| asked.name) {
            remove_if(&mut self.by_remote_request, &name, number);
        }
    }

    /// Number of entries in each table, to check that none leaks.
    pub(crate) fn index_sizes(&self) -> [usize; 4] {
        [
            self.by_comm_id.len(),
            self.by_remote_id.len(),
            self.by_remote_qp.len(),
            self.by_remote_request.len(),
        ]
    }
}

/// Removes `key`, unless it maps to another id.
fn remove_if<K: Eq + core::hash::Hash>(map: &mut Map<K, IdNumber>, key: &K, number: IdNumber) {
    if map.get(key) == Some(&number) {
        map.remove(key);
    }
}
