//! Work requests that a program builds by calls (ibv_wr_post(3)): started, set up one by one, and posted together.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::cell::{RefCell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::ptr;

use portolan_provider::verbs::{
    QpType, RemoteAddr, SendData, SendFlags, SendOp, SendWr, Sge as ProviderSge, Srqn,
    UdDestination,
};
use portolan_provider::{Cause, Error, Step};
use portolan_roce::io::SoftQp;
use portolan_wire::addr::{QKey, Qpn};
use rustix::io::Errno;

use crate::acks::FRESH;
use crate::guard::{Result, errno_of, number, value};
use crate::layout::{Ah, Bind, Context, DataBuf, Mw, MwBindInfo, Pd, Qp, QpEx, QpInitAttr, Sge};
use crate::object::own;
use crate::post;

/// Maximum number of work requests started at once. More than a send queue holds would be refused at posting anyway.
const BEGUN_MAX: usize = 1 << 14;
/// Capacity for work requests and elements that is kept between batches.
const KEPT_MAX: usize = 256;
/// Maximum number of scatter/gather elements of one request.
const PIECES_MAX: usize = 32;
/// `IBV_QP_EX_WITH_…` of all operations: writes, sends, read, atomics, windows.
const ALL_OPERATIONS: u64 = 0x3FF;
/// `IBV_QPT_UC`, and its operations: neither read nor atomics.
const UC: (u32, u64) = (3, 0x38F);
/// `IBV_QPT_UD`, and its operations: sends.
const UD: (u32, u64) = (4, 0xC);

