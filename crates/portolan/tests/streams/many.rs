//! Many streams in one process: the cost of idle streams, and what closed streams leave behind.
//!
//! Each test measures its own process. `PORTOLAN_TEST_IDLE_STREAMS=10000` and `PORTOLAN_TEST_CONNECTS=100000` set the
//! numbers of streams; `--nocapture` prints the figures.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::{ConnParam, EventType};
use portolan::wire::addr::Qpn;
use portolan::{Stream, StreamListener};
use portolan_rsocket::{ConnData, Sge};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::harness::*;
use crate::pair::*;

/// Both buffers of an end. They are registered, so they occupy memory from the start.
const BUFFERS_KIB: f64 = 256.0;
/// Maximum of an end's other memory: 384 posted receives and the queues.
const QUEUES_KIB_MAX: f64 = 48.0;
/// Descriptors of one end, even if a thread or an event loop waits for it: an eventfd.
const DESCRIPTORS_EACH: usize = 1;
const IDLE: Duration = Duration::from_secs(2);
/// Maximum processor time of the idle process during [`IDLE`].
const IDLE_TIME_MAX: Duration = Duration::from_millis(40);
/// Maximum of memory that all connects together may leave behind: slack of the allocators.
const LEFT_KIB_MAX: usize = 4096;

/// Runs one of the tests below in its own process.
fn in_a_process_of_its_own(test: &str) {
    let path = format!("many::{test}");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", &path, "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let erred = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{erred}");
    print!("{said}");
    assert!(said.contains("1 passed"), "{said}");
}

fn number(variable: &str, usual: usize) -> usize {
    let given = std::env::var(variable);
    given.map_or(usual, |number| number.parse().unwrap())
}

/// A number of `/proc/self/status`.
fn status(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    let number = line.split_ascii_whitespace().nth(1).unwrap();
    number.parse().unwrap()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Processor time of the whole process so far.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap()
}

fn connect(listener: &StreamListener, address: SocketAddr) -> [Stream; 2] {
    thread::scope(|scope| {
        let active = scope.spawn(|| Stream::connect_to(address, &stream_options()).unwrap());
        let (mut passive, _) = listener.accept_within(PATIENCE).unwrap();
        let mut active = active.join().unwrap();
        // Each end sends and receives once.
        for (from, to) in [(0, 1), (1, 0)] {
            let ends = [&mut active, &mut passive];
            let [mut writer, mut reader] = [&*ends[from], &*ends[to]];
            writer.write_all(b"x").unwrap();
            reader.read_exact(&mut [0]).unwrap();
        }
        [active, passive]
    })
}

#[test]
fn idle_streams_take_little_memory_and_no_processor_time() {
    in_a_process_of_its_own("idle_streams");
}

#[test]
#[ignore = "runs as a process of its own, started by another test"]
fn idle_streams() {
    let count = number("PORTOLAN_TEST_IDLE_STREAMS", 300);
    let mut limit = getrlimit(Resource::Nofile);
    // A connect has a descriptor of its own until it is finished.
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("as many descriptors as the process may have");

    let (listener, address) = stream_listener();
    let warm = connect(&listener, address);
    let (memory, open, threads) = (status("VmRSS"), descriptors(), lasting_threads());
    let started = Instant::now();
    let mut streams: Vec<_> = (0..count).map(|_| connect(&listener, address)).collect();
    let took = started.elapsed();
    let memory_each = (status("VmRSS") - memory) as f64 / (2 * count) as f64 - BUFFERS_KIB;
    let opened = descriptors().saturating_sub(open);
    assert_eq!(lasting_threads(), threads, "streams have no threads");
    thread::sleep(Duration::from_millis(500));
    let before = processor_time();
    thread::sleep(IDLE);
    let idle_time = processor_time() - before;
    println!(
        "{} ends of streams in {took:?}: {memory_each:.1} KiB besides its buffers each and {opened} descriptors, {idle_time:?} of \
         processor time in {IDLE:?}",
        2 * count
    );
    assert!(memory_each < QUEUES_KIB_MAX, "{memory_each} KiB each");
    assert!(opened <= DESCRIPTORS_EACH * 2 * count, "{opened}");
    assert!(idle_time < IDLE_TIME_MAX, "{idle_time:?} in {IDLE:?}");
    // Check that the streams still work.
    for [active, passive] in streams.iter_mut().step_by(17) {
        active.write_all(b"alive").unwrap();
        passive.read_exact(&mut [0; 5]).unwrap();
    }
    drop((streams, warm));
}

