//! The rights of other processes to access this process's memory directly: a table in a file that they map read-only.
//!
//! It lists which queue pairs accept requests from which peers, and which keys open which parts of the process's
//! memory files or of its program's memory. It contains only as many regions as fit. All other requests
//! use packets.
//!
//! A user of the table announces in its own ring's file the right that it is using ([`Hazard`]). So a withdrawn right
//! is unused once its announcements are gone. The withdrawal waits for a stopped process only a limited time. The
//! memory is then kept until that process is out of its copy. The program's memory cannot be kept. There, the gate is
//! closed ([`gate`](super::gate)), and the withdrawal fails if a process that is not stopped stays in its copy. Readers of
//! the program's memory announce nothing. They look at the right again after the copy, and throw the copy away if the right
//! was withdrawn.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use portolan_provider::verbs::Access;
use portolan_threads::lock::Mutex;
use portolan_wire::Qpn;
use rustix::io::Errno;

use super::gate::Gate;
use super::mapping::Mapping;
use super::memory_files::SharedPages;
use super::program_memory::Witness;
use super::pull::testimony_of;
use super::rights_layout::{
    ANNOUNCED, FILE_LEN, HAZARDS, KEYS, PROGRAM, PULLS, Slot, hazard_of, header, key_entry, key_of,
    key_slots, qp_entry, qp_of, qp_slot, rights_of, word_of,
};
use super::stopped::{has_ended, may_be_in_a_call};
use crate::engine::PdId;

/// How long the withdrawal of a key waits for running copies. A chunk takes less than a hundredth of this, but a busy
/// machine may interrupt it.
const KEY_PATIENCE: Duration = Duration::from_millis(250);
/// How long the withdrawal of a key of the program's memory waits for running copies before it closes the gate.
const GATE_PATIENCE: Duration = Duration::from_millis(10);
/// How long it then waits for a process that may have passed the gate.
const PASSED_PATIENCE: Duration = Duration::from_secs(2);
/// How often the announcements of running copies are looked at.
const LOOK_INTERVAL: Duration = Duration::from_micros(50);
/// How long closing a queue pair waits for running copies.
const QP_PATIENCE: Duration = Duration::from_millis(50);

/// A queue pair in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpRight {
    pub(crate) qpn: Qpn,
    pub(crate) peer: Qpn,
    /// The tag of both ends' addresses, see [`tag_of`].
    pub(crate) tag: u32,
    pub(crate) pd: PdId,
    pub(crate) access: Access,
}

/// A key in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRight {
    pub(crate) rkey: u32,
    pub(crate) pd: PdId,
    pub(crate) access: Access,
    pub(crate) iova: u64,
    pub(crate) length: u64,
    /// The number of the memory file, and the region's offset in it.
    pub(crate) file: u32,
    pub(crate) offset: u64,
}

impl KeyRight {
    /// With a region of the program's memory.
    pub(crate) fn of_program(self, addr: u64) -> Self {
        Self {
            access: self.access & (Access::REMOTE_READ | Access::REMOTE_WRITE),
            file: PROGRAM,
            offset: addr,
            ..self
        }
    }
}

#[derive(Debug)]
pub(crate) struct Rights {
    mapping: Mapping,
    file: OwnedFd,
    /// `None` if other processes cannot recognize this one.
    witness: Option<Witness>,
    keys: Mutex<Keys>,
    gate: Mutex<Option<Gate>>,
    /// Held while a queue pair takes its slot.
    giving: Mutex<()>,
    ended_pulls: Mutex<Vec<EndedPull>>,
    users: Mutex<Vec<Holder>>,
}

/// A process that has the table.
#[derive(Debug)]
struct Holder {
    /// Its place on the head page.
    place: u8,
    /// Its ring's file, which contains its announcements.
    ring: Arc<Mapping>,
    /// 0 if it is in another process namespace.
    pid: u32,
    /// Its link has ended.
    has_left: bool,
}

impl Holder {
    /// Whether a copy that it announced may still run. A process of another namespace ended with its link.
    fn may_be_copying(&self) -> bool {
        let is_announced = |hazard| hazard_of(&self.ring, hazard).announced() != 0;
        self.pid != 0 && (0..HAZARDS).any(is_announced) && !has_ended(self.pid)
    }
}

/// A request to copy out of this process's memory that does not wait any more, although its copy runs.
#[derive(Debug)]
struct EndedPull {
    id: u64,
    lkeys: Vec<u32>,
}

/// Processes that may still be in a copy, although no new one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StillCopying {
    pub(crate) count: usize,
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
    pid: u32,
}

