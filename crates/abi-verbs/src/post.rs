//! Posting: C work requests, and the tables' functions for them. The only lock taken is the queue's.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::borrow::Cow;
use std::ffi::c_int;
use std::mem::MaybeUninit;

use portolan_provider::verbs::{
    MwBind, QpType, RecvWr as ProviderRecvWr, RemoteAddr, SendData, SendFlags, SendOp,
    SendWr as ProviderSendWr, Sge as ProviderSge, Srqn, UdDestination,
};
use portolan_wire::addr::{QKey, Qpn};
use rustix::io::Errno;

use crate::guard::{Result, errno_of, number};
use crate::layout::{Bind, MwBindInfo, Qp, RecvWr, SEND_INLINE, SendWr, Sge, wr_opcode};
use crate::mr;
use crate::object::own;

/// Maximum size of inline data in more than one piece: the devices' limit.
pub(crate) const INLINE_MAX: usize = 512;

/// Pieces that are copied at most, because they are not aligned. No queue takes as many.
const COPIED_PIECES_MAX: usize = 4096;

/// Pieces of memory. Where a program's are not aligned they are copied: libiscsi has them in packed structures.
///
/// # Errors
/// `EINVAL` for a negative number of them, and for too many.
///
/// # Safety
/// The list has that many elements.
#[inline]
pub(crate) unsafe fn pieces<'a>(list: *const Sge, count: usize) -> Result<Cow<'a, [ProviderSge]>> {
    if count == 0 {
        return Ok(Cow::Borrowed(&[]));
    }
    if list.is_null() {
        return Err(Errno::INVAL);
    }
    let list = list.cast::<ProviderSge>();
    if list.is_aligned() {
        // SAFETY: as the caller promises; the provider's structure is laid out as C's.
        return Ok(Cow::Borrowed(unsafe {
            std::slice::from_raw_parts(list, count)
        }));
    }
    // SAFETY: as above.
    unsafe { copied(list, count) }
}

#[cold]
unsafe fn copied<'a>(list: *const ProviderSge, count: usize) -> Result<Cow<'a, [ProviderSge]>> {
    if count > COPIED_PIECES_MAX {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller of `pieces` says that there are so many.
    let copied = (0..count).map(|at| unsafe { list.add(at).read_unaligned() });
    Ok(Cow::Owned(copied.collect()))
}

fn number_of(count: c_int) -> Result<usize> {
    usize::try_from(count).map_err(|_| Errno::INVAL)
}

/// A program's request, copied where it is not aligned; `None` for null.
///
/// # Safety
/// It is null or whole.
#[inline]
unsafe fn request<T: Copy>(at: *const T, room: &mut MaybeUninit<T>) -> Option<&T> {
    if at.is_aligned() {
        // SAFETY: as the caller promises.
        return unsafe { at.as_ref() };
    }
    // SAFETY: as above: what is not aligned is not null.
    Some(room.write(unsafe { at.read_unaligned() }))
}

const _: () = assert!(size_of::<Sge>() == size_of::<ProviderSge>());

/// `post_recv` of the table.
pub(crate) unsafe extern "C" fn recv(qp: *mut Qp, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    // SAFETY: the program's pointers.
    number(|| unsafe {
        let qp = &own(qp)?.qp;
        receives(wr, bad, |wr| qp.post_recv(wr))
    })
}

/// Posts a list of receives up to the first that fails, and writes that one to `bad`.
///
/// # Safety
/// The list is a program's.
pub(crate) unsafe fn receives(
    mut wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
    post: impl Fn(&ProviderRecvWr<'_>) -> portolan_provider::Result<()>,
) -> Result<()> {
    let mut room = MaybeUninit::uninit();
    // SAFETY: `wr` is null or whole.
    while let Some(at) = unsafe { request(wr, &mut room) } {
        // SAFETY: as above.
        let of_it = |count| unsafe { pieces(at.sg_list, count) };
        let posted = number_of(at.num_sge).and_then(of_it).and_then(|sges| {
            let (wr_id, sges) = (at.wr_id, &sges[..]);
            post(&ProviderRecvWr { wr_id, sges }).map_err(|error| errno_of(&error))
        });
        if let Err(errno) = posted {
            // SAFETY: the program provides the memory.
            unsafe { bad.write(wr) };
            return Err(errno);
        }
        wr = at.next;
    }
    Ok(())
}

/// `post_send` of the table.
pub(crate) unsafe extern "C" fn send(qp: *mut Qp, wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    number(|| {
        let mut wr = wr;
        let mut room = MaybeUninit::uninit();
        // SAFETY: the program's list.
        while let Some(at) = unsafe { request(wr, &mut room) } {
            // SAFETY: the program's queue pair and request.
            if let Err(errno) = unsafe { send_one(qp, at) } {
                // SAFETY: the program provides the memory.
                unsafe { bad.write(wr) };
                return Err(errno);
            }
            wr = at.next;
        }
        Ok(())
    })
}

/// # Safety
/// The queue pair is one of ours, the request a program's.
unsafe fn send_one(qp: *mut Qp, wr: &SendWr) -> Result<()> {
    // SAFETY: the caller keeps `qp` alive during this call.
    let own_qp = unsafe { own(qp) }?;
    // SAFETY: as above.
    let op = unsafe { operation(wr) }?;
    // SAFETY: as above.
    let sges = unsafe { pieces(wr.sg_list, number_of(wr.num_sge)?) }?;
    let ud = match own_qp.qp_type {
        // SAFETY: the program's request, in the form for its queue pair's type.
        QpType::Ud => Some(unsafe { destination(wr) }?),
        _ => None,
    };
    // The union has one member.
    let srq = (own_qp.qp_type == QpType::XrcSend).then_some(Srqn(wr.qp_type));
    let mut request = ProviderSendWr {
        wr_id: wr.wr_id,
        op,
        data: SendData::Sges(&sges),
        // IP checksums are every packet's.
        flags: SendFlags::from_bits_truncate(wr.send_flags),
        ud,
        srq,
    };
    if wr.send_flags & SEND_INLINE == 0 || !takes_data(op) {
        return own_qp
            .qp
            .post_send(&request)
            .map_err(|error| errno_of(&error));
    }
    let mut gathered = [0; INLINE_MAX];
    // SAFETY: inline data are the program's bytes, with no key.
    let bytes = unsafe { inline(&sges, &mut gathered) }?;
    request.data = SendData::Inline(bytes);
    own_qp
        .qp
        .post_send(&request)
        .map_err(|error| errno_of(&error))
}

/// Whether an operation sends data.
pub(crate) fn takes_data(op: SendOp) -> bool {
    use SendOp::*;
    matches!(
        op,
        Send | SendWithImm(_) | SendWithInv(_) | RdmaWrite(_) | RdmaWriteWithImm(..)
    )
}

/// The bytes of an inline send; not copied if they are in one piece.
///
/// # Errors
/// `EINVAL` for more than the devices' limit.
///
/// # Safety
/// The pieces are readable.
unsafe fn inline<'a>(sges: &[ProviderSge], gathered: &'a mut [u8; INLINE_MAX]) -> Result<&'a [u8]> {
    let bytes = |sge: &ProviderSge| {
        let from: *const u8 = std::ptr::with_exposed_provenance(sge.addr as usize);
        (from, sge.length as usize)
    };
    if let [sge] = sges
        && sge.length > 0
    {
        let (from, length) = bytes(sge);
        // SAFETY: the piece has that many bytes, which the caller keeps until this returns.
        return Ok(unsafe { std::slice::from_raw_parts(from, length) });
    }
    let mut end = 0;
    for (from, length) in sges.iter().map(bytes) {
        let room = gathered
            .get_mut(end..)
            .and_then(|room| room.get_mut(..length));
        let room = room.ok_or(Errno::INVAL)?;
        // SAFETY: as above; the destination is our own memory.
        unsafe { std::ptr::copy_nonoverlapping(from, room.as_mut_ptr(), length) };
        end += length;
    }
    Ok(&gathered[..end])
}

