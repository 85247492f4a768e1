//! What a process lets others do in its memory by themselves: a table in a file that they map for reading.
//!
//! It says which queue pairs take requests from which peers, and which keys open which parts of the process's memory
//! files. Only regions in memory files are in it, and only as many as have room: requests for everything else go by
//! packets. Each process that uses it announces in its own ring's file what it is copying by ([`Hazard`]); so a right
//! that is taken back is used no more once no such announcement is left. A process that is stopped in the middle of a
//! copy is waited for only so long. The memory is then kept until it is out of it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use portolan_provider::verbs::Access;
use portolan_threads::lock::Mutex;
use portolan_wire::Qpn;
use rustix::io::Errno;

use super::mapping::Mapping;
use super::memory_files::SharedPages;
use super::rights_layout::{
    ANNOUNCED, FILE_LEN, HAZARDS, KEYS, Slot, hazard_of, header, key_entry, key_of, key_slots,
    qp_entry, qp_of, qp_slot, rights_of, word_of,
};
use crate::engine::PdId;

/// How long the withdrawal of a key waits for running copies. A chunk takes less than a hundredth of that, but a busy machine may
/// interrupt it.
const KEY_PATIENCE: Duration = Duration::from_millis(250);
/// How long closing a queue pair waits for them.
const QP_PATIENCE: Duration = Duration::from_millis(50);

/// A queue pair as the table has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpRight {
    pub(crate) qpn: Qpn,
    pub(crate) peer: Qpn,
    /// Of the addresses of both ends, see [`tag_of`].
    pub(crate) tag: u32,
    pub(crate) pd: PdId,
    pub(crate) access: Access,
}

/// A key as the table has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRight {
    pub(crate) rkey: u32,
    pub(crate) pd: PdId,
    pub(crate) access: Access,
    pub(crate) iova: u64,
    pub(crate) length: u64,
    /// Number of the memory file, and where in it the region begins.
    pub(crate) file: u32,
    pub(crate) offset: u64,
}

/// This process's table.
#[derive(Debug)]
pub(crate) struct Rights {
    mapping: Mapping,
    file: OwnedFd,
    keys: Mutex<Keys>,
    /// The ring files of the processes that have the table, with their announcements.
    users: Mutex<Vec<(u8, Arc<Mapping>)>>,
}

#[derive(Debug)]
struct Keys {
    is_taken: Box<[bool]>,
    held: Vec<Held>,
}

/// Memory that stopped processes may still be copying.
#[derive(Debug)]
struct Held {
    slot: Slot,
    by: Vec<User>,
    _pages: Arc<SharedPages>,
}

/// One announcement of a process.
#[derive(Clone, Debug)]
struct User {
    ring: Arc<Mapping>,
    hazard: usize,
}

impl User {
    fn announced(&self) -> u64 {
        hazard_of(&self.ring, self.hazard).announced()
    }
}

impl Rights {
    pub(crate) fn create() -> Result<Self, Errno> {
        let (mapping, file) = Mapping::create("portolan-rights", FILE_LEN)?;
        Ok(Self {
            mapping,
            file,
            keys: Mutex::new(Keys {
                is_taken: vec![false; KEYS].into(),
                held: Vec::new(),
            }),
            users: Mutex::default(),
        })
    }

    /// To be handed to those who may use it.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether requests may be carried out by it at all.
    pub(crate) fn set_open(&self, open: bool) {
        let header = header(&self.mapping);
        header.open.store(open.into(), Ordering::Release);
    }

    /// The process with that place on the board has the table, and announces in its ring's file.
    pub(super) fn add_user(&self, place: u8, ring: Arc<Mapping>) {
        self.users.lock().push((place, ring));
    }

    /// It is gone.
    pub(super) fn remove_user(&self, place: u8) {
        self.users.lock().retain(|(taken, _)| *taken != place);
        self.let_go();
    }

    /// Lets a queue pair's peer ask. `None` if another one has the place.
    pub(crate) fn give_qp(&self, right: &QpRight) -> Option<Slot> {
        let slot = qp_slot(right.qpn);
        let entry = qp_entry(&self.mapping, slot);
        let rights = rights_of(right.access);
        if rights == 0 || entry.word.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let domain = u64::from(right.tag) << 32 | u64::from(right.pd.0);
        entry.domain.store(domain, Ordering::Relaxed);
        let word = word_of(rights, right.qpn, right.peer);
        entry.word.store(word, Ordering::Release);
        Some(slot)
    }