impl User {
    fn announced(&self) -> u64 {
        hazard_of(&self.ring, self.hazard).announced()
    }
}

impl Rights {
    pub(crate) fn create() -> Result<Self, Errno> {
        let (mapping, file) = Mapping::create("portolan-rights", FILE_LEN)?;
        let witness = Witness::new();
        if let Some(witness) = &witness {
            witness.testify(&header(&mapping).testimony);
        }
        let gate = Gate::new();
        tell(&mapping, gate.as_ref());
        Ok(Self {
            mapping,
            file,
            witness,
            gate: Mutex::new(gate),
            keys: Mutex::new(Keys {
                is_taken: vec![false; KEYS].into(),
                held: Vec::new(),
            }),
            giving: Mutex::default(),
            ended_pulls: Mutex::default(),
            users: Mutex::default(),
        })
    }

    /// The file to pass to users of the table.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Tells the reader of a ring about this process, in the ring's file.
    pub(super) fn testify(&self, ring: &Mapping) {
        if let Some(witness) = &self.witness {
            witness.testify(testimony_of(ring));
        }
    }

    /// Sets whether requests may use the table at all.
    pub(crate) fn set_open(&self, open: bool) {
        let header = header(&self.mapping);
        header.open.store(open.into(), Ordering::Release);
    }

    /// Adds a user of the table, the process `pid`. It has `place` on the head page, and announces in its ring's file.
    pub(super) fn add_user(&self, place: u8, ring: Arc<Mapping>, pid: u32) {
        self.users.lock().push(Holder {
            place,
            ring,
            pid,
            has_left: false,
        });
    }

    /// Removes a user whose link has ended. If its process lives on, it counts until it is out of its copies.
    pub(super) fn remove_user(&self, place: u8) {
        for holder in self.users.lock().iter_mut() {
            holder.has_left |= holder.place == place;
        }
        self.forget_left();
        self.let_go();
    }

    fn forget_left(&self) {
        let stays = |holder: &Holder| !holder.has_left || holder.may_be_copying();
        self.users.lock().retain(stays);
    }

