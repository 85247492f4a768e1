//! A process that has no descriptor left.

use std::fs::File;
use std::time::Duration;

use portolan_provider::verbs::{SendOp, WcStatus};
use portolan_roce::io::Way;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::harness::*;
use crate::process::{self, SHAPE};

#[test]
fn a_process_out_of_descriptors_keeps_its_links_and_does_not_spin_for_others() {
    pass_in_own_process("descriptors::exhausted_process");
}

#[test]
#[ignore = "limits its process's descriptors; started by the test above"]
fn exhausted_process() {
    let (config, ip) = (config(), "127.0.0.1".parse().unwrap());
    let stack = stack(&config);
    let [linked, late] = [0, 1].map(|_| End::new(&stack, ip, SHAPE));
    let (mut peer, remote) = process::connect_end(&config, &linked, SHAPE);
    let echo = |peer: &mut process::Peer, end: &End| {
        end.receive(1, end.sge(0, 8));
        peer.tell("echo 8");
        end.post(2, SendOp::Send, end.sge(8, 8));
        for _ in 0..2 {
            assert_eq!(end.poll().status, WcStatus::Success);
        }
        assert_eq!(peer.answer(), "echoed");
    };
    until("packets go through memory both ways", || {
        echo(&mut peer, &linked);
        let counters = stack.counters();
        counters.sent_through_memory > 0 && counters.received_through_memory > 0
    });
    let (mut newcomer, theirs, _) = process::start_unconnected(&config, &late, SHAPE);
    let mut others = use_up_descriptors();

    // There is no descriptor for the peer's memory file.
    for _ in 0..20 {
        linked.post(3, SendOp::RdmaWrite(remote), linked.sge(0, 8));
        linked.expect(3);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(stack.way_of(linked.qp.qpn()), Some(Way::Memory));
    assert_eq!(stack.counters().carried_out_in_memory, 0);

    // There is no descriptor for the newcomer's link.
    late.connect(ip, theirs, SHAPE);
    newcomer.tell(&late.qp.qpn().value().to_string());
    assert_eq!(newcomer.answer(), "connected");
    std::thread::sleep(Duration::from_millis(100));
    let before = processor_time();
    std::thread::sleep(Duration::from_secs(1));
    let spent = processor_time() - before;
    assert!(spent < Duration::from_millis(200), "{spent:?} of a second");
    let before = stack.counters().received_through_memory;
    echo(&mut newcomer, &late);
    assert_eq!(stack.counters().received_through_memory, before);

    others.truncate(others.len() - 8);
    until("the newcomer's packets come through memory", || {
        echo(&mut newcomer, &late);
        stack.counters().received_through_memory > before
    });
}

/// The limit of descriptors of the process that runs out of them.
const DESCRIPTORS_MAX: u64 = 16_384;

/// Opens files until the process has no descriptor left.
///
/// The limit also bounds the descriptors in messages of all processes of a user other than root (unix(7)), and a port group
/// keeps 256 there. So it is a large one.
fn use_up_descriptors() -> Vec<File> {
    let most = getrlimit(Resource::Nofile).maximum;
    let most = most.map_or(DESCRIPTORS_MAX, |most| most.min(DESCRIPTORS_MAX));
    let limit = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// The processor time that this process has used.
fn processor_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(used).unwrap()
}
