//! A UD queue pair with the objects that it needs.

use std::net::IpAddr;
use std::sync::Arc;

use portolan_provider::Result;
use portolan_provider::address::ip_to_gid;
use portolan_provider::traits::{Cq, Device, Mr, Pd, Qp};
use portolan_provider::verbs::{
    Access, Ah, AhAttr, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType, RecvWr, SendData,
    SendFlags, SendOp, SendWr, Sge, UdDestination, WorkCompletion,
};
use portolan_roce::io::Stack;
use portolan_wire::{QKey, Qpn};

use crate::harness::{Memory, until};

/// The Q_Key of all ends.
pub const QKEY: QKey = QKey(0x1357_9bdf);
/// A UD queue pair ready to send, with memory.
pub struct UdEnd {
    pub ip: IpAddr,
    pub device: Arc<dyn Device>,
    pub pd: Arc<dyn Pd>,
    pub cq: Arc<dyn Cq>,
    pub qp: Arc<dyn Qp>,
    mr: Arc<dyn Mr>,
    pub memory: Memory,
}

/// Moves a UD queue pair to RTS.
pub fn make_ready(qp: &Arc<dyn Qp>) {
    let attr = QpAttr {
        qkey: QKEY,
        ..QpAttr::default()
    };
    use QpAttrMask as M;
    for (state, mask) in [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::QKEY),
        (QpState::Rtr, M::empty()),
        (QpState::Rts, M::SQ_PSN),
    ] {
        qp.modify(&QpAttr { state, ..attr }, mask | M::STATE)
            .unwrap();
    }
}

impl UdEnd {
    pub fn new(stack: &Stack, ip: IpAddr) -> Self {
        const MEMORY: usize = 1 << 18;
        let (device, _) = stack.device_of(ip, 0).expect("no device has the address");
        let device: Arc<dyn Device> = device;
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(256, None, 0).unwrap();
        let init = QpInit {
            qp_type: QpType::Ud,
            cap: QpCap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 128,
            },
            sq_sig_all: true,
        };
        let qp = pd.create_qp(&init, &cq, &cq, None).unwrap();
        let memory = Memory::new(MEMORY);
        // SAFETY: the memory outlives the region (`mr` is dropped before `memory`).
        let mr = unsafe { pd.register(memory.addr(), MEMORY as u64, Access::LOCAL_WRITE) }.unwrap();
        make_ready(&qp);
        Self {
            ip,
            device,
            pd,
            cq,
            qp,
            mr,
            memory,
        }
    }

    /// An address handle for a host or group.
    pub fn ah(&self, to: IpAddr) -> Arc<dyn Ah> {
        self.pd.create_ah(&self.vector(to)).unwrap()
    }

    pub fn vector(&self, to: IpAddr) -> AhAttr {
        let own = ip_to_gid(self.ip);
        let gids = self.device.gids(1).unwrap();
        let slot = gids.iter().find(|entry| entry.gid == own).unwrap().index;
        AhAttr {
            dgid: ip_to_gid(to),
            sgid_index: slot as u8,
            hop_limit: 9,
            traffic_class: 0x48,
            ..QpAttr::default().ah_attr
        }
    }

    pub fn sge(&self, at: usize, len: usize) -> Sge {
        Sge {
            addr: self.memory.addr() + at as u64,
            length: len as u32,
            lkey: self.mr.lkey(),
        }
    }

    pub fn receive(&self, wr_id: u64, at: usize, len: usize) {
        let sges = &[self.sge(at, len)];
        self.qp.post_recv(&RecvWr { wr_id, sges }).unwrap();
    }

    pub fn send(&self, wr_id: u64, at: usize, len: usize, ah: &dyn Ah, qpn: Qpn) {
        self.try_send(
            wr_id,
            self.sge(at, len),
            UdDestination {
                ah,
                qpn,
                qkey: QKEY,
            },
        )
        .unwrap();
    }

    pub fn try_send(&self, wr_id: u64, sge: Sge, to: UdDestination<'_>) -> Result<()> {
        self.qp.post_send(&SendWr {
            wr_id,
            op: SendOp::SendWithImm(0x0a0b_0c0d),
            data: SendData::Sges(&[sge]),
            flags: SendFlags::empty(),
            ud: Some(to),
            srq: None,
        })
    }

    pub fn try_poll(&self) -> Option<WorkCompletion> {
        let mut out = [WorkCompletion::EMPTY];
        (self.cq.poll(&mut out).unwrap() == 1).then(|| out[0])
    }

    pub fn poll(&self) -> WorkCompletion {
        let mut found = None;
        until("a completion", || {
            found = self.try_poll();
            found.is_some()
        });
        found.unwrap()
    }
}
