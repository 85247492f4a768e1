//! Verbs beyond plain sends, writes and reads.

use portolan::Access;
use portolan::provider::verbs::{
    MwBind, MwType, RecvWr, RemoteAddr, SendData, SendFlags, SendOp, SendWr, SrqAttr, WcOpcode,
    WcStatus,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::pair::*;

/// An offset in an end's memory whose address is a multiple of eight.
fn aligned(end: &End) -> usize {
    end.memory.as_ptr().align_offset(8)
}

fn word(end: &End, at: usize) -> u64 {
    u64::from_ne_bytes(end.memory[at..][..8].try_into().unwrap())
}

#[test]
fn atomics_add_and_swap_in_the_peers_memory_and_return_the_old_value() {
    let (active, mut passive) = connected();
    let (here, there) = (aligned(&active), aligned(&passive));
    passive.memory[there..][..8].copy_from_slice(&40u64.to_ne_bytes());
    let remote = RemoteAddr {
        addr: passive.sge(there, 8).addr,
        rkey: passive.mr.rkey(),
    };
    active.post_send(1, SendOp::AtomicFetchAdd { remote, add: 2 }, here, 8);
    let done = active.complete();
    assert_eq!(
        (done.status, done.opcode),
        (WcStatus::Success, WcOpcode::FetchAdd)
    );
    assert_eq!((word(&active, here), word(&passive, there)), (40, 42));
    for (compare, swap, before, after) in [(42, 7, 42, 7), (42, 9, 7, 7)] {
        let op = SendOp::AtomicCmpSwap {
            remote,
            compare,
            swap,
        };
        active.post_send(2, op, here, 8);
        let done = active.complete();
        assert_eq!(
            (done.status, done.opcode),
            (WcStatus::Success, WcOpcode::CompSwap)
        );
        assert_eq!(
            (word(&active, here), word(&passive, there)),
            (before, after)
        );
    }
}

#[test]
fn inline_bytes_are_copied_when_they_are_posted() {
    let (active, passive) = connected();
    passive.post_recv(1, 0, 64);
    let mut bytes = *b"inline";
    let wr = SendWr {
        wr_id: 2,
        op: SendOp::Send,
        data: SendData::Inline(&bytes),
        flags: SendFlags::empty(),
        ud: None,
        srq: None,
    };
    active.qp.post_send(&wr).unwrap();
    bytes.fill(0);
    assert_eq!(passive.complete().byte_len, 6);
    assert_eq!(passive.memory[..6], *b"inline");
}

#[test]
fn a_full_receive_queue_is_an_error_and_loses_nothing() {
    let (active, passive) = connected();
    let limit = passive.qp.query().unwrap().1.cap.max_recv_wr;
    for wr_id in 0..u64::from(limit) {
        passive.post_recv(wr_id, 0, 64);
    }
    let sges = [passive.sge(0, 64)];
    let wr = RecvWr {
        wr_id: 0,
        sges: &sges,
    };
    let mut posted = u64::from(limit);
    // A provider may have rounded the size up further than it reports.
    let error = loop {
        match passive.qp.post_recv(&wr) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
        assert!(posted < 1 << 16, "the queue never fills");
    };
    assert!(
        matches!(error.cause, portolan::Cause::LimitReached { .. }),
        "{error}"
    );
    active.post_send(1, SendOp::Send, 0, 8);
    assert_eq!(passive.complete().status, WcStatus::Success);
}

#[test]
fn an_armed_completion_queue_raises_an_event_with_its_name_on_its_channel() {
    let (active, passive) = connected();
    assert_eq!(passive.comp_channel.take_event().unwrap(), None);
    passive.cq.arm(false).unwrap();
    passive.post_recv(1, 0, 64);
    active.post_send(2, SendOp::Send, 0, 8);
    let fd = passive.comp_channel.as_fd();
    let within = Timespec::try_from(PATIENCE).unwrap();
    assert_eq!(
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&within)),
        Ok(1)
    );
    assert_eq!(passive.comp_channel.take_event().unwrap(), Some(COOKIE));
    assert_eq!(passive.complete().wr_id, 1);
    assert_eq!(passive.comp_channel.take_event().unwrap(), None);
}

#[test]
fn a_completion_queue_has_the_requested_size_and_can_grow() {
    let (active, _passive) = connected();
    assert!(active.cq.capacity() >= 64);
    active.cq.resize(200).unwrap();
    assert!(active.cq.capacity() >= 200);
}

#[test]
fn receives_are_taken_from_a_shared_queue() {
    let attr = SrqAttr {
        max_wr: 8,
        max_sge: 1,
        srq_limit: 0,
    };
    let (active, passive) = connected_drawing_on(Some(attr));
    let srq = passive.srq.clone().unwrap();
    assert!(srq.query().unwrap().max_wr >= 8);
    let sges = [passive.sge(0, 64)];
    let wr = RecvWr {
        wr_id: 5,
        sges: &sges,
    };
    srq.post_recv(&wr).unwrap();
    active.post_send(1, SendOp::Send, 0, 8);
    let received = passive.complete();
    assert_eq!((received.wr_id, received.status), (5, WcStatus::Success));
    assert_eq!(received.qp_num, passive.qp.qpn());
    assert!(srq.destroy().is_err(), "a queue pair uses it");
}

#[test]
fn a_memory_window_opens_a_part_until_it_is_invalidated() {
    let (mut active, passive) = connected();
    active.memory[..8].copy_from_slice(b"through!");
    let mw = passive.pd.alloc_mw(MwType::Type2).unwrap();
    let (rkey, new_rkey) = (mw.rkey(), mw.rkey() ^ 0x55);
    let part = passive.sge(4096, 64);
    let bind = MwBind {
        lkey: passive.mr.lkey(),
        addr: part.addr,
        length: 64,
        access: Access::REMOTE_WRITE,
    };
    let op = SendOp::BindMw {
        rkey,
        new_rkey,
        bind,
    };
    passive.work(1, op).unwrap();
    let bound = passive.complete();
    assert_eq!(
        (bound.status, bound.opcode),
        (WcStatus::Success, WcOpcode::BindMw)
    );
    let remote = RemoteAddr {
        addr: part.addr,
        rkey: new_rkey,
    };
    active.post_send(2, SendOp::RdmaWrite(remote), 0, 8);
    assert_eq!(active.complete().status, WcStatus::Success);
    assert_eq!(passive.memory[4096..][..8], *b"through!");

    passive.work(3, SendOp::LocalInv(new_rkey)).unwrap();
    assert_eq!(passive.complete().status, WcStatus::Success);
    active.post_send(4, SendOp::RdmaWrite(remote), 0, 8);
    assert_eq!(active.complete().status, WcStatus::RemAccessErr);
}
