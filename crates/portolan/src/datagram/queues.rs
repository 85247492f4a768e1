//! A UD queue pair with its send and receive buffers.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use portolan_provider::cm::{IdAddresses, UdParam};
use portolan_provider::traits::{CompChannel, Cq, Device, Pd, Qp};
use portolan_provider::verbs::{
    AhAttr, LinkLayer, QpAttr, QpCap, QpInit, QpState, QpType, RecvWr, SendData, SendFlags, SendOp,
    SendWr, WcOpcode, WcStatus, WorkCompletion,
};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::addr::{Gid, QKey, Qpn};
use portolan_wire::eth::GrhRepr;

use super::received::{Datagram, reply_route};
use super::{Destination, Options};
use crate::cm::{CmId, NewQueuePair};
use crate::sys::Buffer;

/// Maximum number of completions per poll.
const BATCH: usize = 16;

/// An id's UD queue pair, ready to send, with all its receives posted.
///
/// Code here must not access a buffer between posting and completion: receive buffers until they
/// are in `arrived`, send buffers until they are in `free`.
#[derive(Debug)]
pub(super) struct Queues {
    device: Arc<dyn Device>,
    pd: Arc<dyn Pd>,
    qp: Arc<dyn Qp>,
    cq: Arc<dyn Cq>,
    channel: Arc<dyn CompChannel>,
    qkey: QKey,
    /// The port and the address that the id is bound to.
    port_num: u8,
    link_layer: LinkLayer,
    own_gid: Option<Gid>,
    /// Maximum payload of a datagram (one packet), in bytes.
    mtu: usize,
    sends: Vec<Buffer>,
    receives: Vec<Buffer>,
    /// Send buffers that are not posted.
    free: Vec<usize>,
    /// Completed receives that are not returned yet.
    arrived: VecDeque<WorkCompletion>,
}

