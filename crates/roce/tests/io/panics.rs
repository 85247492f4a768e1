//! A panic in one thread leaves the device usable for all others, and is reported to those affected.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use portolan_provider::traits::{Device, Notify, Qp};
use portolan_provider::verbs::{
    AsyncEvent, QpAttr, QpAttrMask, QpState, RecvWr, SendData, SendFlags, SendOp, SendWr, WcStatus,
    WorkCompletion,
};
use portolan_provider::{Cause, Error};
use portolan_roce::io::{DeviceChange, Gsi, ReceivedMad, SoftDevice, Stack, Tap, TappedPacket};
use rustix::event::{EventfdFlags, eventfd};

use crate::harness::{End, Nobody, PATIENCE, Shape, config, stack, until};

const LOOPBACK: &str = "127.0.0.1";
/// Nothing is sent twice, which could wake a thread that missed it the first time.
const NEVER: u8 = 0;
/// If nobody polls for so long, the progress thread sleeps.
const A_WHILE: Duration = Duration::from_millis(50);
/// More than a wake-up takes, and less than the progress thread sleeps without one.
const AWAKE_WITHIN: Duration = Duration::from_secs(5);
/// The message of the panics.
const REQUESTED: &str = "a panic requested by the test";

/// Panics on one thread when the device is about to report an established connection, with a queue pair locked.
fn panic_when_established(device: &SoftDevice, here: impl Fn() -> bool + Send + Sync + 'static) {
    let wants = move |event: &AsyncEvent| {
        let is_meant = matches!(event, AsyncEvent::CommEst(_)) && here();
        assert!(!is_meant, "{REQUESTED}");
        false
    };
    let listener = device.listen_async(wants).unwrap();
    // Registered for the lifetime of the process.
    std::mem::forget(listener);
}

/// A queue pair in RTR with a posted receive, which gets its peer's first message.
fn hear_in_rtr(stacks: &[Arc<Stack>; 2]) -> [End; 2] {
    let ip = LOOPBACK.parse().unwrap();
    // What is to arrive are packets.
    let shape = Shape {
        in_file: false,
        timeout: NEVER,
        ..Shape::default()
    };
    let [a, b] = [&stacks[0], &stacks[1]].map(|stack| End::new(stack, ip, shape));
    b.connect_to(&b.qp, ip, a.qp.qpn(), shape, QpState::Rtr);
    a.connect(ip, b.qp.qpn(), shape);
    b.receive(7, b.sge(0, 100));
    [a, b]
}

fn connect(stacks: &[Arc<Stack>; 2]) -> [End; 2] {
    let ip = LOOPBACK.parse().unwrap();
    // What is to arrive are packets.
    let shape = Shape {
        in_file: false,
        timeout: NEVER,
        ..Shape::default()
    };
    let ends = [&stacks[0], &stacks[1]].map(|stack| End::new(stack, ip, shape));
    ends[0].connect(ip, ends[1].qp.qpn(), shape);
    ends[1].connect(ip, ends[0].qp.qpn(), shape);
    ends
}

fn exchange(ends: &[End; 2]) {
    let [a, b] = ends;
    b.receive(2, b.sge(0, 100));
    a.post(1, SendOp::Send, a.sge(0, 100));
    a.expect(1);
    b.expect(2);
}

/// A connection manager that stops the progress thread when told.
#[derive(Debug, Default)]
struct Stops(Mutex<Option<(Sender<()>, Receiver<()>)>>);

impl Stops {
    /// Stops the progress thread of this stack until the returned value is dropped.
    fn stop(&self, stack: &Stack) -> Sender<()> {
        let (stopped, here) = channel();
        let (resume, until) = channel();
        *self.0.lock().unwrap() = Some((stopped, until));
        stack.wake();
        here.recv_timeout(PATIENCE).unwrap();
        resume
    }
}

