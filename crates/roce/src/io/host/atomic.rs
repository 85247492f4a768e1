//! Atomics and the answers to them through a ring, in their short form.

#![allow(unsafe_code, reason = "accesses registered memory and the ring")]

use std::time::Duration;

use portolan_wire::eth::{AtomicAckEthRepr, AtomicEthRepr};

use crate::engine::{Compact, CompactWords, MemoryTable, Payload, QueuePair};
use crate::io::host::memory_access;
use crate::io::net::shm::ring::Place;
use crate::io::net::transmit::OpenRing;

/// Begins the record of the next atomic or answer, whose payload it writes. The ring has room for it. `None` if there is
/// none.
#[inline(never)]
pub(super) fn begin_atomic(
    ring: &mut OpenRing<'_>,
    engine: &mut QueuePair,
    (now, memory): (Duration, &MemoryTable),
    compact: &mut Compact,
) -> Option<Place> {
    if let Some((dest_qp, answer, original)) = engine.poll_atomic_ack() {
        (compact.dest_qp, compact.atomic_ack) = (dest_qp, Some(answer));
        let mut value = [0; AtomicAckEthRepr::LEN];
        AtomicAckEthRepr { original }.emit(&mut value).ok()?;
        return begin_with(ring, &value);
    }
    let (dest_qp, atomic, operands) = engine.poll_atomic_request(now, memory)?;
    (compact.dest_qp, compact.atomic) = (dest_qp, Some(atomic));
    let mut bytes = [0; AtomicEthRepr::LEN];
    operands.emit(&mut bytes).ok()?;
    begin_with(ring, &bytes)
}

fn begin_with(ring: &mut OpenRing<'_>, payload: &[u8]) -> Option<Place> {
    let (place, addr) = ring.begin(payload.len())?;
    // SAFETY: `begin` reserved this many bytes at `addr`.
    unsafe { memory_access::gather_at(&Payload::Inline(payload), addr) };
    Some(place)
}

/// Takes an atomic, and executes it, or an answer, and stores its value. `payload` is the address of the record's payload
/// in the ring. Returns false, and changes nothing, if the packet must be handled instead.
#[inline(never)]
pub(super) fn take_atomic(
    engine: &mut QueuePair,
    (now, memory): (Duration, &MemoryTable),
    compact: &CompactWords,
    payload: u64,
) -> bool {
    if let Some(atomic) = compact.atomic() {
        // SAFETY: the reader checked that the payload, which is as long as the operands, lies in the ring.
        let bytes = unsafe { memory_access::read_payload::<{ AtomicEthRepr::LEN }>(payload) };
        let is_taken = engine.take_atomic(memory, &atomic, &AtomicEthRepr::from_bytes(&bytes));
        if is_taken && let Some(operation) = engine.poll_atomic() {
            // SAFETY: the engine checked address, alignment and rights against `memory` in the call above, and the table
            // has been locked since.
            let original = unsafe { memory_access::execute_atomic(operation) };
            engine.complete_atomic(original);
        }
        return is_taken;
    }
    let Some(answer) = compact.atomic_ack() else {
        return false;
    };
    // SAFETY: as above, for the value.
    let bytes = unsafe { memory_access::read_payload::<{ AtomicAckEthRepr::LEN }>(payload) };
    let AtomicAckEthRepr { original } = AtomicAckEthRepr::from_bytes(&bytes);
    let is_taken = engine.take_atomic_ack(now, memory, &answer, original);
    while let Some(placement) = engine.poll_placement() {
        if let Some(bytes) = placement.bytes(&[]) {
            // SAFETY: the engine checked the range against `memory` in the call above, and the table has been locked since.
            unsafe { memory_access::place(placement.addr, bytes) };
        }
    }
    is_taken
}
