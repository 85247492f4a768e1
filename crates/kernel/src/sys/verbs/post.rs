//! Work requests in the library's form.

use std::ffi::c_int;
use std::ptr::null_mut;

use portolan_abi_layout::{self as abi, wr_opcode as opcode};
use portolan_provider::error::errno::ENOMEM;
use portolan_provider::verbs::{MwBind, RecvWr, RemoteAddr, SendData, SendOp, SendWr, Sge};
use portolan_provider::{Cause, Error, Result, Step};

use super::outcome::failed;

/// Number of elements that need no allocation.
const SGES_INLINE: usize = 8;

/// Describes the error of a full queue.
pub(super) struct Full<L> {
    pub(super) step: Step,
    pub(super) verb: &'static str,
    pub(super) what: &'static str,
    /// Its capacity, computed only if it is full.
    pub(super) limit: L,
}

impl<L: FnOnce() -> u32> Full<L> {
    fn check(self, code: c_int) -> Result<()> {
        match code {
            0 => Ok(()),
            ENOMEM => {
                let (what, limit) = (self.what, u64::from((self.limit)()));
                Err(Error::new(self.step, Cause::LimitReached { what, limit }))
            }
            code => Err(failed(self.step, self.verb, code)),
        }
    }
}

/// Runs `post` with a receive in the library's format.
pub(super) fn with_recv(
    wr: &RecvWr<'_>,
    full: Full<impl FnOnce() -> u32>,
    post: impl FnOnce(*mut abi::RecvWr, *mut *mut abi::RecvWr) -> c_int,
) -> Result<()> {
    let code = with_sges(wr.sges, |sg_list, num_sge| {
        let mut request = abi::RecvWr {
            wr_id: wr.wr_id,
            next: null_mut(),
            sg_list,
            num_sge,
        };
        let mut bad = null_mut();
        post(&mut request, &mut bad)
    });
    full.check(code)
}

/// The library objects that a send refers to.
#[derive(Clone, Copy)]
pub(super) struct Objects {
    /// For a datagram: address handle, queue pair and its key.
    pub(super) ud: Option<abi::RemoteUd>,
    /// For a binding: the window and its region.
    pub(super) window: Option<(*mut abi::Mw, *mut abi::Mr)>,
}

/// Runs `post` with a send in the library's format.
pub(super) fn with_send(
    wr: &SendWr<'_>,
    objects: Objects,
    full: Full<impl FnOnce() -> u32>,
    post: impl FnOnce(*mut abi::SendWr, *mut *mut abi::SendWr) -> c_int,
) -> Result<()> {
    let inline;
    let (sges, flags) = match wr.data {
        SendData::Sges(sges) => (sges, 0),
        SendData::Inline(bytes) => {
            let invalid = |_| Error::invalid(full.step, "inline bytes", "fewer", bytes.len());
            inline = [Sge {
                addr: bytes.as_ptr().expose_provenance() as u64,
                length: u32::try_from(bytes.len()).map_err(invalid)?,
                lkey: 0,
            }];
            (&inline[..], abi::SEND_INLINE)
        }
    };
    let code = with_sges(sges, |sg_list, num_sge| {
        let mut request = abi::SendWr {
            wr_id: wr.wr_id,
            next: null_mut(),
            sg_list,
            num_sge,
            opcode: 0,
            send_flags: wr.flags.bits() | flags,
            imm_data: 0,
            wr: abi::Remote {
                atomic: abi::RemoteAtomic {
                    remote_addr: 0,
                    compare_add: 0,
                    swap: 0,
                    rkey: 0,
                },
            },
            qp_type: 0,
            bind_mw: abi::Bind {
                mw: null_mut(),
                rkey: 0,
                bind_info: bind_info(null_mut(), None),
            },
        };
        fill(&mut request, wr.op, objects);
        let mut bad = null_mut();
        post(&mut request, &mut bad)
    });
    full.check(code)
}

