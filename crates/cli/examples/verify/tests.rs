//! Two ends in one process, and peers that lie.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use portolan::provider::software_provider;
use portolan::{Connection, Connector, Listener};

use super::end::Wrong;
use super::message::Message;
use super::*;

const PATIENCE: Duration = Duration::from_secs(60);
const OPERATIONS: [Operation; 5] = [
    Operation::Send,
    Operation::Write,
    Operation::Read,
    Operation::FetchAdd,
    Operation::CompareSwap,
];

fn pair() -> (Connection, Connection) {
    let provider = software_provider().unwrap();
    let at = "127.0.0.1:0".parse().unwrap();
    let listener = Arc::new(Listener::bind_on(provider.clone(), at).unwrap());
    let address = listener.local_addr().unwrap();
    let accepting = listener.clone();
    let passive = thread::spawn(move || {
        let incoming = accepting.accept_within(PATIENCE).unwrap();
        incoming.accept_with(&options(PATIENCE)).unwrap()
    });
    let connector = Connector::new().provider(provider);
    let active = connector.options(options(PATIENCE)).connect_to(address);
    (active.unwrap(), passive.join().unwrap())
}

/// The asker's findings in each case, with a peer that `spoil`s each request before it executes it.
fn found(cases: Vec<Case>, spoil: fn(&mut Message)) -> Vec<Result<(), Wrong>> {
    let (active, passive) = pair();
    let serving = thread::spawn(move || {
        let mut end = End::new(passive, PATIENCE).unwrap();
        end.serve_changed(spoil).unwrap()
    });
    let mut end = End::new(active, PATIENCE).unwrap();
    let asked = (0..).zip(&cases);
    let found = asked.map(|(number, case)| end.ask(case, number).unwrap());
    let found: Vec<_> = found.collect();
    // The findings do not depend on how the end closes.
    let _ = end.close(PATIENCE);
    assert_eq!(serving.join().unwrap(), cases.len() as u64);
    found
}

#[test]
fn every_operation_by_either_end_is_right() {
    let sizes = [1, 7, 8, 1024, 4097, 100_003];
    let found = found(cases(&OPERATIONS, &sizes), |_| {});
    assert!(found.iter().all(Result::is_ok), "{found:?}");
}

#[test]
fn a_peer_with_wrong_data_is_detected() {
    for operation in [Operation::Send, Operation::Write, Operation::Read] {
        for found in found(cases(&[operation], &[1000]), |request| {
            request.seed ^= 1 << 40
        }) {
            let wrong = found.expect_err("the peer has wrong data");
            assert!(
                matches!(wrong, Wrong::Data { .. }),
                "{operation:?}: {wrong}"
            );
        }
    }
}

#[test]
fn a_peer_with_wrong_atomics_is_detected() {
    for operation in [Operation::FetchAdd, Operation::CompareSwap] {
        let mut cases = cases(&[operation], &[]);
        // A comparison that fails as it must changes nothing, even with wrong operands.
        cases.retain(|case| case.is_equal);
        let spoil = |request: &mut Message| {
            request.seed ^= 1 << 40;
            request.operand ^= 1 << 40;
        };
        for (found, case) in found(cases.clone(), spoil).into_iter().zip(cases) {
            let wrong = found.expect_err("the peer's atomic is wrong");
            match case.initiator {
                Initiator::Asker => assert!(matches!(wrong, Wrong::Original { .. }), "{wrong}"),
                Initiator::Asked => assert!(matches!(wrong, Wrong::Left { .. }), "{wrong}"),
            }
        }
    }
}
