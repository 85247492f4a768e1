//! Completion queues.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};

use portolan_provider::traits::Cq as ProviderCq;
use portolan_provider::verbs::WorkCompletion;
use rustix::io::Errno;

use crate::acks::{Acks, Reported};
use crate::cq_ex;
use crate::guard::{Result, errno_of, number, pointer, value};
use crate::layout::{CompChannel, Context, Cq, CqEx, CqInitAttrEx, Wc, create_cq_wc_flags};
use crate::object::{Kind, Users, end, make, next_handle, own, own_place};
use crate::raisers::{Raiser, Raisers};
use crate::wc::{flags, immediate};

/// Maximum number of completions taken at once.
const BATCH: usize = 16;

/// Supported completion fields.
const KNOWN_WC_FLAGS: u64 = create_cq_wc_flags::STANDARD | STAMPS;
const STAMPS: u64 =
    create_cq_wc_flags::COMPLETION_TIMESTAMP | create_cq_wc_flags::COMPLETION_TIMESTAMP_WALLCLOCK;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`.
const MASK_FLAGS: u32 = 1;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`, and that an overrun does not matter.
const KNOWN_FLAGS: u32 = 3;

/// A completion queue.
pub(crate) struct OwnCq {
    /// Set from creation to destruction. Empty at first, because the queue's address identifies it on the channel and
    /// must exist before the provider's queue.
    cq: OnceLock<Arc<dyn ProviderCq>>,
    pub(crate) users: Users,
    pub(crate) comp_reported: Reported,
    pub(crate) async_reported: Reported,
    /// The context's; the context may be closed first.
    raisers: Arc<Raisers>,
    pub(crate) polling: cq_ex::Polling,
}

impl Kind for Cq {
    type Whole = CqEx;
    type Own = OwnCq;
}

impl OwnCq {
    /// The provider's queue.
    ///
    /// # Errors
    /// `EINVAL` if it is destroyed.
    #[inline]
    pub(crate) fn get(&self) -> Result<&Arc<dyn ProviderCq>> {
        self.cq.get().ok_or(Errno::INVAL)
    }
}

/// Creates a completion queue. Every queue is an extended one, even if the program does not use that.
///
/// # Errors
/// `EINVAL` for a size beyond the device's limit, or a completion vector other than 0.
///
/// # Safety
/// The context is open, and the channel is null or belongs to it.
pub(crate) unsafe fn create(
    context: *mut Context,
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    comp_vector: u32,
    wc_flags: u64,
) -> Result<*mut Cq> {
    // SAFETY: the caller keeps `context` alive during this call.
    let own_context = unsafe { own(context) }?;
    let (device, raisers) = (&own_context.device, &own_context.raisers);
    if comp_vector != 0 {
        return Err(Errno::INVAL);
    }
    let on = match channel.is_null() {
        true => None,
        // SAFETY: the program's channel.
        false => Some(unsafe { own(channel) }?),
    };
    let whole = cq_ex::whole(context, channel, cq_context, next_handle(), wc_flags);
    let own_cq = OwnCq {
        cq: OnceLock::new(),
        users: Users::default(),
        comp_reported: Reported::default(),
        async_reported: Reported::default(),
        raisers: Arc::clone(raisers),
        polling: cq_ex::Polling::new(Arc::clone(device)),
    };
    let cq: *mut Cq = make(whole, own_cq);
    let cookie = cq.expose_provenance() as u64;
    let on_channel = on.map(|on| &on.channel);
    let made = match wc_flags & STAMPS {
        0 => device.create_cq(cqe, on_channel, cookie),
        _ => device.create_stamping_cq(cqe, on_channel, cookie),
    };
    let made = match made {
        Ok(made) => made,
        Err(error) => {
            // SAFETY: created above; no other code has it.
            unsafe { end(cq)?.free() };
            return Err(errno_of(&error));
        }
    };
    raisers.cqs.lock().insert(made.number().0, Raiser(cq));
    // SAFETY: created above; the channel's counter is protected by its lock.
    unsafe {
        (*cq).cqe = c_int::try_from(made.capacity()).unwrap_or(c_int::MAX);
        let _ = own(cq)?.cq.set(made);
        if let Some(on) = on {
            let _taking = on.taking.lock();
            (*channel).refcnt += 1;
        }
    }
    Ok(cq)
}

/// `create_cq_ex` of the table.
pub(crate) unsafe extern "C" fn create_extended(
    context: *mut Context,
    attr: *mut CqInitAttrEx,
) -> *mut CqEx {
    pointer(|| {
        // SAFETY: the program's structure.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
        let flags = if attr.comp_mask & MASK_FLAGS != 0 {
            attr.flags
        } else {
            0
        };
        if attr.comp_mask & !MASK_FLAGS != 0
            || flags & !KNOWN_FLAGS != 0
            || attr.wc_flags & !KNOWN_WC_FLAGS != 0
        {
            return Err(Errno::OPNOTSUPP);
        }
        // SAFETY: the program's context and channel.
        let made = unsafe {
            create(
                context,
                attr.cqe,
                attr.cq_context,
                attr.channel,
                attr.comp_vector,
                attr.wc_flags,
            )
        };
        Ok(made?.cast())
    })
}

