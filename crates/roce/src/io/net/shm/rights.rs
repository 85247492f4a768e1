//! What a process lets others do in its memory by themselves: a table in a file that they map for reading.
//!
//! It says which queue pairs take requests from which peers, and which keys open which parts of the process's memory
//! files. Only regions in memory files are in it, and only as many as have room: requests for everything else go by
//! packets. Each process that uses it announces in its own ring's file what it is copying by ([`Hazard`]); so a right
//! that is taken back is used no more once no such announcement is left. A process that is stopped in the middle of a
//! copy is waited for only so long. The memory is then kept until it is out of it.

#![allow(unsafe_code, reason = "atomics in memory that processes share")]

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use portolan_provider::verbs::Access;
use portolan_threads::lock::Mutex;
use portolan_wire::Qpn;
use rustix::io::Errno;

use super::hazard::{Hazard, Version};
use super::mapping::Mapping;
use super::memory_files::SharedPages;
use crate::engine::PdId;

/// Queue pairs that the table has places for; the place follows from the number.
const QPS: usize = 4096;
/// Keys that it has places for.
const KEYS: usize = 2048;
/// Places that a key may have.
const PROBES: usize = 8;
const QPS_AT: usize = 4096;
const KEYS_AT: usize = QPS_AT + QPS * size_of::<QpEntry>();
const FILE_LEN: usize = KEYS_AT + KEYS * size_of::<KeyEntry>();

/// Threads of a process that may copy at the same time.
pub(super) const HAZARDS: usize = 16;
/// Where their announcements are in a ring's file: each has a cache line of the writer's page.
const HAZARDS_AT: usize = 1024;
const LINE: usize = 64;
/// Announced: this is one, the place of the key, and the place of the queue pair.
const ANNOUNCED: u64 = 1 << 63;

/// How long whoever takes a key back waits for copies that are under way. A chunk takes less than a tenth of that.
const KEY_PATIENCE: Duration = Duration::from_millis(20);
/// How long whoever closes a queue pair waits for them.
const QP_PATIENCE: Duration = Duration::from_millis(5);

/// Rights that the table knows, in its own numbers.
const RIGHTS: [(Access, u32); 3] = [
    (Access::REMOTE_WRITE, 1),
    (Access::REMOTE_READ, 2),
    (Access::REMOTE_ATOMIC, 4),
];

/// Whether the table holds: it does not while a tap is to see every packet.
#[derive(Debug)]
struct Header {
    open: AtomicU32,
}

/// A queue pair that takes requests.
#[derive(Debug)]
struct QpEntry {
    /// Rights, its number and its peer's; 0 if there is none.
    word: AtomicU64,
    /// Protection domain, and the addresses' tag above it.
    domain: AtomicU64,
}

/// A key.
#[derive(Debug)]
#[repr(align(64))]
struct KeyEntry {
    version: Version,
    rkey: AtomicU32,
    pd: AtomicU32,
    rights: AtomicU32,
    file: AtomicU32,
    iova: AtomicU64,
    length: AtomicU64,
    offset: AtomicU64,
}

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

/// What a peer's request is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The queue pair that is asked, its peer, which asks, and their addresses' tag.
    pub(crate) qpn: Qpn,
    pub(crate) peer: Qpn,
    pub(crate) tag: u32,
    pub(crate) right: Access,
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
    pub(crate) len: u32,
}

/// Part of a memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) file: u32,
    pub(crate) offset: u64,
}

/// The place of a key or queue pair in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(usize);

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

pub(super) fn hazard_of(ring: &Mapping, index: usize) -> &Hazard {
    // SAFETY: every ring's file has the announcements there.
    let hazard = unsafe { ring.at(HAZARDS_AT + LINE * (index % HAZARDS)) };
    hazard.unwrap_or_else(|| unreachable!("a ring's file is longer"))
}

