//! Datagrams with ids: service resolution, address handles, a single receiver and a group.
#![allow(unsafe_code, reason = "verbs rest on a promise about memory")]

use std::net::IpAddr;
use std::sync::Arc;

use portolan::Access;
use portolan::cm::{CmId, Event, EventChannel};
use portolan::provider::cm::{EventType, JoinKind};
use portolan::provider::traits::{Mr, Provider, Qp};
use portolan::provider::verbs::{
    QpCap, QpInit, QpState, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge,
    UdDestination, WcStatus, WorkCompletion,
};

use crate::harness::*;
use crate::low::*;

/// Bytes in front of the data in a datagram queue pair's receives.
const GRH: usize = 40;
const MEMORY: usize = 4096;

/// An id with its own queue pair, and memory for one datagram.
struct Station {
    channel: EventChannel,
    id: CmId,
    verbs: Verbs,
    qp: Arc<dyn Qp>,
    mr: Arc<dyn Mr>,
    memory: Box<[u8]>,
}

impl Station {
    fn of(channel: EventChannel, id: CmId) -> Self {
        let verbs = Verbs::of(&id.device().unwrap());
        let init = QpInit {
            qp_type: QpType::Ud,
            cap: QpCap {
                max_inline_data: 64,
                ..INIT.cap
            },
            sq_sig_all: false,
        };
        let new = portolan::cm::NewQueuePair {
            srq: None,
            init,
            ..verbs.new_queue_pair()
        };
        let qp = id.create_queue_pair(&new).unwrap();
        assert_eq!(state_of(&qp), QpState::Rts, "it needs no peer");
        let mut memory = vec![0; MEMORY].into_boxed_slice();
        let addr = memory.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the memory lives until the region is deregistered (`drop`), and is read only while no receive
        // is posted.
        let mr = unsafe { verbs.pd.register(addr, MEMORY as u64, Access::LOCAL_WRITE) }.unwrap();
        Self {
            channel,
            id,
            verbs,
            qp,
            mr,
            memory,
        }
    }

    /// A station on the loopback device.
    fn on_loopback(provider: Arc<dyn Provider>) -> Self {
        let channel = EventChannel::open_on(provider).unwrap();
        let id = on_loopback(&channel);
        Self::of(channel, id)
    }

    fn post_receive(&mut self) {
        let sge = Sge {
            addr: self.memory.as_mut_ptr().expose_provenance() as u64,
            length: MEMORY as u32,
            lkey: self.mr.lkey(),
        };
        let receive = RecvWr {
            wr_id: 1,
            sges: &[sge],
        };
        self.qp.post_recv(&receive).unwrap();
    }

    /// Sends to the destination in an event.
    fn send(&self, to: &Event, text: &[u8]) {
        let ud = to.ud().expect("a datagram event");
        let ah = self.verbs.pd.create_ah(&ud.ah_attr).unwrap();
        let datagram = SendWr {
            wr_id: 2,
            op: SendOp::Send,
            data: SendData::Inline(text),
            flags: SendFlags::SIGNALED,
            ud: Some(UdDestination {
                ah: &*ah,
                qpn: ud.qp_num,
                qkey: ud.qkey,
            }),
            srq: None,
        };
        self.qp.post_send(&datagram).unwrap();
        assert_eq!(self.completion().wr_id, 2);
    }

    fn completion(&self) -> WorkCompletion {
        let mut found = None;
        eventually("a completion", || {
            found = self.poll();
            found.is_some()
        });
        let completion = found.unwrap();
        assert_eq!(completion.status, WcStatus::Success);
        completion
    }

    fn poll(&self) -> Option<WorkCompletion> {
        let mut out = [WorkCompletion::EMPTY];
        (self.verbs.cq.poll(&mut out).unwrap() == 1).then_some(out[0])
    }

    /// The datagram in the posted receive, and its completion.
    fn arrived(&self) -> (Vec<u8>, WorkCompletion) {
        let completion = self.completion();
        assert_eq!(completion.wr_id, 1);
        let length = completion.byte_len as usize;
        // SAFETY: within the memory, which the device no longer writes. A volatile read, because another thread
        // wrote it.
        let read = |at| unsafe { std::ptr::read_volatile(self.memory.as_ptr().add(at)) };
        ((GRH..length.min(MEMORY)).map(read).collect(), completion)
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        self.qp.destroy().unwrap();
        self.mr.deregister().unwrap();
    }
}

