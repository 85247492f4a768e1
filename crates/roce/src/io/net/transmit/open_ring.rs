//! A ring to which a queue pair writes records in the short form.

use std::sync::atomic::Ordering;

use portolan_threads::{biased, fence};

use super::SendSocket;
use crate::engine::{Compact, CompactWords};
use crate::io::net::shm::bell::Doorbell;
use crate::io::net::shm::pull::Pull;
use crate::io::net::shm::ring::{Broken, Place, Writer};

/// A locked ring. Records are written one by one, and then shown to the reader all at once.
#[derive(Debug)]
pub(crate) struct OpenRing<'a> {
    writer: biased::MutexGuard<'a, Writer>,
    bell: &'a Doorbell,
    socket: &'a SendSocket,
    packets: usize,
    bytes: usize,
}

impl<'a> OpenRing<'a> {
    #[inline(always)]
    pub(super) fn new(
        socket: &'a SendSocket,
        writer: biased::MutexGuard<'a, Writer>,
        bell: &'a Doorbell,
    ) -> Self {
        Self {
            writer,
            bell,
            socket,
            packets: 0,
            bytes: 0,
        }
    }

    /// Whether there is room for a packet of `len` bytes.
    #[inline(always)]
    pub(crate) fn has_room(&mut self, len: usize) -> bool {
        match self.writer.has_room(len) {
            Ok(has_room) => has_room,
            Err(Broken) => {
                self.socket.close();
                false
            }
        }
    }

    /// Begins a record in the short form with a payload of `len` bytes. `None` if there is no room. The caller writes
    /// the payload to the address, and then calls [`end`](Self::end).
    #[inline(always)]
    pub(crate) fn begin(&mut self, len: usize) -> Option<(Place, u64)> {
        let place = self.writer.begin_compact(len).ok().flatten()?;
        let addr = self.writer.addr_of(&place);
        Some((place, addr))
    }

    /// Ends a record in the short form.
    #[inline(always)]
    pub(crate) fn end(&mut self, place: Place, compact: &Compact) {
        let words = CompactWords::of(compact);
        self.writer.end_compact(place, &words);
        let (packets, bytes) = words.traffic();
        self.packets += packets;
        self.bytes += bytes;
    }

    /// Writes a record about a write that is pulled. Returns false if there is no room.
    pub(crate) fn pull(&mut self, pull: &Pull) -> bool {
        match self.writer.pull(pull) {
            Ok(written) => written,
            Err(Broken) => {
                self.socket.close();
                false
            }
        }
    }

    /// Makes the packets visible to the reader, counts them, and unlocks the ring.
    #[inline]
    pub(crate) fn publish(mut self) {
        self.publish_with(|| fence(Ordering::SeqCst));
    }

    /// Unlocks it.
    #[inline(always)]
    pub(crate) fn unlock(self) {
        self.writer.unlock();
    }

    /// As [`publish`](Self::publish), once, with the caller's own sequentially consistent fence, which is not called if no
    /// record was ended. Leaves the ring locked.
    #[inline(always)]
    pub(crate) fn publish_with(&mut self, fence: impl FnOnce()) {
        let sleepers = self.writer.publish_with(fence);
        self.bell.wake(sleepers);
        self.socket.sent.add(self.packets, self.bytes);
    }
}