impl Queues {
    /// Creates the queue pair of an id that is bound to a device.
    pub(super) fn new(id: &CmId, options: &Options) -> Result<Self> {
        let device = id.device()?;
        let IdAddresses { port_num, sgid, .. } = id.addresses()?;
        let port = device.port_attr(port_num)?;
        let mtu = port.active_mtu.bytes();
        let pd = crate::device::shared_pd(&device)?;
        let channel = device.create_comp_channel()?;
        let (sends, receives) = (options.send_depth.max(1), options.receive_depth.max(1));
        let cqe = sends.saturating_add(receives);
        let cq = device.create_cq(cqe, Some(&channel), 0)?;
        let cap = QpCap {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp = id.create_queue_pair(&NewQueuePair {
            pd: &pd,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            init: QpInit {
                qp_type: QpType::Ud,
                cap,
                sq_sig_all: true,
            },
        })?;
        let (attr, _) = id.init_qp_attr(QpState::Init)?;
        // Of one registration.
        let buffers = |count: u32, length: usize| -> Result<Vec<Buffer>> {
            let mut all = Buffer::new(&pd, count as usize * length)?;
            Ok((0..count).map(|_| all.split_to(length)).collect())
        };
        let queues = Self {
            sends: buffers(sends, mtu)?,
            receives: buffers(receives, GrhRepr::LEN + mtu)?,
            free: (0..sends as usize).collect(),
            arrived: VecDeque::new(),
            qkey: attr.qkey,
            port_num,
            link_layer: port.link_layer,
            own_gid: sgid,
            device,
            pd,
            qp,
            cq,
            channel,
            mtu,
        };
        for index in 0..queues.receives.len() {
            queues.post_receive(index)?;
        }
        Ok(queues)
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    pub(super) fn mtu(&self) -> usize {
        self.mtu
    }

    pub(super) fn device_index(&self) -> u32 {
        self.device.index()
    }

    /// The destination in an event.
    pub(super) fn destination(&self, ud: &UdParam) -> Result<Destination> {
        Ok(Destination {
            ah: self.pd.create_ah(&ud.ah_attr)?,
            qpn: ud.qp_num,
            qkey: ud.qkey,
        })
    }

    /// The destination for a queue pair of the peer that the id's addresses name.
    pub(super) fn towards(&self, known: &IdAddresses, qpn: Qpn) -> Result<Destination> {
        if self.link_layer == LinkLayer::InfiniBand {
            let what =
                "a datagram rsocket over InfiniBand: the announcement of a peer contains no LID";
            return Err(Error::new(Step::CreateAh, Cause::Unsupported(what)));
        }
        let gids = self.device.gids(self.port_num)?;
        let own = gids.iter().find(|entry| Some(entry.gid) == known.sgid);
        let sgid_index = own.and_then(|entry| u8::try_from(entry.index).ok());
        let (Some(dgid), Some(sgid_index)) = (known.dgid, sgid_index) else {
            let why = "the address that UDP sends from is none of the device's";
            return Err(Error::new(
                Step::CreateAh,
                Cause::NoDevice { why: why.into() },
            ));
        };
        let route = AhAttr {
            dgid,
            sgid_index,
            port_num: self.port_num,
            ..QpAttr::default().ah_attr
        };
        Ok(Destination {
            ah: self.pd.create_ah(&route)?,
            qpn,
            qkey: self.qkey,
        })
    }

    /// The sender of a datagram: the addresses of its network header with this side's Q_Key, as in
    /// `ibv_create_ah_from_wc(3)` and udaddy.
    pub(super) fn sender(&self, datagram: &Datagram) -> Result<Destination> {
        let gids = self.device.gids(self.port_num)?;
        // No device has a group's address: the answer comes from the socket's own. So it does if the datagram had no
        // network header.
        let wanted = match datagram.destination.to_ip() {
            ip if ip.is_multicast() || ip.is_unspecified() => self.own_gid,
            _ => Some(datagram.destination),
        };
        let own = gids.iter().find(|entry| Some(entry.gid) == wanted);
        let sgid_index = own.and_then(|entry| u8::try_from(entry.index).ok());
        let missing = || {
            let why = "the datagram was sent to none of its addresses";
            Error::new(Step::CreateAh, Cause::NoDevice { why: why.into() })
        };
        let route = AhAttr {
            sgid_index: sgid_index.ok_or_else(missing)?,
            port_num: self.port_num,
            ..reply_route(datagram)
        };
        Ok(Destination {
            ah: self.pd.create_ah(&route)?,
            qpn: datagram.source_qpn,
            qkey: self.qkey,
        })
    }

    /// Posts a datagram; returns `false` if the send queue is full.
    ///
    /// # Errors
    /// `InvalidArgument` if the data exceeds one packet; errors of posting.
    pub(super) fn send(&mut self, to: &Destination, data: &[u8], imm: Option<u32>) -> Result<bool> {
        if data.len() > self.mtu {
            let expected = format_args!("0 to {} bytes", self.mtu);
            let (what, found) = ("datagram", data.len());
            return Err(Error::invalid(Step::PostSend, what, expected, found));
        }
        if self.free.is_empty() {
            self.collect()?;
        }
        let Some(index) = self.free.pop() else {
            return Ok(false);
        };
        let buffer = &mut self.sends[index];
        buffer[..data.len()].copy_from_slice(data);
        let sges = [buffer.sge(&self.pd, 0, data.len())?];
        let posted = self.qp.post_send(&SendWr {
            wr_id: index as u64,
            op: imm.map_or(SendOp::Send, SendOp::SendWithImm),
            data: SendData::Sges(&sges[..usize::from(!data.is_empty())]),
            flags: SendFlags::SIGNALED,
            ud: Some(to.verbs()),
            srq: None,
        });
        if posted.is_err() {
            self.free.push(index);
        }
        posted.map(|()| true)
    }

    /// Whether completions of datagrams are queued here.
    pub(super) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// The next datagram that has arrived.
    pub(super) fn receive(&mut self) -> Result<Option<Datagram>> {
        loop {
            if self.arrived.is_empty() {
                self.collect()?;
            }
            let Some(completion) = self.arrived.pop_front() else {
                return Ok(None);
            };
            let index = completion.wr_id as usize;
            let datagram = Datagram::new(&completion, self.link_layer, &self.receives[index]);
            self.post_receive(index)?;
            // A RoCEv2 datagram without a network header cannot be attributed to a sender.
            if datagram.is_some() {
                return Ok(datagram);
            }
        }
    }

    /// Returns whether all posted datagrams were sent.
    pub(super) fn is_drained(&mut self) -> Result<bool> {
        self.collect()?;
        Ok(self.free.len() == self.sends.len())
    }

    /// Arms the descriptor for the next completion; returns whether one is already available.
    pub(super) fn arm(&mut self) -> Result<bool> {
        while self.channel.take_event()?.is_some() {}
        self.cq.arm(false)?;
        Ok(self.collect()? > 0 || !self.arrived.is_empty())
    }

    /// As [`Queues::arm`], for a caller that waits for sends; returns whether one has ended meanwhile. Datagrams that are
    /// not taken do not keep it from sleeping.
    pub(super) fn arm_for_sends(&mut self) -> Result<bool> {
        while self.channel.take_event()?.is_some() {}
        self.cq.arm(false)?;
        let free = self.free.len();
        // All of them: the descriptor of a kernel's device reports only later ones.
        while self.collect()? > 0 {}
        Ok(self.free.len() > free)
    }

    /// The channel whose descriptor becomes readable after [`Queues::arm`].
    pub(super) fn channel(&self) -> &Arc<dyn CompChannel> {
        &self.channel
    }

    /// Collects completions and returns their number.
    fn collect(&mut self) -> Result<usize> {
        let mut batch = [WorkCompletion::EMPTY; BATCH];
        let taken = self.cq.poll(&mut batch)?;
        for completion in &batch[..taken] {
            let is_receive = completion.opcode == WcOpcode::Recv;
            match completion.status {
                WcStatus::Success if is_receive => self.arrived.push_back(*completion),
                WcStatus::Success => self.free.push(completion.wr_id as usize),
                // The queue pair is in error: it neither sends nor receives.
                status => return Err(Error::new(Step::Transfer, Cause::WorkFailed(status))),
            }
        }
        Ok(taken)
    }

    fn post_receive(&self, index: usize) -> Result<()> {
        let buffer = &self.receives[index];
        self.qp.post_recv(&RecvWr {
            wr_id: index as u64,
            sges: &[buffer.sge(&self.pd, 0, buffer.len())?],
        })
    }

    /// As [`AsFd::as_fd`], but fails if no descriptor is left.
    pub(super) fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.channel.descriptor()
    }
}

impl AsFd for Queues {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        // Destroy the queue pair first, so that no posted buffer is in use when it is freed.
        let _ = self.qp.destroy();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::time::{ClockId, clock_gettime};

