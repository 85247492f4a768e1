//! A descriptor that is readable while it rings.

use std::os::fd::OwnedFd;

use portolan_port_sharing::room::{self, with_room};
use portolan_provider::{Error, Result, Step};
use rustix::event::{EventfdFlags, eventfd};

/// Creates a bell that does not ring.
pub(super) fn make_bell() -> Result<OwnedFd> {
    with_room(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))
        .map_err(|errno| Error::new(Step::Event, room::cause("eventfd", errno)))
}

/// Makes it readable.
pub(super) fn ring(bell: &OwnedFd) {
    // Cannot overflow: it is written at most once between reads, or rings already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Makes it unreadable.
pub(super) fn silence(bell: &OwnedFd) {
    // Empty if it does not ring.
    let _ = rustix::io::read(bell, &mut [0u8; 8]);
}
