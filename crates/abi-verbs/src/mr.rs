//! Memory regions.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::c_void;
use std::sync::Arc;

use portolan_provider::verbs::{Access, MrRange};
use portolan_threads::lock::Mutex;
use rustix::io::Errno;

use crate::file::{File, Region, RegionState};
use crate::guard::{Result, errno_of};
use crate::layout::{Mr, Pd, access, rereg_mr};
use crate::object::{Kind, end, make, next_handle, own};

/// A context's memory region.
pub(crate) struct OwnMr {
    region: Arc<Region>,
    /// The context's; the context may be closed first.
    file: Arc<File>,
}

impl Kind for Mr {
    type Whole = Self;
    type Own = OwnMr;
}

/// Converts access flags to the provider's. Flags that a device may ignore are ignored, and so is the one for huge
/// pages.
///
/// # Errors
/// `EOPNOTSUPP` for flags that rdma_rxe lacks; `EINVAL` for remote write access without local write access, as in the
/// kernel.
pub(crate) fn rights(flags: u32) -> Result<Access> {
    let rights = flags & !(access::OPTIONAL | access::HUGETLB | access::ZERO_BASED);
    let rights = Access::from_bits(rights).ok_or(Errno::OPNOTSUPP)?;
    let writes = rights.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    match writes && !rights.contains(Access::LOCAL_WRITE) {
        true => Err(Errno::INVAL),
        false => Ok(rights),
    }
}

/// The rights that a memory window grants to peers.
///
/// # Errors
/// `EOPNOTSUPP` for unsupported rights.
pub(crate) fn window_rights(flags: u32) -> Result<Access> {
    let rights = flags & !access::OPTIONAL;
    Access::from_bits(rights).ok_or(Errno::OPNOTSUPP)
}

/// Registers memory that work requests and peers address at `iova`.
///
/// # Errors
/// `EFAULT` for memory that is not mapped with these rights; errors of [`rights`].
///
/// # Safety
/// The domain is one of ours; the memory stays mapped until the region is deregistered.
pub(crate) unsafe fn register(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> Result<*mut Mr> {
    // SAFETY: the caller keeps `pd` alive during this call.
    let domain = unsafe { own(pd) }?;
    let rights = rights(flags)?;
    let iova = if flags & access::ZERO_BASED != 0 {
        0
    } else {
        iova
    };
    // SAFETY: the caller keeps the memory mapped until the region is deregistered.
    let mr = unsafe {
        domain
            .pd
            .register_at(addr.expose_provenance() as u64, length as u64, iova, rights)
    };
    let mr = mr.map_err(|error| errno_of(&error))?;
    let state = RegionState {
        pd: domain.users.hold(),
        length,
    };
    let state = Mutex::new(state);
    let region = Arc::new(Region { mr, state });
    let handle = next_handle();
    domain.file.mrs.insert(handle, &region);
    // SAFETY: as above.
    unsafe { make_mr(pd, addr, handle, region) }
}

/// Creates another structure for a region of the file of the domain's context. As the manual page says, it does not
/// contain the memory's address.
///
/// # Errors
/// `ENOENT` if no object has that handle.
///
/// # Safety
/// The domain is one of ours.
pub(crate) unsafe fn import(pd: *mut Pd, handle: u32) -> Result<*mut Mr> {
    // SAFETY: the caller keeps `pd` alive during this call.
    let region = unsafe { own(pd) }?.file.mrs.find(handle)?;
    // SAFETY: as above.
    unsafe { make_mr(pd, std::ptr::null_mut(), handle, region) }
}

/// # Safety
/// The domain is one of ours.
unsafe fn make_mr(
    pd: *mut Pd,
    addr: *mut c_void,
    handle: u32,
    region: Arc<Region>,
) -> Result<*mut Mr> {
    // SAFETY: the caller keeps `pd` alive during this call.
    let file = Arc::clone(unsafe { &own(pd)?.file });
    let whole = Mr {
        // SAFETY: as above.
        context: unsafe { (*pd).context },
        pd,
        addr,
        length: region.state.lock().length,
        handle,
        lkey: region.mr.lkey(),
        rkey: region.mr.rkey(),
    };
    Ok(make(whole, OwnMr { region, file }))
}

/// Changes the properties that the bits of `enum ibv_rereg_mr_flags` select.
///
/// # Errors
/// `EINVAL` for other bits or none, for no memory, or for rights without their bit; `EBUSY` while memory windows are
/// bound to the region; errors of [`register`]. An error leaves the region unchanged.
///
/// # Safety
/// Region and domain are ours; the memory stays mapped until the region is deregistered or changed again.
pub(crate) unsafe fn reregister(
    mr: *mut Mr,
    flags: u32,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access_flags: u32,
) -> Result<()> {
    let changes = |bit| flags & bit != 0;
    let moves = changes(rereg_mr::CHANGE_TRANSLATION);
    if flags & !rereg_mr::ALL != 0
        || flags == 0
        || (moves && (addr.is_null() || length == 0))
        || (access_flags != 0 && !changes(rereg_mr::CHANGE_ACCESS))
    {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller keeps `mr` alive during this call.
    let region = &unsafe { own(mr) }?.region;
    // One change at a time, so that the structure matches the region.
    let mut state = region.state.lock();
    // SAFETY: as above.
    let (context, old_pd) = unsafe { ((*mr).context, (*mr).pd) };
    let pd = if changes(rereg_mr::CHANGE_PD) {
        pd
    } else {
        old_pd
    };
    // SAFETY: as above, and of `pd`.
    let domain = unsafe { own(pd) }?;
    // SAFETY: as above.
    if unsafe { (*pd).context } != context {
        return Err(Errno::INVAL);
    }
    let start = addr.expose_provenance() as u64;
    let range = moves.then_some(MrRange {
        addr: start,
        length: length as u64,
        iova: match access_flags & access::ZERO_BASED {
            0 => start,
            _ => 0,
        },
    });
    let rights = changes(rereg_mr::CHANGE_ACCESS)
        .then(|| rights(access_flags))
        .transpose()?;
    // SAFETY: the caller keeps the memory mapped until the region changes again or is deregistered.
    let changed = unsafe { domain.pd.reregister(&region.mr, range, rights) };
    changed.map_err(|error| errno_of(&error))?;
    state.pd = domain.users.hold();
    // SAFETY: the program only reads the structure; we write it.
    unsafe {
        (*mr).pd = pd;
        if moves {
            state.length = length;
            ((*mr).addr, (*mr).length) = (addr, length);
        }
    }
    Ok(())
}

/// # Errors
/// `EBUSY` while memory windows are bound to it; `EINVAL` if it is already destroyed, `ENOENT` if it was destroyed
/// through another of its structures.
///
/// # Safety
/// After success it is not used.
pub(crate) unsafe fn deregister(mr: *mut Mr) -> Result<()> {
    let ending = end(mr)?;
    // SAFETY: it is our structure and not freed yet.
    let handle = unsafe { (*mr).handle };
    let deregister = |region: &Region| region.mr.deregister().map_err(|error| errno_of(&error));
    ending.own().file.mrs.end(handle, deregister)?;
    // SAFETY: only the caller uses it, and it is destroyed here.
    unsafe { ending.free() };
    Ok(())
}

/// Destroys the structure, but not the region.
///
/// # Errors
/// `EINVAL` if it is already destroyed.
///
/// # Safety
/// The structure is not used afterwards.
pub(crate) unsafe fn unimport(mr: *mut Mr) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { end(mr)?.free() };
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
