//! Reads of memory that the peer's program owns: the kernel copies it (process_vm_readv(2)).

use std::ops::Range;

use crate::engine::{Direct, DirectOperation};
use crate::io::host::pieces::for_each_piece;
use crate::io::net::shm::peer_memory::PeerMemory;
use crate::io::net::shm::peer_rights::Wanted;
use crate::io::net::shm::program_memory::PIECES_MAX;

/// Pieces of this process's memory.
struct Pieces {
    all: [(u64, usize); PIECES_MAX],
    count: usize,
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
    let mut pieces = Pieces {
        all: [(0, 0); PIECES_MAX],
        count: 0,
    };
    let mut fits = true;
    // SAFETY: the pieces are only listed.
    unsafe {
        for_each_piece(&direct.local, range.clone(), |addr, _, len| {
            fits &= pieces.add(addr, len);
        });
    }
    let listed = pieces.all.into_iter().take(pieces.count);
    // SAFETY: the caller's promise.
    fits && unsafe { peer.read_program(wanted, range, listed) }.is_ok()
}

impl Pieces {
    /// Returns false if there are too many.
    fn add(&mut self, addr: u64, len: usize) -> bool {
        let Some(free) = self.all.get_mut(self.count) else {
            return false;
        };
        *free = (addr, len);
        self.count += 1;
        true
    }
}
