//! How long the progress thread polls after a peer's request; in a separate process, where threads can be
//! identified.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use portolan_provider::verbs::SendOp;
use portolan_threads::processors;

use crate::harness::{End, PATIENCE, Shape, config, stack};

const READS: u32 = 20;

/// Must run alone: if other programs take its processor, the thread sleeps after each request.
mod against_the_clock {
    #[test]
    fn reads_from_an_idle_program_need_few_wake_ups_and_cost_nothing_afterwards() {
        crate::harness::pass_in_own_process("looking_on::read_from_process");
    }
}

/// The test itself, in a separate process.
#[test]
#[ignore = "runs as a separate process, started by another test"]
fn read_from_process() {
    let (config, shape) = (config(), Shape::default());
    let ip: IpAddr = "127.0.0.1".parse().unwrap();
    let mine = stack(&config);
    let before = threads();
    let theirs = stack(&config);
    let added: Vec<_> = threads().difference(&before).cloned().collect();
    let [thread] = added.as_slice() else {
        panic!("a stack has one thread: {added:?}");
    };
    let (a, b) = (End::new(&mine, ip, shape), End::new(&theirs, ip, shape));
    a.connect(ip, b.qp.qpn(), shape);
    b.connect(ip, a.qp.qpn(), shape);
    let read = || {
        a.post(1, SendOp::RdmaRead(b.remote(0)), a.sge(64, 64));
        a.expect(1);
    };

    // Other programs may use the processors for a while, so take the best of many counts.
    let deadline = Instant::now() + PATIENCE;
    let mut tries = Vec::new();
    loop {
        let before = sleeps(thread);
        (0..READS).for_each(|_| read());
        tries.push(sleeps(thread) - before);
        if processors() == 1 || tries.last().unwrap() < &(READS / 4) {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "sleeps of {READS} reads: {tries:?}"
        );
    }

    // A thread that continued to poll would use all of it.
    const IDLE: Duration = Duration::from_millis(300);
    let (before, begun) = (running(thread), Instant::now());
    std::thread::sleep(IDLE);
    let ran = running(thread) - before;
    assert!(ran < IDLE / 20, "{ran:?} in {:?}", begun.elapsed());
}

/// Folders of this process's threads.
fn threads() -> BTreeSet<String> {
    fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|entry| entry.unwrap().path().display().to_string())
        .collect()
}

/// How often a thread gave up its processor to wait.
fn sleeps(thread: &str) -> u32 {
    let status = fs::read_to_string(format!("{thread}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// A thread's processor time.
fn running(thread: &str) -> Duration {
    let stat = fs::read_to_string(format!("{thread}/schedstat")).unwrap();
    let nanoseconds = stat.split(' ').next().unwrap().parse().unwrap();
    Duration::from_nanos(nanoseconds)
}