    /// Takes that back. With `wait`, copies that are under way are waited for, a moment.
    pub(crate) fn take_qp(&self, slot: Slot, wait: bool) {
        let entry = qp_entry(&self.mapping, slot);
        entry.word.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if wait {
            let is_it = |word| word & ANNOUNCED != 0 && qp_of(word) == slot;
            let _ = self.wait_for(is_it, QP_PATIENCE);
        }
    }

    /// Opens a region to peers. `None` if there is no room, or it gives peers no rights.
    pub(crate) fn give_key(&self, right: &KeyRight) -> Option<Slot> {
        let rights = rights_of(right.access);
        if rights == 0 {
            return None;
        }
        let mut keys = self.keys.lock();
        let is_taken = &mut keys.is_taken;
        let slot = key_slots(right.rkey).find(|Slot(slot)| is_taken.get(*slot) == Some(&false))?;
        *is_taken.get_mut(slot.0)? = true;
        let entry = key_entry(&self.mapping, slot);
        entry.rkey.store(right.rkey, Ordering::Relaxed);
        entry.pd.store(right.pd.0, Ordering::Relaxed);
        entry.rights.store(rights, Ordering::Relaxed);
        entry.file.store(right.file, Ordering::Relaxed);
        entry.iova.store(right.iova, Ordering::Relaxed);
        entry.length.store(right.length, Ordering::Relaxed);
        entry.offset.store(right.offset, Ordering::Relaxed);
        entry.version.give();
        Some(slot)
    }

    /// Takes a key back. When this returns, nobody copies by it, or the pages are held until nobody does.
    pub(crate) fn take_key(&self, slot: Slot, pages: &Arc<SharedPages>) {
        let entry = key_entry(&self.mapping, slot);
        entry.version.take_back();
        let is_it = |word| word & ANNOUNCED != 0 && key_of(word) == slot;
        let by = self.wait_for(is_it, KEY_PATIENCE);
        let mut keys = self.keys.lock();
        if by.is_empty() {
            if let Some(is_taken) = keys.is_taken.get_mut(slot.0) {
                *is_taken = false;
            }
        } else {
            pages.hold();
            let _pages = Arc::clone(pages);
            keys.held.push(Held { slot, by, _pages });
        }
        drop(keys);
        self.let_go();
    }

    /// Lets go of memory that nobody copies any more.
    pub(crate) fn let_go(&self) {
        let mut keys = self.keys.lock();
        let Keys { is_taken, held } = &mut *keys;
        if held.is_empty() {
            return;
        }
        let users = self.users.lock();
        let is_user = |ring: &Arc<Mapping>| users.iter().any(|(_, user)| Arc::ptr_eq(user, ring));
        let free = held.extract_if(.., |held| {
            let slot = held.slot;
            held.by
                .retain(|user| is_user(&user.ring) && key_of(user.announced()) == slot);
            held.by.is_empty()
        });
        let free: Vec<Held> = free.collect();
        for held in &free {
            if let Some(is_taken) = is_taken.get_mut(held.slot.0) {
                *is_taken = false;
            }
        }
        drop(users);
        drop(keys);
        // The memory goes back without a lock.
        drop(free);
    }

    /// Waits until no announcement is `it`; those that still are after `patience`.
    fn wait_for(&self, is_it: impl Fn(u64) -> bool, patience: Duration) -> Vec<User> {
        let users = self.users.lock();
        let hazards = users.iter().flat_map(|(_, ring)| {
            let of_ring = (0..HAZARDS).map(move |hazard| (ring, hazard));
            of_ring.filter(|(ring, hazard)| is_it(hazard_of(ring, *hazard).announced()))
        });
        let mut busy: Vec<User> = hazards
            .map(|(ring, hazard)| User {
                ring: Arc::clone(ring),
                hazard,
            })
            .collect();
        drop(users);
        if busy.is_empty() {
            return busy;
        }
        let began = Instant::now();
        loop {
            busy.retain(|user| is_it(user.announced()));
            if busy.is_empty() || began.elapsed() > patience {
                return busy;
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
#[path = "rights_tests.rs"]
mod tests;