/// # Errors
/// `EBUSY` while queue pairs complete there; `EINVAL` if it is already destroyed, or another thread is destroying it.
///
/// # Safety
/// After success it is only used to acknowledge its events.
pub(crate) unsafe fn destroy(cq: *mut Cq) -> Result<()> {
    let ending = end(cq)?;
    ending.own().users.check_none()?;
    let number = ending.own().get()?.number().0;
    ending.own().raisers.cqs.lock().remove(&number);
    // SAFETY: as the caller promises, it is not polled any more, but events may still be acknowledged.
    unsafe {
        let channel = (*cq).channel;
        let given_back = || {
            let place = &mut (*own_place(cq)).cq;
            place.take()
        };
        if channel.is_null() {
            drop(given_back());
        } else {
            let _taking = (own(channel)?.taking).lock();
            // Its pending event is dropped with it.
            drop(given_back());
            (*channel).refcnt -= 1;
        }
        let acks = comp_acks(cq);
        acks.wait(&ending.own().comp_reported);
        async_acks(cq).wait(&ending.own().async_reported);
        ending.free();
    }
    Ok(())
}

/// # Safety
/// The queue is one of ours.
unsafe fn comp_acks(cq: *mut Cq) -> Acks {
    // SAFETY: as the caller promises; this only computes addresses.
    unsafe {
        Acks {
            mutex: &raw mut (*cq).mutex,
            cond: &raw mut (*cq).cond,
            completed: &raw mut (*cq).comp_events_completed,
        }
    }
}

/// # Safety
/// The queue is one of ours.
pub(crate) unsafe fn async_acks(cq: *mut Cq) -> Acks {
    // SAFETY: as the caller promises; this only computes addresses.
    unsafe {
        Acks {
            mutex: &raw mut (*cq).mutex,
            cond: &raw mut (*cq).cond,
            completed: &raw mut (*cq).async_events_completed,
        }
    }
}

/// # Safety
/// The queue is one of ours, and has that many unacknowledged events.
pub(crate) unsafe fn acknowledge(cq: *mut Cq, count: u32) {
    // SAFETY: as the caller promises. In a forked child the copy's mutex may stay locked.
    if count > 0 && unsafe { own(cq) }.is_ok() {
        // SAFETY: an unacknowledged event keeps its queue alive.
        unsafe { comp_acks(cq).add(count) };
    }
}

/// # Errors
/// `EINVAL` for fewer entries than are queued, or more than the device supports.
///
/// # Safety
/// The queue is one of ours.
pub(crate) unsafe fn resize(cq: *mut Cq, cqe: c_int) -> Result<()> {
    // SAFETY: the caller keeps `cq` alive during this call.
    let own_cq = unsafe { own(cq) }?.get()?;
    let cqe = u32::try_from(cqe).map_err(|_| Errno::INVAL)?;
    own_cq.resize(cqe).map_err(|error| errno_of(&error))?;
    // SAFETY: as above.
    unsafe { (*cq).cqe = c_int::try_from(own_cq.capacity()).unwrap_or(c_int::MAX) };
    Ok(())
}

/// `poll_cq` of the table: drives the device if the queue is empty.
pub(crate) unsafe extern "C" fn poll(cq: *mut Cq, room: c_int, into: *mut Wc) -> c_int {
    value(-1, || {
        let Ok(room) = usize::try_from(room) else {
            return -1;
        };
        // SAFETY: the program's queue.
        let Ok(own_cq) = unsafe { own(cq) }.and_then(OwnCq::get) else {
            return -1;
        };
        // Most programs poll one completion at a time.
        let taken = match room {
            1 => take::<1>(own_cq.as_ref(), room, into),
            _ => take::<BATCH>(own_cq.as_ref(), room, into),
        };
        taken.unwrap_or(-1)
    })
}

/// Takes completions in batches of `N`.
#[inline]
fn take<const N: usize>(cq: &dyn ProviderCq, room: usize, into: *mut Wc) -> Result<c_int> {
    let mut batch = [WorkCompletion::EMPTY; N];
    let mut taken = 0;
    while taken < room {
        let wanted = N.min(room - taken);
        let found = match cq.poll(&mut batch[..wanted]) {
            Ok(found) => found,
            // Return the completions already taken.
            Err(_) if taken > 0 => break,
            Err(error) => return Err(errno_of(&error)),
        };
        for (at, completion) in batch[..found].iter().enumerate() {
            // SAFETY: the program's array has room for that many.
            unsafe { into.add(taken + at).write(wc(completion)) };
        }
        taken += found;
        if found < wanted {
            break;
        }
    }
    Ok(taken as c_int)
}

fn wc(from: &WorkCompletion) -> Wc {
    Wc {
        wr_id: from.wr_id,
        status: from.status as u32,
        opcode: from.opcode as u32,
        vendor_err: 0,
        byte_len: from.byte_len,
        imm_data: immediate(from),
        qp_num: from.qp_num.value(),
        src_qp: from.src_qp.value(),
        wc_flags: flags(from),
        pkey_index: 0,
        slid: 0,
        sl: from.sl,
        dlid_path_bits: 0,
    }
}

/// `req_notify_cq` of the table.
pub(crate) unsafe extern "C" fn request_notification(cq: *mut Cq, solicited_only: c_int) -> c_int {
    number(|| {
        // SAFETY: the program's queue.
        let own_cq = unsafe { own(cq) }?.get()?;
        own_cq
            .arm(solicited_only != 0)
            .map_err(|error| errno_of(&error))
    })
}
