//! Looks up rights in another process's table.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use portolan_provider::verbs::Access;
use portolan_wire::Qpn;
use rustix::io::Errno;

use super::mapping::Mapping;
use super::program_memory::Testimony;
use super::rights_layout::{
    ANNOUNCED, FILE_LEN, PROGRAM, Slot, header, key_entry, key_slots, qp_entry, qp_slot, rights_of,
    word_of,
};

/// A request, for the check against a peer's table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The target queue pair, its peer (which asks), and their addresses' tag.
    pub(crate) qpn: Qpn,
    pub(crate) peer: Qpn,
    pub(crate) tag: u32,
    pub(crate) right: Access,
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
    pub(crate) len: u32,
}

/// A range of a memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) file: u32,
    pub(crate) offset: u64,
}

/// Another process's table. Its contents are not trusted: the caller checks the place against the file.
#[derive(Debug)]
pub(super) struct PeerRights(Mapping);

/// The right that allows a request, before its use is announced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    key: Slot,
    qp: Slot,
}

impl PeerRights {
    /// Opens a table. `None` if the file is not one.
    pub(super) fn open(file: BorrowedFd<'_>) -> Result<Option<Self>, Errno> {
        Ok(Mapping::open(file, FILE_LEN)?.map(Self))
    }

    /// What the table tells about its process.
    pub(super) fn testimony(&self) -> &Testimony {
        &header(&self.0).testimony
    }

    /// The address of the process's gate; 0 if it has none. Check the right after this.
    pub(super) fn gate(&self) -> u64 {
        header(&self.0).gate.load(Ordering::Acquire)
    }

    /// The version of a right, if it exists. While it stays the same, so does what it covers.
    pub(super) fn version(&self, found: Found) -> Option<u32> {
        key_entry(&self.0, found.key).version.given()
    }

    /// Whether the table allows anything.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        header(&self.0).open.load(Ordering::Relaxed) == 1
    }

    /// The slots of a request's key and queue pair, if the key exists.
    #[inline]
    pub(super) fn find(&self, wanted: &Wanted) -> Option<Found> {
        Some(Found {
            key: self.key(wanted.rkey)?,
            qp: qp_slot(wanted.qpn),
        })
    }

    /// Whether a key's memory is its program's. It may have changed when this returns.
    #[inline]
    pub(super) fn is_of_program(&self, rkey: u32) -> bool {
        let file = |slot| key_entry(&self.0, slot).file.load(Ordering::Relaxed);
        self.key(rkey).map(file) == Some(PROGRAM)
    }

    #[inline]
    fn key(&self, rkey: u32) -> Option<Slot> {
        key_slots(rkey).find(|slot| {
            let entry = key_entry(&self.0, *slot);
            entry.rkey.load(Ordering::Relaxed) == rkey && entry.version.given().is_some()
        })
    }

    /// Whether a request is allowed, and where its memory is. The use is announced before this.
    #[inline]
    pub(super) fn check(&self, found: Found, wanted: &Wanted) -> Option<Place> {
        let right = rights_of(wanted.right);
        let qp = qp_entry(&self.0, found.qp);
        let word = qp.word.load(Ordering::Acquire);
        let domain = qp.domain.load(Ordering::Acquire);
        let numbers = word_of(0, wanted.qpn, wanted.peer);
        let is_for_it = word & ((1 << 48) - 1) == numbers
            && (word >> 48) as u32 & right == right
            && (domain >> 32) as u32 == wanted.tag
            && qp.word.load(Ordering::Relaxed) == word;
        if !self.is_open() || !is_for_it || right == 0 {
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
    /// The announcement for this right.
    #[inline]
    pub(super) fn announcement(self) -> u64 {
        ANNOUNCED | (self.key.0 as u64) << 24 | self.qp.0 as u64
    }
}