/// A number for the addresses of a connection, as the end at `local` sees it.
pub(crate) fn tag_of(local: IpAddr, remote: IpAddr) -> u32 {
    let octets = |ip: IpAddr| match ip.to_canonical() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let bytes = octets(local).into_iter().chain(octets(remote));
    // FNV-1a.
    bytes.fold(0x811c_9dc5, |tag, byte| {
        (tag ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

fn rights_of(access: Access) -> u32 {
    let given = RIGHTS.iter().filter(|(right, _)| access.contains(*right));
    given.map(|(_, bit)| bit).sum()
}

fn word_of(rights: u32, qpn: Qpn, peer: Qpn) -> u64 {
    u64::from(rights) << 48 | u64::from(qpn.value()) << 24 | u64::from(peer.value())
}

fn qp_slot(qpn: Qpn) -> Slot {
    Slot(qpn.value() as usize % QPS)
}

fn key_slots(rkey: u32) -> impl Iterator<Item = Slot> {
    // Keys are random numbers, but those of windows and regions differ in their lowest bytes alone.
    let first = (rkey ^ rkey >> 16) as usize;
    (0..PROBES).map(move |probe| Slot((first + probe) % KEYS))
}

fn header(mapping: &Mapping) -> &Header {
    // SAFETY: the first word of every table.
    let header = unsafe { mapping.at(0) };
    header.unwrap_or_else(|| unreachable!("a table is longer"))
}

fn qp_entry(mapping: &Mapping, Slot(slot): Slot) -> &QpEntry {
    // SAFETY: the queue pairs' places of every table.
    let entry = unsafe { mapping.at(QPS_AT + (slot % QPS) * size_of::<QpEntry>()) };
    entry.unwrap_or_else(|| unreachable!("a table has so many"))
}

fn key_entry(mapping: &Mapping, Slot(slot): Slot) -> &KeyEntry {
    // SAFETY: the keys' places of every table.
    let entry = unsafe { mapping.at(KEYS_AT + (slot % KEYS) * size_of::<KeyEntry>()) };
    entry.unwrap_or_else(|| unreachable!("a table has so many"))
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

fn key_of(word: u64) -> Slot {
    Slot((word >> 24 & 0x00FF_FFFF) as usize)
}

fn qp_of(word: u64) -> Slot {
    Slot((word & 0x00FF_FFFF) as usize)
}

/// Another process's table. What it says is not believed where it could do harm: the caller checks the place against
/// the file.
#[derive(Debug)]
pub(super) struct PeerRights(Mapping);

/// What a request is allowed by, before it was announced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    key: Slot,
    qp: Slot,
}

impl PeerRights {
    /// `None` if the file is no table.
    pub(super) fn open(file: BorrowedFd<'_>) -> Result<Option<Self>, Errno> {
        Ok(Mapping::open(file, FILE_LEN)?.map(Self))
    }

    /// Where to look for the key of a request, if there is any.
    #[inline]
    pub(super) fn find(&self, wanted: &Wanted) -> Option<Found> {
        let is_it = |slot: &Slot| {
            let entry = key_entry(&self.0, *slot);
            entry.rkey.load(Ordering::Relaxed) == wanted.rkey && entry.version.given().is_some()
        };
        Some(Found {
            key: key_slots(wanted.rkey).find(is_it)?,
            qp: qp_slot(wanted.qpn),
        })
    }

    /// Whether a request is allowed, and where its memory is. Its use was announced.
    #[inline]
    pub(super) fn check(&self, found: Found, wanted: &Wanted) -> Option<Place> {
        let right = rights_of(wanted.right);
        let header = header(&self.0);
        let qp = qp_entry(&self.0, found.qp);
        let word = qp.word.load(Ordering::Acquire);
        let domain = qp.domain.load(Ordering::Acquire);
        let numbers = word_of(0, wanted.qpn, wanted.peer);
        let is_for_it = word & ((1 << 48) - 1) == numbers
            && (word >> 48) as u32 & right == right
            && (domain >> 32) as u32 == wanted.tag
            && qp.word.load(Ordering::Relaxed) == word;
        if header.open.load(Ordering::Relaxed) != 1 || !is_for_it || right == 0 {
            return None;
        }
        let key = key_entry(&self.0, found.key);
        let version = key.version.given()?;
        let iova = key.iova.load(Ordering::Relaxed);
        let length = key.length.load(Ordering::Relaxed);
        let place = Place {
            file: key.file.load(Ordering::Relaxed),
            offset: key.offset.load(Ordering::Relaxed),
        };
        let is_allowed = key.rkey.load(Ordering::Relaxed) == wanted.rkey
            && key.pd.load(Ordering::Relaxed) == domain as u32
            && key.rights.load(Ordering::Relaxed) & right == right;
        if !is_allowed || !key.version.is_still(version) {
            return None;
        }
        let within = wanted.addr.checked_sub(iova)?;
        let end = within.checked_add(wanted.len.into())?;
        let offset = place.offset.checked_add(within)?;
        (end <= length).then_some(Place { offset, ..place })
    }
}

impl Found {
    /// What to announce.
    #[inline]
    pub(super) fn announcement(self) -> u64 {
        ANNOUNCED | (self.key.0 as u64) << 24 | self.qp.0 as u64
    }
}

#[cfg(test)]
#[path = "rights_tests.rs"]
mod tests;