/// Fills in the operation and its parameters.
fn fill(request: &mut abi::SendWr, op: SendOp, objects: Objects) {
    let rdma = |remote: RemoteAddr| abi::Remote {
        rdma: abi::RemoteRdma {
            remote_addr: remote.addr,
            rkey: remote.rkey,
        },
    };
    let atomic = |remote: RemoteAddr, compare_add, swap| abi::Remote {
        atomic: abi::RemoteAtomic {
            remote_addr: remote.addr,
            compare_add,
            swap,
            rkey: remote.rkey,
        },
    };
    if let Some(ud) = objects.ud {
        request.wr = abi::Remote { ud };
    }
    request.opcode = match op {
        SendOp::Send => opcode::SEND,
        SendOp::SendWithImm(imm) => {
            request.imm_data = imm;
            opcode::SEND_WITH_IMM
        }
        SendOp::RdmaWrite(remote) => {
            request.wr = rdma(remote);
            opcode::RDMA_WRITE
        }
        SendOp::RdmaWriteWithImm(remote, imm) => {
            (request.wr, request.imm_data) = (rdma(remote), imm);
            opcode::RDMA_WRITE_WITH_IMM
        }
        SendOp::RdmaRead(remote) => {
            request.wr = rdma(remote);
            opcode::RDMA_READ
        }
        SendOp::SendWithInv(rkey) => {
            request.imm_data = rkey;
            opcode::SEND_WITH_INV
        }
        SendOp::AtomicCmpSwap {
            remote,
            compare,
            swap,
        } => {
            request.wr = atomic(remote, compare, swap);
            opcode::ATOMIC_CMP_AND_SWP
        }
        SendOp::AtomicFetchAdd { remote, add } => {
            request.wr = atomic(remote, add, 0);
            opcode::ATOMIC_FETCH_AND_ADD
        }
        SendOp::BindMw { new_rkey, bind, .. } => {
            let (mw, mr) = objects.window.unwrap_or((null_mut(), null_mut()));
            request.bind_mw = abi::Bind {
                mw,
                rkey: new_rkey,
                bind_info: bind_info(mr, Some(&bind)),
            };
            opcode::BIND_MW
        }
        SendOp::LocalInv(rkey) => {
            request.imm_data = rkey;
            opcode::LOCAL_INV
        }
        // The provider's types may grow; the library rejects this number.
        _ => u32::MAX,
    };
}

pub(super) fn bind_info(mr: *mut abi::Mr, bind: Option<&MwBind>) -> abi::MwBindInfo {
    let (addr, length) = bind.map_or((0, 0), |bind| (bind.addr, bind.length));
    abi::MwBindInfo {
        mr,
        // A window that is being closed has no address.
        addr: if length == 0 { 0 } else { addr },
        length,
        mw_access_flags: bind.map_or(0, |bind| bind.access.bits()),
    }
}

/// Runs `post` with scatter/gather elements in the library's format, and their number.
fn with_sges<T>(sges: &[Sge], post: impl FnOnce(*mut abi::Sge, c_int) -> T) -> T {
    let convert = |sge: &Sge| abi::Sge {
        addr: sge.addr,
        length: sge.length,
        lkey: sge.lkey,
    };
    let mut few = [abi::Sge::zeroed(); SGES_INLINE];
    let mut many = Vec::new();
    let list = match few.get_mut(..sges.len()) {
        Some(few) => {
            few.iter_mut()
                .zip(sges)
                .for_each(|(to, from)| *to = convert(from));
            few
        }
        None => {
            many.extend(sges.iter().map(convert));
            &mut many[..]
        }
    };
    let count = c_int::try_from(list.len()).unwrap_or(c_int::MAX);
    post(list.as_mut_ptr(), count)
}

#[cfg(test)]
mod tests {
    use portolan_provider::verbs::{Access, SendFlags};

    use super::*;

    const REMOTE: RemoteAddr = RemoteAddr {
        addr: 0x1000,
        rkey: 7,
    };

