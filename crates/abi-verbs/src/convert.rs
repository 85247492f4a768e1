//! The seam's types and C's.

use portolan_wire::addr::Gid;

/// A GID as C's union of two words, bytes in their order.
pub(crate) fn words(gid: Gid) -> [u64; 2] {
    let (words, _) = gid.0.as_chunks::<8>();
    [words[0], words[1]].map(u64::from_ne_bytes)
}