    use super::*;
    use crate::cm::EventChannel;
    use crate::datagram::socket::{Socket, UDP, send_until};
    use crate::deadline;
    use crate::software::own_group;

    /// Longer than it takes on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(60);
    /// How long the tests wait for room that there will not be.
    const WAIT: Duration = Duration::from_millis(500);

    /// Queues whose only send buffer stays posted, with a datagram that is not taken, and an address.
    fn full() -> (EventChannel, CmId, Queues, Destination) {
        let channel = EventChannel::open_on(own_group::provider()).unwrap();
        let id = CmId::with_service(&channel, UDP).unwrap();
        let destination = "127.0.0.1:7471".parse().unwrap();
        id.resolve_addr(None, destination, PATIENCE).unwrap();
        channel.next_event_within(PATIENCE).unwrap();
        let mut queues = Queues::new(&id, &Options::default().send_depth(1)).unwrap();
        let itself = queues.towards(&id.addresses().unwrap(), queues.qpn());
        let itself = itself.unwrap();
        assert!(queues.send(&itself, b"unread", None).unwrap());
        let deadline = deadline::after(PATIENCE);
        while queues.arrived.is_empty() || queues.free.is_empty() {
            assert!(!deadline::left(deadline).is_zero(), "no datagram");
            queues.collect().unwrap();
        }
        queues.free.clear();
        (channel, id, queues, itself)
    }

    fn processor_time() -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    #[test]
    fn a_send_that_waits_for_room_sleeps_although_a_datagram_is_not_taken() {
        let (_channel, _id, mut queues, to) = full();
        let before = processor_time();
        let late = send_until(&mut queues, &to, b"", None, deadline::after(WAIT));
        assert!(matches!(late.unwrap_err().cause, Cause::TimedOut { .. }));
        let used = processor_time() - before;
        assert!(used < WAIT / 10, "{used:?} of processor time");
    }

    #[test]
    fn a_flush_that_waits_sleeps_although_a_datagram_is_not_taken() {
        let (channel, id, queues, _) = full();
        let mut socket = Socket::new(queues, id, channel).unwrap();
        let before = processor_time();
        let late = socket.flush_until(deadline::after(WAIT));
        assert!(matches!(late.unwrap_err().cause, Cause::TimedOut { .. }));
        let used = processor_time() - before;
        assert!(used < WAIT / 10, "{used:?} of processor time");
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn a_task_that_waits_for_room_sleeps_although_a_datagram_is_not_taken() {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let (channel, id, queues, to) = full();
            let socket = Socket::new(queues, id, channel).unwrap();
            let runtime = ::tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(async {
                let mut socket = crate::tasks::AsyncSocket::new(socket).unwrap();
                let sent = ::tokio::time::timeout(WAIT, socket.send(&to, b"", None));
                tell.send(sent.await.is_err()).unwrap();
                let flushed = ::tokio::time::timeout(WAIT, socket.flush());
                tell.send(flushed.await.is_err()).unwrap();
            });
        });
        for _ in 0..2 {
            // A task that does not sleep never lets the timer run.
            let waited = told.recv_timeout(PATIENCE);
            assert!(waited.expect("the task sleeps"), "there is no room");
        }
    }
}