#[test]
fn a_datagram_goes_to_the_queue_pair_that_service_resolution_found() {
    let port = free_port();
    let (here, there) = (start(port), start(port));
    let passive = Passive::listen_on(EventChannel::open_on(here).unwrap(), UDP);
    let open = EventChannel::open_on(there).unwrap();
    let (channel, id) = routed_on(open, UDP, passive.address);
    let active = Station::of(channel, id);
    active.id.connect(&param(b"")).unwrap();
    let child = passive.request();
    let mut serving = Station::of(passive.channel.clone(), child);
    serving.post_receive();
    serving.id.accept(&param(b"")).unwrap();

    let found = next(&active.channel, EventType::Established);
    assert_eq!(found.ud().unwrap().qp_num, serving.qp.qpn());
    active.send(&found, b"ahoy");
    let (text, completion) = serving.arrived();
    assert_eq!(text, b"ahoy");
    assert_eq!(completion.src_qp, active.qp.qpn());
}

#[test]
fn full_members_receive_a_groups_datagrams_until_they_leave() {
    let port = free_port();
    let (here, there) = (start(port), start(port));
    let group: IpAddr = "239.7.4.71".parse().unwrap();
    let mut hearing = Station::on_loopback(here.clone());
    let sending = Station::on_loopback(there.clone());
    hearing
        .id
        .join_multicast(group, JoinKind::FullMember, 1)
        .unwrap();
    let kind = JoinKind::SendOnlyFullMember;
    sending.id.join_multicast(group, kind, 2).unwrap();
    let joined = next(&hearing.channel, EventType::MulticastJoin);
    assert_eq!(joined.membership().unwrap().kind(), JoinKind::FullMember);
    drop(joined);
    let to_group = next(&sending.channel, EventType::MulticastJoin);
    assert_eq!(
        (here.usage().memberships, there.usage().memberships),
        (1, 1)
    );

    hearing.post_receive();
    sending.send(&to_group, b"hear, hear");
    let (text, completion) = hearing.arrived();
    assert_eq!(text, b"hear, hear");
    assert_eq!(completion.src_qp, sending.qp.qpn());

    hearing.post_receive();
    hearing.id.leave_multicast(group, PATIENCE).unwrap();
    sending.send(&to_group, b"nobody there?");
    std::thread::sleep(SHORT);
    assert!(hearing.poll().is_none(), "reception ceases");

    // After rejoining it receives again.
    hearing
        .id
        .join_multicast(group, JoinKind::FullMember, 3)
        .unwrap();
    next(&hearing.channel, EventType::MulticastJoin);
    sending.send(&to_group, b"again");
    assert_eq!(hearing.arrived().0, b"again");
    drop(to_group);
    drop((hearing, sending));
    assert_eq!(
        (here.usage().memberships, there.usage().memberships),
        (0, 0)
    );
}

#[test]
fn an_id_that_joined_a_group_twice_receives_until_it_has_left_twice() {
    let group: IpAddr = "239.7.4.72".parse().unwrap();
    let mut hearing = Station::on_loopback(provider());
    let sending = Station::on_loopback(provider());
    for context in 0..2 {
        hearing
            .id
            .join_multicast(group, JoinKind::FullMember, context)
            .unwrap();
        next(&hearing.channel, EventType::MulticastJoin);
    }
    let kind = JoinKind::SendOnlyFullMember;
    sending.id.join_multicast(group, kind, 0).unwrap();
    let to_group = next(&sending.channel, EventType::MulticastJoin);
    hearing.id.leave_multicast(group, PATIENCE).unwrap();
    hearing.post_receive();
    sending.send(&to_group, b"still");
    assert_eq!(hearing.arrived().0, b"still");
    hearing.id.leave_multicast(group, PATIENCE).unwrap();
    hearing.post_receive();
    sending.send(&to_group, b"gone");
    std::thread::sleep(SHORT);
    assert!(hearing.poll().is_none());
}