/// # Errors
/// `EOPNOTSUPP` for operations that queue pairs of this type lack.
pub(crate) fn check_operations(qp_type: u32, wanted: u64) -> Result<()> {
    let known = [UC, UD].into_iter().find(|known| known.0 == qp_type);
    match wanted & !known.map_or(ALL_OPERATIONS, |known| known.1) {
        0 => Ok(()),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// The work requests that a program is building. The thread that starts holds the lock until they are posted or
/// aborted.
pub(crate) struct Building {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    begun: RefCell<Begun>,
    inline_max: usize,
}

#[derive(Default)]
struct Begun {
    requests: Vec<Request>,
    pieces: Vec<ProviderSge>,
    inline: Vec<u8>,
    /// The first error.
    failed: Option<Errno>,
}

struct Request {
    wr_id: u64,
    flags: SendFlags,
    op: SendOp,
    data: Data,
    /// Where its elements and its inline data start; it has one of the two.
    begins: (usize, usize),
    ah: *mut Ah,
    qpn: u32,
    qkey: u32,
    srq: Option<Srqn>,
}

/// Ranges within the requests being built.
enum Data {
    Pieces(usize, usize),
    Inline(usize, usize),
}

impl Building {
    pub(crate) fn new(inline_max: usize) -> Self {
        Self {
            lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            begun: RefCell::default(),
            inline_max,
        }
    }

    /// # Safety
    /// This thread holds the lock, from [`start`].
    unsafe fn unlock(&self) {
        // SAFETY: this thread holds the lock.
        unsafe { libc::pthread_mutex_unlock(self.lock.get()) };
    }
}

/// The C structure of a queue pair.
pub(crate) fn whole(
    context: *mut Context,
    pd: *mut Pd,
    attr: &QpInitAttr,
    handle: u32,
    qp_num: u32,
) -> QpEx {
    let (mutex, cond) = FRESH;
    let qp_base = Qp {
        context,
        qp_context: attr.qp_context,
        pd,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        handle,
        qp_num,
        qp_type: attr.qp_type,
        mutex,
        cond,
        ..Qp::zeroed()
    };
    QpEx {
        qp_base,
        wr_atomic_cmp_swp: Some(atomic_cmp_swp),
        wr_atomic_fetch_add: Some(atomic_fetch_add),
        wr_bind_mw: Some(bind_mw),
        wr_local_inv: Some(local_inv),
        wr_rdma_read: Some(rdma_read),
        wr_rdma_write: Some(rdma_write),
        wr_rdma_write_imm: Some(rdma_write_imm),
        wr_send: Some(send),
        wr_send_imm: Some(send_imm),
        wr_send_inv: Some(send_inv),
        wr_set_ud_addr: Some(set_ud_addr),
        wr_set_xrc_srqn: Some(set_xrc_srqn),
        wr_set_inline_data: Some(set_inline_data),
        wr_set_inline_data_list: Some(set_inline_data_list),
        wr_set_sge: Some(set_sge),
        wr_set_sge_list: Some(set_sge_list),
        wr_start: Some(start),
        wr_complete: Some(complete),
        wr_abort: Some(abort),
        ..QpEx::zeroed()
    }
}

/// Changes the request being built; an error is reported at posting.
fn change(qp: *mut QpEx, change: impl FnOnce(&mut Begun, &Building) -> Result<()>) {
    value((), || {
        // SAFETY: the program's queue pair, on which it has started.
        let Ok(own_qp) = (unsafe { own(qp.cast::<Qp>()) }) else {
            return;
        };
        let building = &own_qp.building;
        let mut begun = building.begun.borrow_mut();
        // The batch will not be posted, so store nothing more.
        if begun.failed.is_some() {
            return;
        }
        if let Err(errno) = change(&mut begun, building) {
            begun.failed.get_or_insert(errno);
        }
    });
}

/// Starts a request with the fields that the program has set on the queue pair.
fn begin(qp: *mut QpEx, op: Result<SendOp>) {
    // SAFETY: the program's queue pair; the fields are its own.
    let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    change(qp, |begun, _| {
        if begun.requests.len() >= BEGUN_MAX {
            return Err(Errno::NOMEM);
        }
        let begins = (begun.pieces.len(), begun.inline.len());
        begun.requests.push(Request {
            wr_id,
            flags: SendFlags::from_bits_truncate(flags),
            op: op?,
            data: Data::Pieces(0, 0),
            begins,
            ah: ptr::null_mut(),
            qpn: 0,
            qkey: 0,
            srq: None,
        });
        Ok(())
    });
}

unsafe extern "C" fn start(qp: *mut QpEx) {
    value((), || {
        // SAFETY: the program's queue pair.
        if let Ok(own_qp) = unsafe { own(qp.cast::<Qp>()) } {
            // SAFETY: the mutex is initialized and does not move.
            unsafe { libc::pthread_mutex_lock(own_qp.building.lock.get()) };
            own_qp.building.begun.borrow_mut().clear();
        }
    });
}

unsafe extern "C" fn abort(qp: *mut QpEx) {
    value((), || {
        // SAFETY: the program's queue pair, on which it has started.
        unsafe {
            if let Ok(own_qp) = own(qp.cast::<Qp>()) {
                own_qp.building.unlock();
            }
        }
    });
}

unsafe extern "C" fn complete(qp: *mut QpEx) -> c_int {
    number(|| {
        // SAFETY: the program's queue pair, on which it has started.
        let own_qp = unsafe { own(qp.cast::<Qp>()) }?;
        // SAFETY: as above.
        let _unlocked = unsafe { Unlock::of(&own_qp.building) };
        let begun = own_qp.building.begun.borrow();
        begun.post(own_qp.soft()?, own_qp.qp_type)
    })
}

/// Unlocks when dropped, also by a panic.
struct Unlock<'a>(&'a Building);

impl<'a> Unlock<'a> {
    /// # Safety
    /// As for [`Building::unlock`].
    unsafe fn of(building: &'a Building) -> Self {
        Self(building)
    }
}

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        // SAFETY: the creator of this value has locked it.
        unsafe { self.0.unlock() };
    }
}

impl Begun {
    fn clear(&mut self) {
        self.requests.clear();
        self.pieces.clear();
        self.inline.clear();
        // Release the memory of an unusually large batch.
        self.requests.shrink_to(KEPT_MAX);
        self.pieces.shrink_to(KEPT_MAX);
        self.inline.shrink_to(KEPT_MAX * size_of::<ProviderSge>());
        self.failed = None;
    }

    /// Posts the whole batch or nothing.
    ///
    /// # Errors
    /// `ENOSPC` if the send queue has too little room, as in rdma-core's rxe driver; other errors for an invalid
    /// request.
    fn post(&self, qp: &SoftQp, qp_type: QpType) -> Result<()> {
        if let Some(errno) = self.failed {
            return Err(errno);
        }
        let posted = qp.post_sends(
            self.requests
                .iter()
                .map(|request| self.request(request, qp_type)),
        );
        posted.map_err(|error| match error.cause {
            Cause::LimitReached { .. } => Errno::NOSPC,
            _ => errno_of(&error),
        })
    }

