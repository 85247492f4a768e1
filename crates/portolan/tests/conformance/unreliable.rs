//! Unreliable connections (UC) of the high layer.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use portolan::{Access, Connection, Connector, ListenOptions, Listener, Transport};

use crate::pair::*;

/// Number of attempts to get a message through: any may be lost.
const ATTEMPTS: u32 = 30;

fn unreliable_pair() -> (Connection, Connection) {
    let options = ListenOptions::default()
        .transport(Transport::Uc)
        .provider(provider());
    let address = SocketAddr::new(local_ip(), 0);
    let listener = Listener::bind_to_with(address, &options).unwrap();
    let address = listener.local_addr().unwrap();
    let connector = Connector::new()
        .transport(Transport::Uc)
        .provider(provider())
        .timeout(PATIENCE);
    let active = thread::spawn(move || connector.connect_to(address).unwrap());
    let passive = listener.accept_within(PATIENCE).unwrap().accept().unwrap();
    (active.join().unwrap(), passive)
}

#[test]
fn an_unreliable_connection_carries_messages_and_writes_and_refuses_reads() {
    let (active, passive) = unreliable_pair();
    let memory = passive
        .share(4096, Access::REMOTE_WRITE | Access::REMOTE_READ)
        .unwrap();
    let remote = memory.remote();
    let arrived = (0..ATTEMPTS).find_map(|_| {
        let written = active.write_with_immediate(vec![7; 3000], remote, 5);
        written.unwrap().wait().unwrap();
        active.send(vec![3; 2000]).unwrap().wait().unwrap();
        let first = passive.receive_within(Duration::from_secs(1)).ok()?;
        let second = passive.receive_within(Duration::from_secs(1)).ok()?;
        Some((first.immediate(), second.to_vec()))
    });
    assert_eq!(arrived, Some((Some(5), vec![3; 2000])));
    let mut found = vec![0; 3000];
    memory.load(0, &mut found);
    assert_eq!(found, [7; 3000]);
    let failed = active.read(vec![0; 8], remote).unwrap_err();
    assert!(failed.error.to_string().contains("(UC) is not supported"));
    active.disconnect().unwrap();
    passive.wait_disconnected(PATIENCE).unwrap();
}
