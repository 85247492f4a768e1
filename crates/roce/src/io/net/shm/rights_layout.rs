//! The layout of a table of rights in its file, and of a process's announcements in its ring's file.
//!
//! Builds by different compilers share the files, so every structure in one is laid out as in C.

#![allow(unsafe_code, reason = "atomics in memory that processes share")]

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64};

use portolan_provider::verbs::Access;
use portolan_wire::Qpn;

use super::hazard::{Hazard, Version};
use super::mapping::Mapping;
use super::program_memory::Testimony;

/// Slots for queue pairs. The number of a queue pair selects its slot.
pub(super) const QPS: usize = 4096;
/// Slots for keys.
pub(super) const KEYS: usize = 2048;
/// Slots that one key may use.
pub(super) const PROBES: usize = 8;
pub(super) const QPS_AT: usize = 4096;
pub(super) const KEYS_AT: usize = QPS_AT + QPS * size_of::<QpEntry>();
pub(super) const FILE_LEN: usize = KEYS_AT + KEYS * size_of::<KeyEntry>();

/// Maximum of threads of a process that copy at the same time.
pub(super) const HAZARDS: usize = 16;
/// Offset of the announcements in a ring's file. Each has a cache line of the writer's page.
pub(super) const HAZARDS_AT: usize = 1024;
pub(super) const LINE: usize = 64;
/// An announcement: this bit, the slot of the key, and the slot of the queue pair.
pub(super) const ANNOUNCED: u64 = 1 << 63;
/// The announcement of a copy out of the memory of the process that asked for it: this bit, and the request's number.
pub(super) const PULLS: u64 = 1 << 62;

/// Instead of the number of a file: memory that the program owns. Its offset is its address.
pub(super) const PROGRAM: u32 = u32::MAX;

/// The rights in the table, and their bits.
pub(super) const RIGHTS: [(Access, u32); 3] = [
    (Access::REMOTE_WRITE, 1),
    (Access::REMOTE_READ, 2),
    (Access::REMOTE_ATOMIC, 4),
];

/// Whether the table is valid. It is not while a tap must see every packet.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Header {
    pub(super) open: AtomicU32,
    /// The witness of the process whose table it is.
    pub(super) testimony: Testimony,
    /// The address of the process's gate; 0 if it has none.
    pub(super) gate: AtomicU64,
}

/// A queue pair that accepts requests.
#[derive(Debug)]
#[repr(C)]
pub(super) struct QpEntry {
    /// Rights, its number and its peer's; 0 for an empty slot.
    pub(super) word: AtomicU64,
    /// Protection domain, with the addresses' tag above it.
    pub(super) domain: AtomicU64,
}

#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct KeyEntry {
    pub(super) version: Version,
    pub(super) rkey: AtomicU32,
    pub(super) pd: AtomicU32,
    pub(super) rights: AtomicU32,
    pub(super) file: AtomicU32,
    pub(super) iova: AtomicU64,
    pub(super) length: AtomicU64,
    pub(super) offset: AtomicU64,
}

/// The slot of a key or queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub(super) usize);

#[inline]
pub(super) fn hazard_of(ring: &Mapping, index: usize) -> &Hazard {
    // SAFETY: every ring's file has announcements there.
    let hazard = unsafe { ring.at(HAZARDS_AT + LINE * (index % HAZARDS)) };
    hazard.unwrap_or_else(|| unreachable!("a ring's file is longer"))
}

/// A hash of the addresses of a connection, from the end at `local`.
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

#[inline]
pub(super) fn rights_of(access: Access) -> u32 {
    let given = RIGHTS.iter().filter(|(right, _)| access.contains(*right));
    given.map(|(_, bit)| bit).sum()
}

#[inline]
pub(super) fn word_of(rights: u32, qpn: Qpn, peer: Qpn) -> u64 {
    u64::from(rights) << 48 | u64::from(qpn.value()) << 24 | u64::from(peer.value())
}

#[inline]
pub(super) fn qp_slot(qpn: Qpn) -> Slot {
    Slot(qpn.value() as usize % QPS)
}

#[inline]
pub(super) fn key_slots(rkey: u32) -> impl Iterator<Item = Slot> {
    // Keys are random, but keys of windows and regions differ only in their lowest bytes.
    let first = (rkey ^ rkey >> 16) as usize;
    (0..PROBES).map(move |probe| Slot((first + probe) % KEYS))
}

#[inline]
pub(super) fn header(mapping: &Mapping) -> &Header {
    // SAFETY: the header is the first word of every table.
    let header = unsafe { mapping.at(0) };
    header.unwrap_or_else(|| unreachable!("a table is longer"))
}

#[inline]
pub(super) fn qp_entry(mapping: &Mapping, Slot(slot): Slot) -> &QpEntry {
    // SAFETY: every table has its queue pairs there.
    let entry = unsafe { mapping.at(QPS_AT + (slot % QPS) * size_of::<QpEntry>()) };
    entry.unwrap_or_else(|| unreachable!("a table has so many"))
}

#[inline]
pub(super) fn key_entry(mapping: &Mapping, Slot(slot): Slot) -> &KeyEntry {
    // SAFETY: every table has its keys there.
    let entry = unsafe { mapping.at(KEYS_AT + (slot % KEYS) * size_of::<KeyEntry>()) };
    entry.unwrap_or_else(|| unreachable!("a table has so many"))
}

pub(super) fn key_of(word: u64) -> Slot {
    Slot((word >> 24 & 0x00FF_FFFF) as usize)
}

pub(super) fn qp_of(word: u64) -> Slot {
    Slot((word & 0x00FF_FFFF) as usize)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_table_lies_as_every_build_has_it() {
        assert_eq!(
            [offset_of!(QpEntry, word), offset_of!(QpEntry, domain)],
            [0, 8]
        );
        let words = [
            offset_of!(KeyEntry, version),
            offset_of!(KeyEntry, rkey),
            offset_of!(KeyEntry, pd),
            offset_of!(KeyEntry, rights),
            offset_of!(KeyEntry, file),
        ];
        assert_eq!(words, [0, 4, 8, 12, 16]);
        let numbers = [
            offset_of!(KeyEntry, iova),
            offset_of!(KeyEntry, length),
            offset_of!(KeyEntry, offset),
        ];
        assert_eq!(numbers, [24, 32, 40]);
        assert_eq!((size_of::<QpEntry>(), size_of::<KeyEntry>()), (16, 64));
    }
}