    /// Lets a queue pair's peer send direct requests. `None` if another queue pair has the slot.
    pub(crate) fn give_qp(&self, right: &QpRight) -> Option<Slot> {
        // Two queue pairs of one slot must not both find it free.
        let _alone = self.giving.lock();
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

    /// Withdraws that. Returns whether copies may be running.
    pub(crate) fn take_qp(&self, slot: Slot) -> bool {
        let entry = qp_entry(&self.mapping, slot);
        entry.word.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.busy(|word| is_qp(word, slot)).is_empty()
    }

    /// Waits a moment for the copies that ran when the slot's right was withdrawn.
    pub(crate) fn wait_for_qp(&self, slot: Slot) {
        let is_it = |word| is_qp(word, slot);
        let busy = self.wait_for(is_it, QP_PATIENCE);
        if !busy.is_empty() {
            // The program's memory: a stopped process must not write to it later.
            self.close_gate();
            wait_until_out(busy, QP_PATIENCE, |user| {
                is_it(user.announced()) && may_be_in_a_call(user.pid)
            });
        }
    }

    /// Opens a region to peers. `None` if the table is full or the region gives peers no rights.
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

    /// Withdraws a key. When this returns, no process copies with it, or the pages are kept until none does.
    pub(crate) fn take_key(&self, slot: Slot, pages: &Arc<SharedPages>) {
        let entry = key_entry(&self.mapping, slot);
        entry.version.take_back();
        let is_it = |word| is_key(word, slot);
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

    /// Withdraws a key of the program's memory. When this returns, no process writes with it, or uses what it reads with
    /// it from now on.
    ///
    /// # Errors
    /// Processes may still be in a copy. Call it again.
    pub(crate) fn take_program_key(&self, slot: Slot) -> Result<(), StillCopying> {
        key_entry(&self.mapping, slot).version.take_back();
        let is_it = |word| is_key(word, slot);
        let mut busy = self.wait_for(is_it, GATE_PATIENCE);
        if !busy.is_empty() {
            self.close_gate();
            busy = wait_until_out(busy, PASSED_PATIENCE, |user| {
                let is_user = |holder: &Holder| Arc::ptr_eq(&holder.ring, &user.ring);
                is_it(user.announced())
                    && self.users.lock().iter().any(is_user)
                    && may_be_in_a_call(user.pid)
            });
        }
        if !busy.is_empty() {
            return Err(StillCopying { count: busy.len() });
        }
        let mut keys = self.keys.lock();
        if let Some(is_taken) = keys.is_taken.get_mut(slot.0) {
            *is_taken = false;
        }
        Ok(())
    }

    /// Notes that a request to copy out of regions is withdrawn, if a process copies what it asks for.
    pub(crate) fn note_ended_pull(&self, id: u64, lkeys: Vec<u32>) {
        let is_copied = |id: u64| !self.busy(|word| word == PULLS | id).is_empty();
        if is_copied(id) {
            let mut ended = self.ended_pulls.lock();
            ended.retain(|pull| is_copied(pull.id));
            ended.push(EndedPull { id, lkeys });
        }
    }

    /// Waits until no process copies what withdrawn requests have asked for, out of one region.
    ///
    /// # Errors
    /// Processes may still be in a copy. Call it again.
    pub(crate) fn wait_for_pulls_of(&self, lkey: u32) -> Result<(), StillCopying> {
        let ended = self.ended_pulls.lock();
        let of_region = ended.iter().filter(|pull| pull.lkeys.contains(&lkey));
        let ids: Vec<u64> = of_region.map(|pull| pull.id).collect();
        drop(ended);
        let is_it = |word| ids.iter().any(|id| word == PULLS | id);
        let busy = wait_until_out(self.busy(is_it), PASSED_PATIENCE, |user| {
            is_it(user.announced()) && !has_ended(user.pid)
        });
        match busy.len() {
            0 => Ok(()),
            count => Err(StillCopying { count }),
        }
    }

    /// Copies that have not passed the gate yet change nothing. Later ones go through another gate.
    fn close_gate(&self) {
        let mut gate = self.gate.lock();
        // Unmap it before another one is told.
        drop(gate.take());
        *gate = Gate::new();
        tell(&self.mapping, gate.as_ref());
    }

    /// Frees kept memory that no process copies any more.
    pub(crate) fn let_go(&self) {
        self.forget_left();
        let mut keys = self.keys.lock();
        let Keys { is_taken, held } = &mut *keys;
        if held.is_empty() {
            return;
        }
        let users = self.users.lock();
        let is_user =
            |ring: &Arc<Mapping>| users.iter().any(|holder| Arc::ptr_eq(&holder.ring, ring));
        let free = held.extract_if(.., |held| {
            let slot = held.slot;
            held.by
                .retain(|user| is_user(&user.ring) && is_key(user.announced(), slot));
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
        // Free the memory without a lock.
        drop(free);
    }

    /// The announcements that match `is_it`.
    fn busy(&self, is_it: impl Fn(u64) -> bool) -> Vec<User> {
        let users = self.users.lock();
        let hazards = users.iter().flat_map(|holder| {
            let of_ring = (0..HAZARDS).map(move |hazard| (holder, hazard));
            of_ring.filter(|(holder, hazard)| is_it(hazard_of(&holder.ring, *hazard).announced()))
        });
        let busy = hazards.map(|(holder, hazard)| User {
            ring: Arc::clone(&holder.ring),
            hazard,
            pid: holder.pid,
        });
        busy.collect()
    }

    /// Waits until no announcement matches `is_it`. Returns those that still do after `patience`.
    fn wait_for(&self, is_it: impl Fn(u64) -> bool, patience: Duration) -> Vec<User> {
        wait_until_out(self.busy(&is_it), patience, |user| is_it(user.announced()))
    }
}

/// Whether a process announces a copy through the queue pair in a slot.
fn is_qp(word: u64, slot: Slot) -> bool {
    word & ANNOUNCED != 0 && qp_of(word) == slot
}

/// Whether a process announces a copy with the key in a slot.
fn is_key(word: u64, slot: Slot) -> bool {
    word & ANNOUNCED != 0 && key_of(word) == slot
}

/// Waits until none is busy any more. Returns those that still are after `patience`.
fn wait_until_out(
    mut busy: Vec<User>,
    patience: Duration,
    is_busy: impl Fn(&User) -> bool,
) -> Vec<User> {
    if busy.is_empty() {
        return busy;
    }
    let began = Instant::now();
    loop {
        busy.retain(&is_busy);
        if busy.is_empty() || began.elapsed() > patience {
            return busy;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Tells other processes where the gate is.
fn tell(mapping: &Mapping, gate: Option<&Gate>) {
    let addr = gate.map_or(0, Gate::addr);
    header(mapping).gate.store(addr, Ordering::Release);
}

#[cfg(test)]
#[path = "rights_tests.rs"]
mod tests;