    /// # Errors
    /// `InvalidArgument` for a datagram to nowhere.
    fn request(&self, request: &Request, qp_type: QpType) -> portolan_provider::Result<SendWr<'_>> {
        let ud = match qp_type {
            // SAFETY: the program keeps its address handle alive while it posts.
            QpType::Ud => match unsafe { own(request.ah) } {
                Ok(own_ah) => Some(UdDestination {
                    ah: own_ah.ah.as_ref(),
                    qpn: Qpn::new(request.qpn),
                    qkey: QKey(request.qkey),
                }),
                Err(_) => {
                    let (what, expected) = (
                        "address handle",
                        "an address handle, because the type is UD",
                    );
                    return Err(Error::invalid(Step::PostSend, what, expected, "none"));
                }
            },
            _ => None,
        };
        Ok(SendWr {
            wr_id: request.wr_id,
            op: request.op,
            data: match request.data {
                Data::Pieces(from, to) => SendData::Sges(&self.pieces[from..to]),
                Data::Inline(from, to) => SendData::Inline(&self.inline[from..to]),
            },
            flags: request.flags,
            ud,
            srq: request.srq,
        })
    }

    fn last(&mut self) -> Result<&mut Request> {
        self.requests.last_mut().ok_or(Errno::INVAL)
    }

    fn set_pieces(&mut self, pieces: &[ProviderSge]) -> Result<()> {
        if pieces.len() > PIECES_MAX {
            return Err(Errno::INVAL);
        }
        // Replaces the request's previous data.
        let (from, _) = self.last()?.begins;
        self.pieces.truncate(from);
        self.pieces.extend_from_slice(pieces);
        let to = self.pieces.len();
        self.last()?.data = Data::Pieces(from, to);
        Ok(())
    }

    fn set_inline(&mut self, buffers: &[DataBuf], max: usize) -> Result<()> {
        let (_, from) = self.last()?.begins;
        self.inline.truncate(from);
        for buffer in buffers {
            if buffer.length > max.saturating_sub(self.inline.len() - from) {
                return Err(Errno::INVAL);
            }
            if buffer.length > 0 {
                // SAFETY: the program provides that many bytes.
                let bytes =
                    unsafe { std::slice::from_raw_parts(buffer.addr.cast(), buffer.length) };
                self.inline.extend_from_slice(bytes);
            }
        }
        let to = self.inline.len();
        let last = self.last()?;
        if !post::takes_data(last.op) {
            return Err(Errno::INVAL);
        }
        last.data = Data::Inline(from, to);
        Ok(())
    }
}

unsafe extern "C" fn set_sge(qp: *mut QpEx, lkey: u32, addr: u64, length: u32) {
    change(qp, |begun, _| {
        begun.set_pieces(&[ProviderSge { addr, length, lkey }])
    });
}

unsafe extern "C" fn set_sge_list(qp: *mut QpEx, count: usize, list: *const Sge) {
    change(qp, |begun, _| {
        if count == 0 || list.is_null() {
            return begun.set_pieces(&[]);
        }
        // SAFETY: the program's array.
        begun.set_pieces(&unsafe { post::pieces(list, count) }?)
    });
}

unsafe extern "C" fn set_xrc_srqn(qp: *mut QpEx, srqn: u32) {
    change(qp, |begun, _| {
        begun.last()?.srq = Some(Srqn(srqn));
        Ok(())
    });
}

unsafe extern "C" fn set_inline_data(qp: *mut QpEx, addr: *mut c_void, length: usize) {
    change(qp, |begun, building| {
        begun.set_inline(&[DataBuf { addr, length }], building.inline_max)
    });
}

unsafe extern "C" fn set_inline_data_list(qp: *mut QpEx, count: usize, list: *const DataBuf) {
    change(qp, |begun, building| {
        if count == 0 || list.is_null() {
            return begun.set_inline(&[], building.inline_max);
        }
        // SAFETY: the program's array.
        let list = unsafe { std::slice::from_raw_parts(list, count) };
        begun.set_inline(list, building.inline_max)
    });
}

unsafe extern "C" fn set_ud_addr(qp: *mut QpEx, ah: *mut Ah, qpn: u32, qkey: u32) {
    change(qp, |begun, _| {
        let last = begun.last()?;
        (last.ah, last.qpn, last.qkey) = (ah, qpn, qkey);
        Ok(())
    });
}

