//! Devices that appear and disappear a hundred times leave nothing behind.

use std::time::Duration;

use portolan::provider::cm::EventType;
use portolan::software::Usage;

use crate::harness::*;
use crate::low::Verbs;
use crate::support::ip_batch;
use crate::{bound, device, hear, on_interfaces};

const ROUNDS: usize = 100;

fn entries(directory: &str) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

/// Numbers of descriptors and threads of this process.
fn held() -> (usize, usize) {
    (entries("/proc/self/fd"), lasting_threads())
}

#[test]
fn a_hundred_removed_devices_leave_no_object_descriptor_or_thread() {
    on_interfaces("", || {
        let provider = own_provider();
        let round = || {
            ip_batch(
                "link add tround type veth peer name pround\n\
                 addr add 10.9.1.1/24 dev tround\n\
                 link set tround up\n\
    link set pround up\n",
            );
            let (channel, id) = bound(&provider, "10.9.1.1:7471");
            id.listen(0).unwrap();
            let verbs = Verbs::of(&device(&provider, "10.9.1.1"));
            let qp = verbs.external();
            ip_batch("link del tround");
            hear(&channel, &id, EventType::DeviceRemoval, 0);
            drop((id, qp, verbs, channel));
            assert_eq!(provider.usage(), Usage::default());
        };
        round();
        // A thread that has ended is listed for a moment longer.
        std::thread::sleep(Duration::from_millis(50));
        let before = held();
        (1..ROUNDS).for_each(|_| round());
        eventually("descriptors and threads as before", || held() == before);
    });
}