    fn full() -> Full<impl FnOnce() -> u32> {
        Full {
            step: Step::PostSend,
            verb: "ibv_post_send",
            what: "work requests of the send queue",
            limit: || 16,
        }
    }

    fn seen(op: SendOp, look: impl FnOnce(&abi::SendWr)) {
        let sges = [Sge {
            addr: 0x2000,
            length: 8,
            lkey: 3,
        }; 9];
        let wr = SendWr {
            wr_id: 5,
            op,
            data: SendData::Sges(&sges),
            flags: SendFlags::SIGNALED,
            ud: None,
            srq: None,
        };
        let objects = Objects {
            ud: None,
            window: None,
        };
        let posted = with_send(&wr, objects, full(), |request, _| {
            // SAFETY: the request and its list are valid during the call.
            let (request, list) = unsafe {
                let request = &*request;
                (request, std::slice::from_raw_parts(request.sg_list, 9))
            };
            assert_eq!((request.wr_id, request.send_flags), (5, 2));
            assert!(
                list.iter()
                    .all(|sge| (sge.addr, sge.length, sge.lkey) == (0x2000, 8, 3))
            );
            look(request);
            0
        });
        posted.unwrap();
    }

    #[test]
    fn every_operation_has_its_number_and_what_belongs_to_it() {
        seen(SendOp::SendWithImm(9), |wr| {
            assert_eq!((wr.opcode, wr.imm_data), (opcode::SEND_WITH_IMM, 9));
        });
        seen(SendOp::RdmaWriteWithImm(REMOTE, 9), |wr| {
            // SAFETY: the union member that the operation uses.
            let rdma = unsafe { wr.wr.rdma };
            assert_eq!((wr.opcode, wr.imm_data), (opcode::RDMA_WRITE_WITH_IMM, 9));
            assert_eq!((rdma.remote_addr, rdma.rkey), (0x1000, 7));
        });
        let swap = SendOp::AtomicCmpSwap {
            remote: REMOTE,
            compare: 1,
            swap: 2,
        };
        seen(swap, |wr| {
            // SAFETY: as above.
            let atomic = unsafe { wr.wr.atomic };
            assert_eq!((atomic.remote_addr, atomic.rkey), (0x1000, 7));
            assert_eq!((atomic.compare_add, atomic.swap), (1, 2));
        });
        let bind = SendOp::BindMw {
            rkey: 0x100,
            new_rkey: 0x101,
            bind: MwBind {
                lkey: 3,
                addr: 0x3000,
                length: 64,
                access: Access::REMOTE_READ,
            },
        };
        seen(bind, |wr| {
            let info = &wr.bind_mw.bind_info;
            assert_eq!((wr.opcode, wr.bind_mw.rkey), (opcode::BIND_MW, 0x101));
            assert_eq!(
                (info.addr, info.length, info.mw_access_flags),
                (0x3000, 64, 4)
            );
        });
    }

    #[test]
    fn inline_bytes_are_one_piece_with_a_flag() {
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Send,
            data: SendData::Inline(b"ahoy"),
            flags: SendFlags::empty(),
            ud: None,
            srq: None,
        };
        let objects = Objects {
            ud: None,
            window: None,
        };
        let posted = with_send(&wr, objects, full(), |request, _| {
            // SAFETY: the request is valid during the call.
            let (flags, length) = unsafe { ((*request).send_flags, (*(*request).sg_list).length) };
            assert_eq!((flags, length), (abi::SEND_INLINE, 4));
            0
        });
        posted.unwrap();
    }

    #[test]
    fn a_full_queue_is_distinguished_from_other_refusals() {
        let wr = RecvWr {
            wr_id: 0,
            sges: &[],
        };
        let error = with_recv(&wr, full(), |_, _| ENOMEM).unwrap_err();
        assert!(
            matches!(error.cause, Cause::LimitReached { limit: 16, .. }),
            "{error}"
        );
        let error = with_recv(&wr, full(), |_, _| 22).unwrap_err();
        assert_eq!(error.errno(), 22);
    }
}
