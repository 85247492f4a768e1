//! Management datagrams, and the connection manager's timers, on the progress thread.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use portolan_port_sharing::{Block, CoordinatorService, Datagram, Route};
use portolan_provider::Result;
use portolan_provider::traits::Device;
use portolan_roce::io::{EventWaiter, Gsi, MadOptions, Readiness, ReceivedMad, Stack, StackConfig};
use portolan_wire::Qpn;

use crate::harness::{Nobody, PATIENCE, config};

/// Source, destination, receiving device, options, and the datagram.
type Seen = (IpAddr, IpAddr, Option<String>, MadOptions, [u8; 256]);

/// Different from the system's defaults.
const OPTIONS: MadOptions = MadOptions {
    traffic_class: 0x28,
    hop_limit: 7,
};

/// Forwards what arrives, and requests one timer when told.
#[derive(Debug)]
struct Manager {
    mads: Mutex<Sender<Seen>>,
    due: Mutex<Option<Instant>>,
    called: Mutex<Sender<Instant>>,
    /// The thread that handled the last datagram.
    handler: Mutex<Option<ThreadId>>,
}

impl Gsi for Manager {
    fn mad(&self, mad: ReceivedMad<'_>) {
        assert_eq!(mad.source_qp, Qpn::GSI);
        assert_ne!(mad.mad[1], PANIC, "a panic requested by the test");
        let device = mad.device.map(|device| device.name().to_owned());
        let (traffic_class, hop_limit) = (mad.traffic_class, mad.hop_limit);
        let options = MadOptions {
            traffic_class,
            hop_limit,
        };
        let seen = (mad.remote.ip(), mad.local, device, options, *mad.mad);
        *self.handler.lock().unwrap() = Some(thread::current().id());
        self.mads.lock().unwrap().send(seen).unwrap();
    }

    fn next_timeout(&self) -> Option<Duration> {
        let due = *self.due.lock().unwrap();
        due.map(|due| due.saturating_duration_since(Instant::now()))
    }

    fn timeout(&self) {
        let due = self.due.lock().unwrap().take();
        let now = Instant::now();
        assert!(due.is_some_and(|due| due <= now), "called too early");
        self.called.lock().unwrap().send(now).unwrap();
    }
}

/// Routes a MAD to the block in its first byte; 0 is this process.
struct ByFirstByte;

impl CoordinatorService for ByFirstByte {
    fn reset(&mut self) {}
    fn request(&mut self, member: Block, payload: &[u8]) -> Vec<u8> {
        [&[member.index()], payload].concat()
    }
    fn member_left(&mut self, _: Block) {}
    fn route(&mut self, datagram: &Datagram<'_>) -> Route {
        // BTH and DETH precede the MAD.
        match datagram.payload.get(20).copied().map(Block::new) {
            Some(Some(Block::COORDINATOR)) => Route::Local,
            Some(Some(block)) => Route::Member(block),
            _ => Route::Drop,
        }
    }
}

fn managed(config: &StackConfig) -> (Arc<Stack>, Arc<Manager>, Receiver<Seen>, Receiver<Instant>) {
    let (mads, seen) = channel();
    let (called, calls) = channel();
    let manager = Arc::new(Manager {
        mads: Mutex::new(mads),
        due: Mutex::default(),
        called: Mutex::new(called),
        handler: Mutex::default(),
    });
    let (coordinator, member) = (Box::new(ByFirstByte), Arc::new(Nobody));
    let stack = Stack::start(config.clone(), manager.clone(), coordinator, member).unwrap();
    (stack, manager, seen, calls)
}

/// This value in the second byte of a MAD makes the manager panic.
const PANIC: u8 = 0xee;

fn mad(block: u8) -> [u8; 256] {
    let mut mad = [0x5a; 256];
    mad[0] = block;
    mad
}

#[test]
fn mads_reach_their_process_over_both_ip_versions() {
    let config = config();
    let (coordinator, _, at_coordinator, _) = managed(&config);
    let (member, _, at_member, _) = managed(&config);
    for ip in ["127.0.0.1", "::1"] {
        let ip: IpAddr = ip.parse().unwrap();
        let to = (ip, 0).into();
        let send = |stack: &Stack, mad: &[u8; 256]| {
            stack.send_mad(ip, to, OPTIONS, mad).unwrap();
        };
        send(&member, &mad(0));
        let expected = (ip, ip, Some("sw_lo".to_owned()), OPTIONS, mad(0));
        assert_eq!(at_coordinator.recv_timeout(PATIENCE).unwrap(), expected);
        let block = member.block().index();
        send(&coordinator, &mad(block));
        send(&member, &mad(block));
        let expected = (ip, ip, Some("sw_lo".to_owned()), OPTIONS, mad(block));
        assert_eq!(at_member.recv_timeout(PATIENCE).unwrap(), expected);
        assert_eq!(at_member.recv_timeout(PATIENCE).unwrap(), expected);
    }
    assert!(at_coordinator.try_recv().is_err());
}

#[test]
fn requests_are_answered_by_the_coordinator_which_knows_the_asker() {
    let config = config();
    let (coordinator, ..) = managed(&config);
    let (member, ..) = managed(&config);
    for stack in [&coordinator, &member] {
        let answer = stack.group_request(b"hello", PATIENCE).unwrap();
        assert_eq!(answer, [&[stack.block().index()], &b"hello"[..]].concat());
    }
}