unsafe extern "C" fn send(qp: *mut QpEx) {
    begin(qp, Ok(SendOp::Send));
}

unsafe extern "C" fn send_imm(qp: *mut QpEx, imm_data: u32) {
    begin(qp, Ok(SendOp::SendWithImm(imm_data)));
}

unsafe extern "C" fn send_inv(qp: *mut QpEx, rkey: u32) {
    begin(qp, Ok(SendOp::SendWithInv(rkey)));
}

unsafe extern "C" fn rdma_write(qp: *mut QpEx, rkey: u32, addr: u64) {
    begin(qp, Ok(SendOp::RdmaWrite(RemoteAddr { addr, rkey })));
}

unsafe extern "C" fn rdma_write_imm(qp: *mut QpEx, rkey: u32, addr: u64, imm_data: u32) {
    begin(
        qp,
        Ok(SendOp::RdmaWriteWithImm(
            RemoteAddr { addr, rkey },
            imm_data,
        )),
    );
}

unsafe extern "C" fn rdma_read(qp: *mut QpEx, rkey: u32, addr: u64) {
    begin(qp, Ok(SendOp::RdmaRead(RemoteAddr { addr, rkey })));
}

unsafe extern "C" fn atomic_cmp_swp(qp: *mut QpEx, rkey: u32, addr: u64, compare: u64, swap: u64) {
    let remote = RemoteAddr { addr, rkey };
    begin(
        qp,
        Ok(SendOp::AtomicCmpSwap {
            remote,
            compare,
            swap,
        }),
    );
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut QpEx, rkey: u32, addr: u64, add: u64) {
    let remote = RemoteAddr { addr, rkey };
    begin(qp, Ok(SendOp::AtomicFetchAdd { remote, add }));
}

unsafe extern "C" fn local_inv(qp: *mut QpEx, rkey: u32) {
    begin(qp, Ok(SendOp::LocalInv(rkey)));
}

unsafe extern "C" fn bind_mw(qp: *mut QpEx, mw: *mut Mw, rkey: u32, info: *const MwBindInfo) {
    // SAFETY: the program's structure, window and region.
    let op = unsafe {
        match info.as_ref() {
            Some(info) => post::bind(&Bind {
                mw,
                rkey,
                bind_info: *info,
            }),
            None => Err(Errno::INVAL),
        }
    };
    begin(qp, op);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(requests: usize) -> Begun {
        let request = || Request {
            wr_id: 0,
            flags: SendFlags::empty(),
            op: SendOp::Send,
            data: Data::Pieces(0, 0),
            begins: (0, 0),
            ah: ptr::null_mut(),
            qpn: 0,
            qkey: 0,
            srq: None,
        };
        Begun {
            requests: (0..requests).map(|_| request()).collect(),
            ..Begun::default()
        }
    }

    #[test]
    fn data_that_is_set_again_replaces_the_old_data() {
        let mut begun = begun(1);
        let piece = ProviderSge {
            addr: 1,
            length: 1,
            lkey: 1,
        };
        let mut byte = 7u8;
        let buffer = DataBuf {
            addr: (&raw mut byte).cast(),
            length: 1,
        };
        for _ in 0..100 {
            begun.set_pieces(&[piece; 2]).unwrap();
            begun.set_inline(&[buffer], 8).unwrap();
        }
        assert_eq!((begun.pieces.len(), begun.inline.len()), (2, 1));
        assert!(matches!(begun.requests[0].data, Data::Inline(0, 1)));
    }

    #[test]
    fn a_datagram_to_nowhere_is_refused() {
        let begun = begun(1);
        let refused = begun.request(&begun.requests[0], QpType::Ud).unwrap_err();
        assert_eq!(errno_of(&refused), Errno::INVAL);
        assert!(begun.request(&begun.requests[0], QpType::Rc).is_ok());
    }

    #[test]
    fn queue_pairs_build_the_operations_of_their_type() {
        assert_eq!(check_operations(2, ALL_OPERATIONS), Ok(()));
        assert_eq!(check_operations(2, 1 << 10), Err(Errno::OPNOTSUPP));
        assert_eq!(check_operations(3, 1 << 4), Err(Errno::OPNOTSUPP));
        assert_eq!(check_operations(3, 1), Ok(()));
        assert_eq!(check_operations(4, 1), Err(Errno::OPNOTSUPP));
        assert_eq!(check_operations(4, 0xC), Ok(()));
    }
}