impl Gsi for Stops {
    fn mad(&self, _: ReceivedMad<'_>) {}
    fn next_timeout(&self) -> Option<Duration> {
        let asked = self.0.lock().unwrap().take();
        if let Some((stopped, until)) = asked {
            stopped.send(()).unwrap();
            // The other end is dropped.
            until.recv().unwrap_err();
        }
        None
    }
    fn timeout(&self) {}
}

/// Exchanges messages until the link through memory is up, if there is one.
fn use_memory(ends: &[End; 2]) {
    for _ in 0..10 {
        exchange(ends);
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_panic_of_a_poller_fails_only_the_queue_pair_that_it_served() {
    let config = config();
    let stops = Arc::new(Stops::default());
    let (gsi, nobody) = (stops.clone(), Arc::new(Nobody));
    let start = || Stack::start(config.clone(), gsi, Box::new(Nobody), nobody).unwrap();
    let stacks = [stack(&config), start()];
    let bystanders = connect(&stacks);
    let poller = thread::current().id();
    let (device, _) = stacks[1].device_of(LOOPBACK.parse().unwrap(), 0).unwrap();
    panic_when_established(&device, move || thread::current().id() == poller);
    use_memory(&bystanders);
    let [a, b] = hear_in_rtr(&stacks);
    // Otherwise the progress thread may take the packet.
    let stopped = stops.stop(&stacks[1]);
    a.post(1, SendOp::Send, a.sge(0, 100));
    let panic = catch_unwind(AssertUnwindSafe(|| b.expect(7))).unwrap_err();
    assert_eq!(panic.downcast_ref::<String>().unwrap(), REQUESTED);
    drop(stopped);
    until("the queue pair is in error", || {
        b.qp.query().unwrap().0.state == QpState::Err
    });
    let mut seen = Vec::new();
    until("its owner gets the event", || {
        seen.extend(b.device.take_async_event().unwrap());
        seen.contains(&AsyncEvent::QpFatal(b.qp.qpn()))
    });
    thread::sleep(A_WHILE);
    let started = Instant::now();
    exchange(&bystanders);
    assert!(started.elapsed() < AWAKE_WITHIN, "{:?}", started.elapsed());
    exchange(&connect(&stacks));
}

/// A connection manager that records changes of devices.
#[derive(Debug, Default)]
struct Changes(Mutex<Vec<DeviceChange>>);

impl Gsi for Changes {
    fn mad(&self, _: ReceivedMad<'_>) {}
    fn next_timeout(&self) -> Option<Duration> {
        None
    }
    fn timeout(&self) {}
    fn device_changed(&self, _: &Arc<SoftDevice>, change: DeviceChange) {
        self.0.lock().unwrap().push(change);
    }
}

#[test]
fn a_panic_of_the_progress_thread_is_a_fatal_error_of_its_devices_which_are_replaced() {
    let config = config();
    let changes = Arc::new(Changes::default());
    let (gsi, nobody) = (changes.clone(), Arc::new(Nobody));
    let served = Stack::start(config.clone(), gsi, Box::new(Nobody), nobody).unwrap();
    let stacks = [stack(&config), served];
    let (device, _) = stacks[1].device_of(LOOPBACK.parse().unwrap(), 0).unwrap();
    panic_when_established(&device, || thread::current().name() == Some("portolan"));
    let fatal = device
        .listen_async(|event| *event == AsyncEvent::DeviceFatal)
        .unwrap();
    let bystanders = connect(&stacks);
    use_memory(&bystanders);
    let [_, bystander] = bystanders;
    bystander.receive(3, bystander.sge(0, 100));
    bystander.cq.arm(false).unwrap();
    let [a, b] = hear_in_rtr(&stacks);
    a.post(1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 8));

    until("the device's users get the event", || {
        fatal.take().unwrap().is_some()
    });
    for (end, wr_id) in [(&b, 7), (&bystander, 3)] {
        let flushed = end.wait();
        assert_eq!(
            (flushed.wr_id, flushed.status),
            (wr_id, WcStatus::WrFlushErr)
        );
        assert_eq!(end.qp.query().unwrap().0.state, QpState::Err);
    }
    let refused = device.alloc_pd().unwrap_err();
    assert_eq!(refused.cause, Cause::DeviceRemoved);
    until("the connection manager gets the change", || {
        let changes = changes.0.lock().unwrap();
        changes.contains(&DeviceChange::Removed) && changes.contains(&DeviceChange::Added)
    });
    // The thread continues: it alone serves an end that sleeps.
    let [a, b] = connect(&stacks);
    thread::sleep(A_WHILE);
    b.receive(2, b.sge(0, 100));
    b.cq.arm(false).unwrap();
    let posted = Instant::now();
    a.post(1, SendOp::Send, a.sge(0, 100));
    assert_eq!(b.wait().wr_id, 2);
    assert!(posted.elapsed() < AWAKE_WITHIN, "{:?}", posted.elapsed());
}

/// Panics at its first packet.
#[derive(Debug, Default)]
struct Panics(AtomicUsize);

impl Tap for Panics {
    fn packet(&self, _: &TappedPacket<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("{REQUESTED}");
    }
}

#[test]
fn a_panicking_tap_is_removed_and_the_device_continues() {
    let config = config();
    let stacks = [stack(&config), stack(&config)];
    let ends = connect(&stacks);
    let taps = [(); 2].map(|()| Arc::new(Panics::default()));
    for (stack, tap) in stacks.iter().zip(&taps) {
        stack.set_tap(Some(tap.clone()));
    }
    exchange(&ends);
    exchange(&ends);
    let calls = taps.map(|tap| tap.0.load(Ordering::Relaxed));
    assert!(calls.iter().all(|calls| *calls == 1), "{calls:?}");
}

/// Posts to a queue pair at its first packet.
#[derive(Debug, Default)]
struct Posts {
    to: OnceLock<Arc<dyn Qp>>,
    posted: Mutex<Option<Result<(), Error>>>,
}

impl Tap for Posts {
    fn packet(&self, _: &TappedPacket<'_>) {
        let wr = SendWr {
            wr_id: 9,
            op: SendOp::Send,
            data: SendData::Sges(&[]),
            flags: SendFlags::SIGNALED,
            ud: None,
            srq: None,
        };
        let posted = self.to.get().map(|qp| qp.post_send(&wr));
        let mut slot = self.posted.lock().unwrap();
        *slot = slot.take().or(posted);
    }
}

#[test]
fn a_tap_that_posts_is_refused_instead_of_deadlocking() {
    let config = config();
    let stacks = [stack(&config), stack(&config)];
    let (told, ended) = channel();
    thread::spawn(move || {
        let ends = connect(&stacks);
        let tap = Arc::new(Posts::default());
        tap.to.set(ends[0].qp.clone()).unwrap();
        stacks[0].set_tap(Some(tap.clone()));
        exchange(&ends);
        let posted = tap.posted.lock().unwrap().take();
        told.send(posted.expect("no packet was seen")).unwrap();
    });
    match ended.recv_timeout(PATIENCE) {
        Ok(posted) => {
            let refused = posted.expect_err("posted from within a tap");
            assert!(matches!(refused.cause, Cause::Unsupported(_)), "{refused}");
        }
        Err(RecvTimeoutError::Timeout) => panic!("the tap waits for itself"),
        Err(RecvTimeoutError::Disconnected) => panic!("the exchange failed"),
    }
}

/// Panics at its first call.
#[derive(Debug)]
struct PanicsOnce(AtomicUsize, OwnedFd);

impl Notify for PanicsOnce {
    fn notify(&self) {
        assert!(self.0.fetch_add(1, Ordering::SeqCst) > 0, "{REQUESTED}");
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.1.as_fd()
    }
}

#[test]
fn completions_that_are_delivered_as_a_notification_panics_are_not_delivered_again() {
    let stack = stack(&config());
    let shape = Shape::default();
    let end = End::new(&stack, LOOPBACK.parse().unwrap(), shape);
    let flags = EventfdFlags::CLOEXEC;
    let descriptor = eventfd(0, flags).unwrap();
    let notify: Arc<dyn Notify> = Arc::new(PanicsOnce(AtomicUsize::new(0), descriptor));
    let cq = end.device.create_calling_cq(16, &notify).unwrap().unwrap();
    let init = end.qp.query().unwrap().1;
    let qp = end.pd.create_qp(&init, &cq, &cq, None).unwrap();
    end.connect_qp(&qp, end.ip, end.qp.qpn(), shape);
    let receive = |wr_id| {
        let sges = &[end.sge(0, 8)];
        qp.post_recv(&RecvWr { wr_id, sges })
    };
    for wr_id in [1, 2, 3] {
        receive(wr_id).unwrap();
    }
    cq.arm(false).unwrap();
    let failed = QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    };
    let panicked = catch_unwind(AssertUnwindSafe(|| qp.modify(&failed, QpAttrMask::STATE)));
    assert!(panicked.is_err());
    // It delivers what was not delivered.
    receive(4).unwrap();
    let mut out = [WorkCompletion::EMPTY; 16];
    let mut flushed: Vec<u64> = Vec::new();
    until("all are flushed", || {
        let count = cq.poll(&mut out).unwrap();
        flushed.extend(out[..count].iter().map(|wc| wc.wr_id));
        flushed.contains(&4)
    });
    assert_eq!(flushed, [1, 2, 3, 4]);
}
