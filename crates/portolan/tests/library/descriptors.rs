//! Tasks of a process that has no descriptor left.

use std::fs::File;
use std::process::Command;

use portolan::Cause;
use portolan::tasks::{AsyncConnection, AsyncListener};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::time::timeout;

use crate::harness::*;

/// The limit of the process that reaches it.
const DESCRIPTORS_MAX: u64 = 16_384;

#[test]
fn a_task_that_has_no_descriptor_to_wait_for_fails_and_names_the_limit() {
    let test = [
        "--ignored",
        "--exact",
        "--nocapture",
        "descriptors::exhausted_process",
    ];
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(test)
        .status();
    assert!(ended.unwrap().success());
}

#[test]
#[ignore = "limits its process's descriptors; started by the test above"]
fn exhausted_process() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (first, _first_peer) = pair();
    let (second, second_peer) = pair();
    let listener = listener("127.0.0.1:0");
    let limit = getrlimit(Resource::Nofile).maximum;
    let limit = limit.map_or(DESCRIPTORS_MAX, |most| most.min(DESCRIPTORS_MAX));
    let both = Rlimit {
        current: Some(limit),
        maximum: Some(limit),
    };
    setrlimit(Resource::Nofile, both).unwrap();
    let mut others = Vec::new();
    let mut use_up = || others.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));

    let _entered = runtime.enter();
    use_up();
    let of_listener = AsyncListener::new(listener).unwrap_err();
    use_up();
    let of_connection = AsyncConnection::new(first).unwrap_err();
    for error in [of_listener, of_connection] {
        let named =
            matches!(error.cause, Cause::DescriptorLimit { limit: named, .. } if named == limit);
        assert!(named, "{error}");
    }
    drop(others);
    let second = AsyncConnection::new(second).unwrap();
    drop(second_peer);
    let ended = runtime.block_on(async { timeout(PATIENCE, second.disconnected()).await });
    ended.unwrap().unwrap();
}