/// # Safety
/// The request is a program's.
#[inline]
unsafe fn operation(wr: &SendWr) -> Result<SendOp> {
    // SAFETY: the union's members consist of plain numbers, whatever the operation.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let remote = RemoteAddr {
        addr: rdma.remote_addr,
        rkey: rdma.rkey,
    };
    let atomic_remote = RemoteAddr {
        addr: atomic.remote_addr,
        rkey: atomic.rkey,
    };
    Ok(match wr.opcode {
        wr_opcode::SEND => SendOp::Send,
        wr_opcode::SEND_WITH_IMM => SendOp::SendWithImm(wr.imm_data),
        wr_opcode::SEND_WITH_INV => SendOp::SendWithInv(wr.imm_data),
        wr_opcode::RDMA_WRITE => SendOp::RdmaWrite(remote),
        wr_opcode::RDMA_WRITE_WITH_IMM => SendOp::RdmaWriteWithImm(remote, wr.imm_data),
        wr_opcode::RDMA_READ => SendOp::RdmaRead(remote),
        wr_opcode::ATOMIC_CMP_AND_SWP => SendOp::AtomicCmpSwap {
            remote: atomic_remote,
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        wr_opcode::ATOMIC_FETCH_AND_ADD => SendOp::AtomicFetchAdd {
            remote: atomic_remote,
            add: atomic.compare_add,
        },
        wr_opcode::LOCAL_INV => SendOp::LocalInv(wr.imm_data),
        // SAFETY: the program's window and region.
        wr_opcode::BIND_MW => unsafe { bind(&wr.bind_mw) }?,
        _ => return Err(Errno::INVAL),
    })
}

/// # Safety
/// The window and the region are the program's.
pub(crate) unsafe fn bind(bind: &Bind) -> Result<SendOp> {
    // SAFETY: window and region of a posted request are null or complete.
    let (mw, info) = unsafe {
        (
            bind.mw.as_ref().ok_or(Errno::INVAL)?,
            window(&bind.bind_info)?,
        )
    };
    Ok(SendOp::BindMw {
        rkey: mw.rkey,
        new_rkey: bind.rkey,
        bind: info,
    })
}

/// The memory and rights that a memory window is to be bound to.
///
/// # Safety
/// The region is null, or the program's.
pub(crate) unsafe fn window(info: &MwBindInfo) -> Result<MwBind> {
    // SAFETY: the region is null or complete.
    let lkey = unsafe { info.mr.as_ref() }.map(|mr| mr.lkey);
    if lkey.is_none() && info.length > 0 {
        return Err(Errno::INVAL);
    }
    Ok(MwBind {
        lkey: lkey.unwrap_or(0),
        addr: info.addr,
        length: info.length,
        access: mr::window_rights(info.mw_access_flags)?,
    })
}

/// # Safety
/// The request is for a datagram.
#[inline]
unsafe fn destination<'a>(wr: &SendWr) -> Result<UdDestination<'a>> {
    // SAFETY: the request is for a datagram, so this is the member that was set.
    let ud = unsafe { wr.wr.ud };
    Ok(UdDestination {
        // SAFETY: the program keeps its address handle alive while it posts.
        ah: unsafe { own(ud.ah) }?.ah.as_ref(),
        qpn: Qpn::new(ud.remote_qpn),
        qkey: QKey(ud.remote_qkey),
    })
}
