//! Data over connected queue pairs.

use portolan::provider::verbs::{RemoteAddr, SendOp, WcOpcode, WcStatus};

use crate::pair::*;

/// Longer than a packet, and not a multiple of its size.
const LEN: usize = 10_007;
/// Offset of the second half of an end's memory.
const HALF: usize = MEMORY_LEN / 2;

fn fill(end: &mut End, len: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + 7) as u8).collect();
    end.memory[..len].copy_from_slice(&bytes);
    bytes
}

fn remote(end: &End) -> RemoteAddr {
    RemoteAddr {
        addr: end.sge(HALF, 0).addr,
        rkey: end.mr.rkey(),
    }
}

#[test]
fn a_send_arrives_in_the_receive_that_was_posted_first() {
    let (mut active, passive) = connected();
    passive.post_recv(1, 0, HALF);
    passive.post_recv(2, HALF, HALF);
    let sent = fill(&mut active, LEN);
    active.post_send(3, SendOp::Send, 0, LEN);
    let received = passive.complete();
    assert_eq!((received.wr_id, received.status), (1, WcStatus::Success));
    assert_eq!(
        (received.opcode, received.byte_len),
        (WcOpcode::Recv, LEN as u32)
    );
    assert_eq!(passive.memory[..LEN], sent);
    let done = active.complete();
    assert_eq!(
        (done.wr_id, done.status, done.opcode),
        (3, WcStatus::Success, WcOpcode::Send)
    );
}

#[test]
fn immediate_data_arrives_with_a_send_and_with_a_write() {
    let (active, passive) = connected();
    passive.post_recv(1, 0, 64);
    passive.post_recv(2, 0, 64);
    active.post_send(3, SendOp::SendWithImm(0x0102_0304), 0, 8);
    active.post_send(
        4,
        SendOp::RdmaWriteWithImm(remote(&passive), 0x0506_0708),
        0,
        8,
    );
    let (first, second) = (passive.complete(), passive.complete());
    assert_eq!((first.wr_id, first.imm_data), (1, Some(0x0102_0304)));
    assert_eq!((second.wr_id, second.imm_data), (2, Some(0x0506_0708)));
    assert_eq!(second.opcode, WcOpcode::RecvRdmaWithImm);
}

#[test]
fn a_write_and_a_read_move_the_bytes() {
    let (mut active, passive) = connected();
    let sent = fill(&mut active, LEN);
    active.post_send(1, SendOp::RdmaWrite(remote(&passive)), 0, LEN);
    let done = active.complete();
    assert_eq!(
        (done.status, done.opcode),
        (WcStatus::Success, WcOpcode::RdmaWrite)
    );
    assert_eq!(passive.memory[HALF..][..LEN], sent);
    active.post_send(2, SendOp::RdmaRead(remote(&passive)), HALF, LEN);
    let done = active.complete();
    assert_eq!(
        (done.status, done.opcode),
        (WcStatus::Success, WcOpcode::RdmaRead)
    );
    assert_eq!(active.memory[HALF..][..LEN], sent);
}

#[test]
fn a_wrong_key_is_refused_and_ends_the_queue_pair() {
    let (active, passive) = connected();
    let wrong = RemoteAddr {
        rkey: passive.mr.rkey() ^ 0x55,
        ..remote(&passive)
    };
    active.post_send(1, SendOp::RdmaWrite(wrong), 0, 8);
    active.post_send(2, SendOp::Send, 0, 8);
    assert_eq!(active.complete().status, WcStatus::RemAccessErr);
    assert_eq!(active.complete().status, WcStatus::WrFlushErr);
}

#[test]
fn a_message_longer_than_its_receive_is_an_error_on_both_sides() {
    let (active, passive) = connected();
    passive.post_recv(1, 0, 16);
    active.post_send(2, SendOp::Send, 0, 17);
    let told = (passive.complete().status, active.complete().status);
    assert_eq!(told, too_long(&passive));
}

/// The statuses at both sides for a message that is too long: those of IBTA 9.9.3, except that rdma_rxe reports
/// an operation error of the responder (docs/compatibility.md).
fn too_long(passive: &End) -> (WcStatus, WcStatus) {
    let is_rxe = provider().name() == "kernel" && passive.device.name().starts_with("rxe");
    match is_rxe {
        true => (WcStatus::LocQpOpErr, WcStatus::RemOpErr),
        false => (WcStatus::LocLenErr, WcStatus::RemInvReqErr),
    }
}

#[test]
fn posted_work_is_flushed_when_the_connection_ends() {
    let (active, passive) = connected();
    passive.post_recv(1, 0, 16);
    passive.id.disconnect().unwrap();
    let flushed = passive.complete();
    assert_eq!((flushed.wr_id, flushed.status), (1, WcStatus::WrFlushErr));
    drop(active);
}
