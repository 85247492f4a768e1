//! Builds packets for the kernel to send. Only this module reads the application's memory for that.

#![allow(unsafe_code, reason = "gathers from registered memory")]

use std::cell::RefCell;

use portolan_wire::icrc::{self, Flow};
use portolan_wire::rocev2::{Headers, ICRC_LEN};

use crate::engine::{Payload, Transmit};
use crate::io::host::memory_access;
use crate::io::net::send_batch::SendBatch;

/// Builds a packet in the batch: headers, payload, padding, ICRC.
///
/// The payload is copied first, so the ICRC matches the sent bytes even if the program changes its memory meanwhile.
/// Without a flow there is no ICRC, because the packet does not leave the host.
///
/// # Safety
/// The payload's segments are in registered regions, and the memory table has been locked for reading since that was
/// checked.
pub(crate) unsafe fn stage(
    batch: &mut SendBatch,
    transmit: &Transmit<'_>,
    flow: Option<&Flow>,
    coalesce: bool,
) {
    let len = transmit.udp_payload_len();
    let Some((place, identification)) = batch.stage(len, coalesce) else {
        return;
    };
    // SAFETY: the caller's promise.
    if unsafe { build(place, transmit, flow, identification) }.is_none() {
        debug_assert!(
            false,
            "the engine made headers that do not fit their opcode"
        );
        batch.unstage(len);
    }
}

/// # Safety
/// As for [`stage`].
unsafe fn build(
    place: &mut [u8],
    transmit: &Transmit<'_>,
    flow: Option<&Flow>,
    identification: u16,
) -> Option<()> {
    let headers_len = transmit.headers.emit(place).ok()?;
    let (payload, rest) = place
        .get_mut(headers_len..)?
        .split_at_mut_checked(transmit.payload.len())?;
    // SAFETY: the caller's promise.
    unsafe { memory_access::gather(&transmit.payload, payload) };
    rest.get_mut(..usize::from(transmit.headers.bth.pad_count))?
        .fill(0);
    match flow {
        Some(flow) => icrc::append(flow, identification, place).ok(),
        None => {
            *place.last_chunk_mut::<ICRC_LEN>()? = [0; ICRC_LEN];
            Some(())
        }
    }
}

/// Builds a packet without payload.
pub(crate) fn stage_headers(batch: &mut SendBatch, headers: Headers, flow: Option<&Flow>) {
    let transmit = Transmit {
        headers,
        payload: Payload::Inline(&[]),
        path: None,
    };
    // SAFETY: there are no segments.
    unsafe { stage(batch, &transmit, flow, false) };
}

/// Lends the thread's staging buffer. It is per thread, because there may be tens of thousands of queue pairs.
pub(crate) fn with_batch<R>(work: impl FnOnce(&mut SendBatch) -> R) -> R {
    thread_local! {
        static BATCH: RefCell<Option<Box<SendBatch>>> = const { RefCell::new(None) };
    }
    // The thread's locals may already be destroyed: use a new buffer then.
    let lent = BATCH
        .try_with(|batch| batch.try_borrow_mut().ok()?.take())
        .ok()
        .flatten();
    let mut batch = lent.unwrap_or_else(|| Box::new(SendBatch::new()));
    let result = work(&mut batch);
    batch.clear();
    let _ = BATCH.try_with(|slot| slot.try_borrow_mut().map(|mut slot| *slot = Some(batch)));
    result
}
