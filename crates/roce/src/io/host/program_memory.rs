//! Reads and writes of memory that the peer's program owns: the kernel copies it (process_vm_readv(2),
//! process_vm_writev(2)).

use std::ops::Range;

use crate::engine::{Direct, DirectOperation};
use crate::io::host::pieces;
use crate::io::net::shm::peer_memory::PeerMemory;
use crate::io::net::shm::peer_rights::Wanted;
use crate::io::net::shm::program_memory::PIECES_MAX;

/// Many shorter writes are faster as packets in the ring. A single one is not: the peer's program may not poll, because it
/// waits for the bytes in its memory.
pub(super) const WRITE_MIN: u32 = 4 << 10;

/// Bytes of the largest value that programs write as a whole.
const WORD: u32 = 8;

/// Writes a range of a request. Returns false if the request needs packets.
pub(super) fn write(
    peer: &PeerMemory,
    wanted: &Wanted,
    direct: &Direct<'_>,
    range: Range<u32>,
) -> bool {
    if direct.operation != DirectOperation::Write {
        return false;
    }
    let Some((pieces, count)) = pieces::list::<PIECES_MAX>(&direct.local, range.clone()) else {
        return false;
    };
    // The kernel copies a word of one piece at once, so another thread sees all of it or nothing.
    if direct.len <= WORD && count > 1 {
        return false;
    }
    let pieces = pieces.into_iter().take(count);
    peer.write_program(wanted, range, pieces).is_ok()
}

/// Reads a range of a request. Returns false if the request needs packets.
///
/// # Safety
/// This side's memory is mapped and may be written to.
#[allow(unsafe_code, reason = "copies to registered memory")]
pub(super) unsafe fn read(
    peer: &PeerMemory,
    wanted: &Wanted,
    direct: &Direct<'_>,
    range: Range<u32>,
) -> bool {
    if direct.operation != DirectOperation::Read {
        return false;
    }
    let Some((pieces, count)) = pieces::list::<PIECES_MAX>(&direct.local, range.clone()) else {
        return false;
    };
    let pieces = pieces.into_iter().take(count);
    // SAFETY: the caller's promise.
    unsafe { peer.read_program(wanted, range, pieces) }.is_ok()
}
