//! What the five programs share: both ends of a connection, and messages.

use std::net::SocketAddr;
use std::sync::Arc;

use rdma_io::Result;
use rdma_io::async_cm::{AsyncCmId, AsyncCmListener};
use rdma_io::async_cq::AsyncCq;
use rdma_io::async_qp::AsyncQp;
use rdma_io::cm::{CmId, CmQueuePair, ConnParam, PortSpace};
use rdma_io::device::Context;
use rdma_io::mr::{AccessFlags, OwnedMemoryRegion, RemoteMr};
use rdma_io::pd::ProtectionDomain;
use rdma_io::qp::QpInitAttr;

pub const MESSAGE_BYTES: usize = 64;

pub struct End {
    // Dropped in this order.
    pub qp: AsyncQp,
    outbox: OwnedMemoryRegion,
    inbox: OwnedMemoryRegion,
    pub pd: Arc<ProtectionDomain>,
    pub id: AsyncCmId,
}

type Queues = (AsyncQp, OwnedMemoryRegion, OwnedMemoryRegion);

fn queues(
    context: &Arc<Context>,
    pd: &Arc<ProtectionDomain>,
    create: impl FnOnce(&QpInitAttr, &AsyncCq, &AsyncCq) -> Result<CmQueuePair>,
) -> Result<Queues> {
    let send = AsyncCq::create_tokio(context.clone(), 16)?;
    let receive = AsyncCq::create_tokio(context.clone(), 16)?;
    let qp = create(&QpInitAttr::default(), &send, &receive)?;
    let qp = AsyncQp::new(qp, send, receive);
    let outbox = pd.reg_mr_owned(vec![0; MESSAGE_BYTES], AccessFlags::LOCAL_WRITE)?;
    let inbox = pd.reg_mr_owned(vec![0; MESSAGE_BYTES], AccessFlags::LOCAL_WRITE)?;
    qp.post_recv_buffer(&inbox, 0)?;
    Ok((qp, outbox, inbox))
}

impl End {
    pub async fn connect(address: &SocketAddr) -> Result<Self> {
        let id = AsyncCmId::new(PortSpace::Tcp)?;
        id.resolve_addr(None, address, 2000).await?;
        id.resolve_route(2000).await?;
        let context = id.verbs_context().expect("the address has a device");
        let pd = id.alloc_pd()?;
        let create = |attr: &QpInitAttr, send: &AsyncCq, receive: &AsyncCq| {
            id.create_qp_with_cq(&pd, attr, Some(send.cq()), Some(receive.cq()))
        };
        let (qp, outbox, inbox) = queues(&context, &pd, create)?;
        id.connect(&ConnParam::default()).await?;
        Ok(Self { qp, outbox, inbox, pd, id })
    }

    pub async fn accept(listener: &AsyncCmListener) -> Result<Self> {
        let request: CmId = listener.get_request().await?;
        let context = request.verbs_context().expect("a request has a device");
        let pd = request.alloc_pd()?;
        let create = |attr: &QpInitAttr, send: &AsyncCq, receive: &AsyncCq| {
            request.create_qp_with_cq(&pd, attr, Some(send.cq()), Some(receive.cq()))
        };
        let (qp, outbox, inbox) = queues(&context, &pd, create)?;
        let id = listener.complete_accept(request, &ConnParam::default()).await?;
        Ok(Self { qp, outbox, inbox, pd, id })
    }

    pub async fn send(&mut self, message: &[u8]) -> Result<()> {
        self.outbox.as_mut_slice()[..message.len()].copy_from_slice(message);
        self.qp.send(&self.outbox, 0, message.len(), 1).await.map(drop)
    }

    /// The receive that is posted takes the message; then it is posted again.
    pub async fn receive(&mut self) -> Result<Vec<u8>> {
        let completion = self.qp.recv_cq().poll_wr_id(0).await?;
        let message = self.inbox.as_slice()[..(completion.byte_len() as usize).min(MESSAGE_BYTES)].to_vec();
        self.qp.post_recv_buffer(&self.inbox, 0)?;
        Ok(message)
    }
}

pub fn offer(memory: &OwnedMemoryRegion) -> Vec<u8> {
    let memory = memory.to_remote();
    let (addr, rkey) = (memory.addr.to_be_bytes(), memory.rkey.to_be_bytes());
    [&addr[..], &rkey, &memory.len.to_be_bytes()].concat()
}

pub fn offered(message: &[u8]) -> RemoteMr {
    let word = |at: usize| u32::from_be_bytes(message[at..at + 4].try_into().unwrap());
    RemoteMr {
        addr: u64::from(word(0)) << 32 | u64::from(word(4)),
        rkey: word(8),
        len: word(12),
    }
}
