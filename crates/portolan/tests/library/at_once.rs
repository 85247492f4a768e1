//! Connections that begin and end at once, in several threads and two members of a group: waiting threads handle the
//! members' datagrams in turn, and peers are answered in the background.

use std::sync::Arc;
use std::thread;

use portolan::provider::traits::Provider;
use portolan::{Connection, Options};

use crate::harness::*;

const THREADS: usize = 4;
const ROUNDS: usize = 25;

fn connections(
    from: &Arc<dyn Provider>,
    to: &Arc<dyn Provider>,
    last: impl Fn(usize, Connection, Connection),
) {
    let listener = listener_on(to.clone(), "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let connector = connector_on(from.clone());
    let options = Options::default().timeout(PATIENCE);
    for round in 0..ROUNDS {
        let (active, passive) = thread::scope(|scope| {
            let passive = scope.spawn(|| {
                let incoming = listener.accept_within(PATIENCE).unwrap();
                incoming.accept_with(&options).unwrap()
            });
            let active = connector.connect_to(address).unwrap();
            (active, passive.join().unwrap())
        });
        let sending = active.send(active.buffer(8).unwrap()).unwrap();
        assert_eq!(passive.receive_within(PATIENCE).unwrap().len(), 8);
        sending.wait_within(PATIENCE).unwrap().unwrap();
        last(round, active, passive);
    }
}

#[test]
fn every_way_to_end_a_connection_ends_it_while_others_begin() {
    let port = free_port();
    let members: [Arc<dyn Provider>; 2] = [start(port), start(port)];
    thread::scope(|scope| {
        for place in 0..THREADS {
            let (from, to) = (&members[place % 2], &members[place / 2 % 2]);
            scope.spawn(move || {
                connections(from, to, |round, active, passive| match round % 4 {
                    // Both ends at once.
                    0 => thread::scope(|scope| {
                        scope.spawn(|| active.close(PATIENCE).unwrap());
                        passive.close(PATIENCE).unwrap();
                    }),
                    // The peer's program is busy elsewhere.
                    1 => active.close(PATIENCE).unwrap(),
                    // One end waits while the other one is dropped.
                    2 => thread::scope(|scope| {
                        scope.spawn(|| passive.wait_disconnected(PATIENCE).unwrap());
                        drop(active);
                    }),
                    _ => thread::scope(|scope| {
                        scope.spawn(|| drop(active));
                        drop(passive);
                    }),
                });
            });
        }
    });
}
