//! Many queue pairs of one process, which share a completion queue and registered memory.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use portolan::cm::{CmId, NewQueuePair};
use portolan::provider::cm::ConnParam;
use portolan::provider::traits::{Cq, Device, Pd, Qp};
use portolan::provider::verbs::{
    QpCap, QpInit, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
    WorkCompletion,
};
use portolan::{Access, SharedMemory};

use super::MESSAGE_LEN;

/// Maximum number of completions taken at a time.
const BATCH: usize = 64;

/// A queue pair with room for one message in each direction.
const INIT: QpInit = QpInit {
    qp_type: QpType::Rc,
    cap: QpCap {
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: MESSAGE_LEN as u32,
    },
    sq_sig_all: false,
};

/// The queue pairs.
pub(super) struct QueuePairs {
    pd: Arc<dyn Pd>,
    cq: Arc<dyn Cq>,
    /// Space for one message per queue pair.
    memory: SharedMemory,
    members: Vec<Arc<dyn Qp>>,
}

impl QueuePairs {
    /// Creates room for `capacity` queue pairs on a device.
    pub(super) fn new(device: &Arc<dyn Device>, capacity: u32) -> Result<QueuePairs> {
        let pd = device.alloc_pd()?;
        let memory = SharedMemory::new(&pd, capacity as usize * MESSAGE_LEN, Access::LOCAL_WRITE)?;
        Ok(QueuePairs {
            // Each has at most one send and one receive.
            cq: device.create_cq(capacity * 2, None, 0)?,
            pd,
            memory,
            members: Vec::with_capacity(capacity as usize),
        })
    }

    /// Creates a queue pair for an id and posts its receive; returns its index.
    pub(super) fn enter(&mut self, id: &CmId) -> Result<usize> {
        let qp = id.create_queue_pair(&NewQueuePair {
            pd: &self.pd,
            send_cq: &self.cq,
            recv_cq: &self.cq,
            srq: None,
            init: INIT,
        })?;
        let number = self.members.len();
        self.members.push(qp);
        self.receive(number)?;
        Ok(number)
    }

    /// Parameters for connecting and accepting.
    pub(super) fn conn_param() -> ConnParam {
        ConnParam {
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnParam::default()
        }
    }

    /// Posts a member's receive.
    pub(super) fn receive(&self, number: usize) -> Result<()> {
        let sges = [self.memory.sge(number * MESSAGE_LEN, MESSAGE_LEN)];
        let wr_id = number as u64;
        self.member(number)?
            .post_recv(&RecvWr { wr_id, sges: &sges })?;
        Ok(())
    }

    /// Sends a message.
    pub(super) fn send(&self, number: usize, message: &[u8; MESSAGE_LEN]) -> Result<()> {
        self.member(number)?.post_send(&SendWr {
            wr_id: number as u64,
            op: SendOp::Send,
            data: SendData::Inline(message),
            flags: SendFlags::SIGNALED,
            ud: None,
            srq: None,
        })?;
        Ok(())
    }

    /// The message that a member received last.
    pub(super) fn message(&self, number: usize) -> [u8; MESSAGE_LEN] {
        let mut message = [0; MESSAGE_LEN];
        self.memory.load(number * MESSAGE_LEN, &mut message);
        message
    }

    /// The indices of queue pairs with new messages; drives the device.
    pub(super) fn arrivals(&self) -> Result<Vec<usize>> {
        let mut batch = [WorkCompletion::EMPTY; BATCH];
        let taken = self.cq.poll(&mut batch)?;
        let mut arrived = Vec::new();
        for completion in batch.iter().take(taken) {
            match (completion.status, completion.opcode) {
                (WcStatus::Success, WcOpcode::Recv) => {
                    ensure!(
                        completion.byte_len as usize == MESSAGE_LEN,
                        "a message has {} bytes",
                        completion.byte_len
                    );
                    arrived.push(completion.wr_id as usize);
                }
                // Flushes occur on closed connections.
                (WcStatus::Success | WcStatus::WrFlushErr, _) => {}
                (status, _) => anyhow::bail!("work failed: {status}"),
            }
        }
        Ok(arrived)
    }

    fn member(&self, number: usize) -> Result<&Arc<dyn Qp>> {
        self.members.get(number).context("no such member")
    }
}
