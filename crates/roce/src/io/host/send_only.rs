//! Writes single-packet sends and their acknowledgements directly into a ring.
//!
//! This saves building them in a batch first. All other packets go through a batch.

#![allow(unsafe_code, reason = "gathers from registered memory")]

use std::time::Duration;

use portolan_wire::bth;
use portolan_wire::eth::{AethRepr, ImmDtRepr};
use portolan_wire::rocev2::ICRC_LEN;

use crate::engine::{MemoryTable, SendOnly};
use crate::io::host::Host;
use crate::io::host::memory_access;
use crate::io::host::queue_pair::LockedQp;
use crate::io::net::path::Path;
use crate::io::net::transmit::{OpenRing, SendSocket};

/// The longest of these packets.
const LEN_MAX: usize = bth::LEN + ImmDtRepr::LEN + 4096 + 3 + ICRC_LEN;

impl Host {
    /// Sends the packets that can be written directly into the ring. Does nothing without a ring, or with a tap.
    pub(super) fn transmit_sends(
        &self,
        state: &mut LockedQp,
        link: &SendSocket,
        path: &Path,
        now: Duration,
        memory: &MemoryTable,
    ) {
        if self.monitor.tap.is_plugged() {
            return;
        }
        let Some(mut ring) = link.open_ring(path) else {
            return;
        };
        while ring.has_room(LEN_MAX)
            && let Some(send) = state.engine.poll_send_only(now, memory)
        {
            // SAFETY: the engine checked the segments against `memory` in the call above, and the table is locked while
            // the reference to it exists.
            unsafe { write_send(&mut ring, &send) };
        }
        if ring.has_room(LEN_MAX)
            && let Some((bth, aeth)) = state.engine.poll_acknowledgement()
        {
            let mut headers = [0; bth::LEN + AethRepr::LEN];
            let written = bth.emit(&mut headers);
            let (_, rest) = headers.split_at_mut(bth::LEN);
            if written.and_then(|_| aeth.emit(rest)).is_ok() {
                ring.write(&headers, ICRC_LEN, |_| {});
            }
        }
        ring.publish(&self.monitor);
    }
}

/// # Safety
/// The segments of the payload lie in registered regions, and the memory table is locked for reading since that was
/// checked.
unsafe fn write_send(ring: &mut OpenRing<'_>, send: &SendOnly<'_>) {
    let mut headers = [0; bth::LEN + ImmDtRepr::LEN];
    let (base, rest) = headers.split_at_mut(bth::LEN);
    // Neither call can fail, because the engine's headers are valid.
    let mut len = send.bth.emit(base).unwrap_or_default();
    if let Some(immediate) = &send.immediate {
        len += immediate.emit(rest).unwrap_or_default();
    }
    let payload_len = send.payload.len();
    // Padding and ICRC.
    let tail_len = usize::from(send.bth.pad_count) + ICRC_LEN;
    let headers = headers.get(..len).unwrap_or_default();
    ring.write(headers, payload_len + tail_len, |addr| {
        // SAFETY: by the caller's promise; `ring.write` reserved this many bytes at `addr`.
        unsafe {
            memory_access::gather_at(&send.payload, addr);
            memory_access::clear(addr + payload_len as u64, tail_len);
        }
    });
}
