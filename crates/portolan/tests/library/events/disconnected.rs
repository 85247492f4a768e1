//! RDMA_CM_EVENT_DISCONNECTED: the connection has been disconnected.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::{ConnParam, EventType};
use portolan::provider::traits::Qp;
use portolan::provider::verbs::{
    QpState, RecvWr, SendData, SendFlags, SendOp, SendWr, WorkCompletion,
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::harness::*;
use crate::low::*;
use crate::process::Peer;

#[test]
fn disconnected_comes_to_both_sides_without_private_data() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let verbs = Verbs::of(&id.device().unwrap());
    let qp = verbs.give(&id);
    let child = passive.connect(&channel, &id);

    child.disconnect().unwrap();
    let event = next(&channel, EventType::Disconnected);
    assert_eq!((event.status(), event.id().number()), (0, id.number()));
    assert_eq!(event.conn(), Some(&ConnParam::default()));
    assert_eq!(state_of(&qp), QpState::Rts, "its owner disconnects it");
    id.disconnect().unwrap();
    assert_eq!(state_of(&qp), QpState::Err);
    let event = next(&passive.channel, EventType::Disconnected);
    assert_eq!((event.status(), event.id().number()), (0, child.number()));
    assert_eq!(event.private_data(), b"");
}

#[test]
fn disconnected_comes_with_etimedout_from_a_peer_that_stopped_answering() {
    let port = free_port();
    let ours = start_impatient(port);
    let mut peer = Peer::start(port);
    let address = peer.listen();
    let (channel, id) = routed_on(EventChannel::open_on(ours).unwrap(), TCP, address);
    let verbs = Verbs::of(&id.device().unwrap());
    let _qp = verbs.give(&id);
    peer.tell("accept");
    id.connect(&param(b"")).unwrap();
    next(&channel, EventType::Established);
    assert_eq!(peer.answer(), "ok");
    let _stopped = peer.stop();
    id.disconnect().unwrap();
    let event = next(&channel, EventType::Disconnected);
    assert_eq!((event.status(), event.id().number()), (-110, id.number()));
}

/// How long a disconnect waits for a program that has not polled a completion that came before it.
const HELD: Duration = Duration::from_millis(20);

/// A connected end with its own channel.
struct End {
    channel: EventChannel,
    id: CmId,
    verbs: Verbs,
    qp: Arc<dyn Qp>,
}

impl End {
    fn new(channel: EventChannel, id: CmId) -> Self {
        let verbs = Verbs::of(&id.device().unwrap());
        let qp = verbs.give(&id);
        Self {
            channel,
            id,
            verbs,
            qp,
        }
    }

    fn poll(&self) -> usize {
        self.verbs.cq.poll(&mut [WorkCompletion::EMPTY]).unwrap()
    }

    #[track_caller]
    fn poll_until_complete(&self) {
        let started = Instant::now();
        while self.poll() == 0 {
            assert!(started.elapsed() < PATIENCE, "no completion");
        }
    }
}

/// Connected ends. The first one has sent an empty message, which the other has received.
fn sent() -> [End; 2] {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let active = End::new(channel, id);
    active.id.connect(&param(b"")).unwrap();
    let child = passive.request();
    let own = channel_of(&child);
    let passive = End::new(own, child);
    passive
        .qp
        .post_recv(&RecvWr {
            wr_id: 1,
            sges: &[],
        })
        .unwrap();
    passive.id.accept(&param(b"")).unwrap();
    next(&active.channel, EventType::Established);
    next(&passive.channel, EventType::Established);
    let send = SendWr {
        wr_id: 2,
        op: SendOp::Send,
        data: SendData::Sges(&[]),
        flags: SendFlags::SIGNALED,
        ud: None,
        srq: None,
    };
    active.qp.post_send(&send).unwrap();
    passive.poll_until_complete();
    [active, passive]
}

fn channel_of(id: &CmId) -> EventChannel {
    let own = channel();
    id.migrate(&own, PATIENCE).unwrap();
    own
}

#[test]
fn disconnected_waits_until_the_completions_before_it_are_polled_for_a_limited_time() {
    let [sender, receiver] = sent();
    let started = Instant::now();
    receiver.id.disconnect().unwrap();
    next(&sender.channel, EventType::Disconnected);
    let waited = started.elapsed();
    assert!(waited >= HELD, "the program had not polled: {waited:?}");
    assert_eq!(sender.poll(), 1, "the message was acknowledged");
}

#[test]
fn disconnected_waits_no_longer_once_the_completions_before_it_are_polled() {
    let is_soon = (0..20).any(|_| {
        let [sender, receiver] = sent();
        let started = Instant::now();
        receiver.id.disconnect().unwrap();
        sender.poll_until_complete();
        next(&sender.channel, EventType::Disconnected);
        started.elapsed() < HELD
    });
    assert!(is_soon);
}

#[test]
fn disconnected_waits_for_nothing_if_all_completions_are_polled() {
    let is_soon = (0..20).any(|_| {
        let [sender, receiver] = sent();
        sender.poll_until_complete();
        let started = Instant::now();
        receiver.id.disconnect().unwrap();
        next(&sender.channel, EventType::Disconnected);
        started.elapsed() < HELD / 4
    });
    assert!(is_soon);
}

#[test]
fn disconnected_does_not_wait_at_the_end_that_disconnects_itself_meanwhile() {
    let is_soon = (0..20).any(|_| {
        let [sender, receiver] = sent();
        let started = Instant::now();
        receiver.id.disconnect().unwrap();
        std::thread::sleep(Duration::from_millis(1));
        sender.id.disconnect().unwrap();
        next(&sender.channel, EventType::Disconnected);
        started.elapsed() < HELD
    });
    assert!(is_soon);
}

/// An end whose channel does not block, with a completion that it has not polled, and a disconnect after it.
fn not_blocking() -> [End; 2] {
    let [sender, receiver] = sent();
    let flags = fcntl_getfl(&sender.channel).unwrap();
    fcntl_setfl(&sender.channel, flags | OFlags::NONBLOCK).unwrap();
    receiver.id.disconnect().unwrap();
    wait_until_readable(&sender.channel);
    [sender, receiver]
}

#[track_caller]
fn wait_until_readable(channel: &EventChannel) {
    let started = Instant::now();
    while !readable(channel) {
        assert!(started.elapsed() < PATIENCE, "no event");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn disconnected_is_not_taken_before_the_completions_however_late_a_program_looks_for_it() {
    let [sender, _receiver] = not_blocking();
    std::thread::sleep(2 * HELD);
    assert!(sender.channel.try_next_event().unwrap().is_none());
    assert_eq!(sender.poll(), 1, "the message was acknowledged");
    wait_until_readable(&sender.channel);
    next(&sender.channel, EventType::Disconnected);
}

#[test]
fn disconnected_is_refused_only_once_to_a_program_that_does_not_poll() {
    let [sender, _receiver] = not_blocking();
    assert!(sender.channel.try_next_event().unwrap().is_none());
    wait_until_readable(&sender.channel);
    next(&sender.channel, EventType::Disconnected);
    assert_eq!(sender.poll(), 1, "the message was acknowledged");
}

#[test]
fn disconnected_is_not_refused_to_a_program_that_disconnects_itself() {
    let [sender, _receiver] = not_blocking();
    sender.id.disconnect().unwrap();
    let event = sender.channel.try_next_event().unwrap();
    assert_eq!(event.unwrap().event_type(), EventType::Disconnected);
}
