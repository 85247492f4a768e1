//! Extended completion queues: a program iterates over completions and reads them field by field.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use portolan_provider::traits::Device as ProviderDevice;
use portolan_provider::verbs::{WcStatus, WorkCompletion};
use rustix::io::Errno;

use crate::acks::FRESH;
use crate::guard::{Result, errno_of, number, value};
use crate::layout::create_cq_wc_flags::{COMPLETION_TIMESTAMP, COMPLETION_TIMESTAMP_WALLCLOCK};
use crate::layout::{CompChannel, Context, Cq, CqEx, PollCqAttr};
use crate::object::own;
use crate::wc::{flags, immediate};

/// An iteration over the completions of a queue. The thread that starts it holds the lock until it ends.
pub(crate) struct Polling {
    /// The queue's device; the queue's context may be closed first.
    device: Arc<dyn ProviderDevice>,
    lock: UnsafeCell<libc::pthread_mutex_t>,
    /// Accessed only by the lock's holder, like the next field.
    current: Cell<WorkCompletion>,
    /// The wall clock time, since 1970, at which the device's clock was 0; used by queues with wall clock times.
    clock_epoch: Cell<Duration>,
}

impl Polling {
    pub(crate) fn new(device: Arc<dyn ProviderDevice>) -> Self {
        Self {
            device,
            lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            current: Cell::new(WorkCompletion::EMPTY),
            clock_epoch: Cell::new(Duration::ZERO),
        }
    }

    fn lock(&self) {
        // SAFETY: the mutex is initialized and does not move.
        unsafe { libc::pthread_mutex_lock(self.lock.get()) };
    }

    /// # Safety
    /// This thread holds the lock.
    unsafe fn unlock(&self) {
        // SAFETY: this thread holds the lock.
        unsafe { libc::pthread_mutex_unlock(self.lock.get()) };
    }
}

/// The C structure of a queue, without its size.
pub(crate) fn whole(
    context: *mut Context,
    channel: *mut CompChannel,
    cq_context: *mut c_void,
    handle: u32,
    wc_flags: u64,
) -> CqEx {
    type Read = unsafe extern "C" fn(*mut CqEx) -> u64;
    let wanted = |flag, read: Read| (wc_flags & flag != 0).then_some(read);
    let (mutex, cond) = FRESH;
    CqEx {
        context,
        channel,
        cq_context,
        handle,
        mutex,
        cond,
        status: WcStatus::GeneralErr as u32,
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_none),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_none),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_no_byte),
        read_completion_ts: wanted(COMPLETION_TIMESTAMP, read_timestamp),
        read_completion_wallclock_ns: wanted(COMPLETION_TIMESTAMP_WALLCLOCK, read_wallclock),
        ..CqEx::zeroed()
    }
}

/// Takes the next completion.
///
/// # Errors
/// `ENOENT` if the queue is empty.
///
/// # Safety
/// The queue is one of ours, and this thread has started an iteration on it.
unsafe fn take(of: *mut CqEx) -> Result<()> {
    // SAFETY: a queue with an iteration is not destroyed.
    let own_cq = unsafe { own(of.cast::<Cq>()) }?;
    let mut taken = [WorkCompletion::EMPTY];
    let found = own_cq.get()?.poll(&mut taken);
    if found.map_err(|error| errno_of(&error))? == 0 {
        return Err(Errno::NOENT);
    }
    // SAFETY: the iterating thread may access the fields.
    unsafe {
        (*of).status = taken[0].status as u32;
        (*of).wr_id = taken[0].wr_id;
    }
    own_cq.polling.current.set(taken[0]);
    Ok(())
}

unsafe extern "C" fn start_poll(of: *mut CqEx, attr: *mut PollCqAttr) -> c_int {
    number(|| {
        // SAFETY: null, or the program's.
        if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
            return Err(Errno::INVAL);
        }
        // SAFETY: the program's queue.
        let polling = &unsafe { own(of.cast::<Cq>()) }?.polling;
        polling.lock();
        // SAFETY: the field is written once, before the program gets the queue.
        if unsafe { (*of).read_completion_wallclock_ns }.is_some() {
            polling.clock_epoch.set(clock_epoch(&*polling.device));
        }
        // SAFETY: locked in this thread just before.
        unsafe { take(of).inspect_err(|_| polling.unlock()) }
    })
}

/// The wall clock time, since 1970, at which the device's clock was 0. Read once per iteration, so that within one,
/// later completions have later times even if the wall clock is set back.
fn clock_epoch(device: &dyn ProviderDevice) -> Duration {
    let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let clock = Duration::from_nanos(device.clock_ns().unwrap_or_default());
    since_1970.saturating_sub(clock)
}

unsafe extern "C" fn next_poll(of: *mut CqEx) -> c_int {
    // SAFETY: the program has begun.
    number(|| unsafe { take(of) })
}

unsafe extern "C" fn end_poll(of: *mut CqEx) {
    value((), || {
        // SAFETY: the program's queue, on which this thread has started an iteration.
        unsafe {
            if let Ok(own_cq) = own(of.cast::<Cq>()) {
                own_cq.polling.unlock();
            }
        }
    });
}

/// The current completion of an iteration.
fn current(of: *mut CqEx) -> WorkCompletion {
    // SAFETY: the program's queue, on which this thread has started an iteration.
    let own_cq = unsafe { own(of.cast::<Cq>()) };
    own_cq.map_or(WorkCompletion::EMPTY, |own_cq| own_cq.polling.current.get())
}

unsafe extern "C" fn read_opcode(of: *mut CqEx) -> c_uint {
    current(of).opcode as u32
}

unsafe extern "C" fn read_byte_len(of: *mut CqEx) -> u32 {
    current(of).byte_len
}

unsafe extern "C" fn read_imm_data(of: *mut CqEx) -> u32 {
    immediate(&current(of))
}

unsafe extern "C" fn read_qp_num(of: *mut CqEx) -> u32 {
    current(of).qp_num.value()
}

unsafe extern "C" fn read_src_qp(of: *mut CqEx) -> u32 {
    current(of).src_qp.value()
}

unsafe extern "C" fn read_wc_flags(of: *mut CqEx) -> c_uint {
    flags(&current(of))
}

unsafe extern "C" fn read_timestamp(of: *mut CqEx) -> u64 {
    current(of).timestamp_ns
}

unsafe extern "C" fn read_wallclock(of: *mut CqEx) -> u64 {
    // SAFETY: the program's queue, on which this thread has started an iteration.
    let own_cq = unsafe { own(of.cast::<Cq>()) };
    let epoch = own_cq.map_or(Duration::ZERO, |own_cq| own_cq.polling.clock_epoch.get());
    u64::try_from(epoch.as_nanos())
        .unwrap_or(u64::MAX)
        .saturating_add(current(of).timestamp_ns)
}

/// Fields that the device lacks: the vendor's error, a LID.
unsafe extern "C" fn read_none(_of: *mut CqEx) -> u32 {
    0
}

unsafe extern "C" fn read_sl(of: *mut CqEx) -> u8 {
    current(of).sl
}

/// Path bits.
unsafe extern "C" fn read_no_byte(_of: *mut CqEx) -> u8 {
    0
}
