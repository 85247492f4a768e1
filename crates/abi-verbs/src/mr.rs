//! Memory regions.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::c_void;
use std::sync::Arc;

use portolan_provider::traits::Mr as ProviderMr;
use portolan_provider::verbs::Access;
use rustix::io::Errno;

use crate::guard::{Result, errno_of};
use crate::layout::{Mr, Pd, access};
use crate::object::{Held, Kind, end, make, next_handle, own};

/// A memory region.
pub(crate) struct OwnMr {
    mr: Arc<dyn ProviderMr>,
    _pd: Held,
}

impl Kind for Mr {
    type Whole = Self;
    type Own = OwnMr;
}

/// The seam's rights. What a device may leave out of account is left out; huge pages are pages.
///
/// # Errors
/// `EOPNOTSUPP` for rights that rdma_rxe does not have; `EINVAL` for rights of peers to write without the device's
/// own, as the kernel has it.
pub(crate) fn rights(flags: u32) -> Result<Access> {
    let seams = flags & !(access::OPTIONAL | access::HUGETLB | access::ZERO_BASED);
    let rights = Access::from_bits(seams).ok_or(Errno::OPNOTSUPP)?;
    let writes = rights.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    match writes && !rights.contains(Access::LOCAL_WRITE) {
        true => Err(Errno::INVAL),
        false => Ok(rights),
    }
}

/// The rights that a memory window opens to peers.
///
/// # Errors
/// `EOPNOTSUPP` for rights that there are not.
pub(crate) fn window_rights(flags: u32) -> Result<Access> {
    let seams = flags & !access::OPTIONAL;
    Access::from_bits(seams).ok_or(Errno::OPNOTSUPP)
}

/// Registers memory that work requests and peers find at `iova`.
///
/// # Errors
/// `EFAULT` for memory that is not mapped so; those of [`rights`].
///
/// # Safety
/// The domain is one of ours; the memory stays until the region's end.
pub(crate) unsafe fn register(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> Result<*mut Mr> {
    // SAFETY: the caller keeps `pd` until this is done.
    let domain = unsafe { own(pd) }?;
    let rights = rights(flags)?;
    let iova = if flags & access::ZERO_BASED != 0 {
        0
    } else {
        iova
    };
    // SAFETY: the caller leaves the memory to the region until that is deregistered.
    let mr = unsafe {
        domain
            .pd
            .register_at(addr.expose_provenance() as u64, length as u64, iova, rights)
    };
    let mr = mr.map_err(|error| errno_of(&error))?;
    let whole = Mr {
        // SAFETY: a domain of ours.
        context: unsafe { (*pd).context },
        pd,
        addr,
        length,
        handle: next_handle(),
        lkey: mr.lkey(),
        rkey: mr.rkey(),
    };
    let _pd = domain.users.hold();
    make(whole, OwnMr { mr, _pd })
}

/// # Errors
/// `EBUSY` while memory windows are bound to it; `EINVAL` if it ended before.
///
/// # Safety
/// Nobody uses it any more, if it succeeds.
pub(crate) unsafe fn deregister(mr: *mut Mr) -> Result<()> {
    let ending = end(mr)?;
    let done = ending.own().mr.deregister();
    done.map_err(|error| errno_of(&error))?;
    // SAFETY: nobody uses it but the caller, who ends it.
    unsafe { ending.free() };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_that_a_device_may_leave_out_are_left_out_and_unknown_ones_refused() {
        let relaxed_ordering = 1 << 20;
        assert_eq!(
            rights(1 | relaxed_ordering | access::HUGETLB),
            Ok(Access::LOCAL_WRITE)
        );
        assert_eq!(rights(access::ON_DEMAND), Err(Errno::OPNOTSUPP));
        assert_eq!(rights(2), Err(Errno::INVAL));
        assert_eq!(rights(4), Ok(Access::REMOTE_READ));
    }
}