#[test]
fn a_timer_set_while_the_thread_sleeps_is_served_in_time_and_once() {
    let config = config();
    let (stack, manager, _, calls) = managed(&config);
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(5));
        let due = Instant::now() + Duration::from_millis(10);
        *manager.due.lock().unwrap() = Some(due);
        stack.wake();
        let called = calls.recv_timeout(PATIENCE).unwrap();
        // Otherwise the thread would sleep for ten seconds.
        assert!(
            called - due < Duration::from_secs(8),
            "late by {:?}",
            called - due
        );
    }
    assert!(calls.try_recv().is_err());
}

#[test]
fn a_mad_between_ip_versions_is_refused() {
    let config = config();
    let (stack, ..) = managed(&config);
    let (from, to) = ("127.0.0.1".parse().unwrap(), "[::1]:0".parse().unwrap());
    let refused = stack.send_mad(from, to, MadOptions::default(), &mad(0));
    assert_eq!(refused.unwrap_err().errno(), 22);
}

#[test]
fn a_panicking_manager_does_not_fail_the_device() {
    let config = config();
    let (stack, _, seen, _) = managed(&config);
    let ip: IpAddr = "127.0.0.1".parse().unwrap();
    let send = |mad: &[u8; 256]| {
        stack.send_mad(ip, (ip, 0).into(), OPTIONS, mad).unwrap();
    };
    let mut fatal = mad(0);
    fatal[1] = PANIC;
    send(&fatal);
    send(&mad(0));
    assert_eq!(seen.recv_timeout(PATIENCE).unwrap().4, mad(0));
}

/// A thread that waits for an event that never comes.
#[derive(Debug)]
struct Patient(Readiness);

impl EventWaiter for Patient {
    fn begin(&self) -> bool {
        true
    }
    fn end(&self) {}
    fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.0.as_fd())
    }
}

/// A stack, its connection manager, the datagrams that arrived, and the timeouts.
type Watched = (Arc<Stack>, Arc<Manager>, Receiver<Seen>, Receiver<Instant>);

/// Sends a datagram for the first stack, and returns the thread that handles it.
fn handler(stacks: &[Watched; 2]) -> ThreadId {
    let [(to, manager, seen, _), (from, ..)] = stacks;
    let local: IpAddr = "127.0.0.1".parse().unwrap();
    let mut mad = [0x5a; 256];
    mad[..2].copy_from_slice(&[to.block().index(), 0]);
    from.send_mad(local, (local, 0).into(), OPTIONS, &mad)
        .unwrap();
    seen.recv_timeout(PATIENCE).unwrap();
    manager.handler.lock().unwrap().unwrap()
}

#[test]
fn a_thread_that_waits_for_an_event_handles_datagrams_and_otherwise_the_progress_thread_does() {
    for receiver_is_coordinator in [true, false] {
        let config = config();
        let mut stacks = [managed(&config), managed(&config)];
        if !receiver_is_coordinator {
            stacks.swap(0, 1);
        }
        let progress = handler(&stacks);
        assert_ne!(progress, thread::current().id());
        let (stack, nudge) = (stacks[0].0.clone(), stacks[0].0.nudge());
        let (stop, stopped) = channel::<()>();
        let waiting = thread::spawn(move || {
            let patient = Patient(Readiness::new().unwrap());
            while stopped.try_recv().is_err() {
                stack.wait_for(&patient, Some(PATIENCE)).unwrap();
            }
        });
        // The first ones may arrive before it waits.
        let end = Instant::now() + PATIENCE;
        while handler(&stacks) != waiting.thread().id() {
            assert!(Instant::now() < end, "the waiting thread handles none");
        }
        stop.send(()).unwrap();
        nudge.give();
        waiting.join().unwrap();
        assert_eq!(handler(&stacks), progress);
    }
}

#[test]
fn of_two_waiting_threads_one_handles_datagrams_and_the_other_waits_for_its_own_descriptor() {
    let (stack, ..) = managed(&config());
    let attendance = stack.attend().unwrap();
    let other = stack.clone();
    let waiting = thread::spawn(move || {
        assert!(other.attend().is_none());
        let readiness = Readiness::new().unwrap();
        readiness.raise();
        other.wait_for(&Patient(readiness), None).unwrap();
    });
    waiting.join().unwrap();
    // A thread may attend again.
    drop(stack.attend().unwrap());
    let (other, nudge) = (stack.clone(), stack.nudge());
    thread::spawn(move || assert!(other.attend().is_none()))
        .join()
        .unwrap();
    nudge.give();
    stack
        .wait_for(&Patient(Readiness::new().unwrap()), None)
        .unwrap();
    drop(attendance);
    let other = stack.clone();
    thread::spawn(move || assert!(other.attend().is_some()))
        .join()
        .unwrap();
}

/// A thread whose wait fails.
#[derive(Debug)]
struct Panicking;

impl EventWaiter for Panicking {
    fn begin(&self) -> bool {
        panic!("requested by the test")
    }
    fn end(&self) {}
    fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        unreachable!("no other thread waits")
    }
}

#[test]
fn after_a_waiting_thread_has_panicked_the_progress_thread_handles_datagrams() {
    let config = config();
    let stacks = [managed(&config), managed(&config)];
    let progress = handler(&stacks);
    let stack = stacks[0].0.clone();
    let waited = thread::spawn(move || stack.wait_for(&Panicking, None)).join();
    assert!(waited.is_err());
    assert_eq!(handler(&stacks), progress);
}