#[test]
fn streams_that_come_and_go_leave_nothing_behind() {
    in_a_process_of_its_own("come_and_go");
}

#[test]
#[ignore = "runs as a process of its own, started by another test"]
fn come_and_go() {
    let count = number("PORTOLAN_TEST_CONNECTS", 4000);
    let (listener, address) = stream_listener();
    let round = |count: usize| {
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..count {
                    let mut stream = Stream::connect_to(address, &stream_options()).unwrap();
                    stream.write_all(b"x").unwrap();
                    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
                }
            });
            for _ in 0..count {
                let (mut stream, _) = listener.accept_within(PATIENCE).unwrap();
                stream.read_exact(&mut [0]).unwrap();
            }
        });
    };
    // The first round grows what grows only once: tables, the allocators' arenas, ids in time-wait.
    round(count / 2);
    let (memory, open, threads) = (status("VmRSS"), descriptors(), lasting_threads());
    let started = Instant::now();
    round(count / 2);
    let took = started.elapsed();
    eventually("all descriptors are closed", || descriptors() <= open);
    let left = status("VmRSS").saturating_sub(memory);
    println!(
        "{} connects and closes in {took:?}, after as many before: {left} KiB more",
        count / 2
    );
    assert!(left < LEFT_KIB_MAX, "{left} KiB");
    assert!(
        lasting_threads() <= threads + 1,
        "the thread that lingers may run"
    );
}

#[test]
fn streams_without_end_leave_nothing_behind() {
    in_a_process_of_its_own("without_end");
}

#[test]
#[ignore = "runs as a process of its own, started by another test"]
fn without_end() {
    let (listener, address) = stream_listener();
    // Neither end has read the other's end when it is dropped.
    let round = || drop(connect(&listener, address));
    round();
    let open = descriptors();
    for _ in 0..50 {
        round();
    }
    // What a process has once may come late.
    eventually("the descriptors of 50 streams are closed", || {
        descriptors() < open + 10
    });
}

#[test]
fn a_dropped_stream_that_its_client_never_confirms_takes_no_processor_time() {
    in_a_process_of_its_own("dropped_and_unconfirmed");
}

#[test]
#[ignore = "runs as a process of its own, started by another test"]
fn dropped_and_unconfirmed() {
    let (listener, address) = stream_listener();
    let channel = EventChannel::open_on(provider()).unwrap();
    let id = CmId::new(&channel).unwrap();
    let next = |expected| {
        let event = channel.next_event_within(PATIENCE).unwrap();
        assert_eq!(event.event_type(), expected, "{event:?}");
    };
    id.resolve_addr(None, address, PATIENCE).unwrap();
    next(EventType::AddrResolved);
    id.resolve_route(PATIENCE).unwrap();
    next(EventType::RouteResolved);
    let memory = Sge {
        addr: 0x1000,
        key: 1,
        length: 16,
    };
    let offer = ConnData {
        big_endian: false,
        credits: 16,
        iomaps: None,
        table: memory,
        buffer: memory,
    };
    // Without a queue pair of its own, the id sends no RTU by itself.
    id.connect(&ConnParam {
        private_data: offer.encode().into(),
        qp_num: Qpn::new(0x50_0000),
        ..ConnParam::default()
    })
    .unwrap();
    let (mut stream, _) = listener.accept_within(PATIENCE).unwrap();
    next(EventType::ConnectResponse);
    stream.set_nonblocking(true).unwrap();
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    drop(stream);
    thread::sleep(Duration::from_millis(100));
    let before = processor_time();
    thread::sleep(IDLE);
    let time = processor_time() - before;
    println!("{time:?} of processor time in {IDLE:?}");
    assert!(time < IDLE_TIME_MAX, "{time:?} in {IDLE:?}");
}
