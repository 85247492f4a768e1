//! What the high layer uses beyond reliable connections with receives of their own.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use portolan::{
    Access, Connection, Connector, ListenOptions, Listener, Options, SharedReceiveQueue, Transport,
};

use crate::pair::*;

/// Number of attempts to get a message through: any may be lost.
const ATTEMPTS: u32 = 30;

/// Both ends of a connection: active, passive.
fn pair(transport: Transport, options_of_passive: &Options) -> (Connection, Connection) {
    let options = ListenOptions::default()
        .transport(transport)
        .provider(provider());
    let address = SocketAddr::new(local_ip(), 0);
    let listener = Listener::bind_to_with(address, &options).unwrap();
    let address = listener.local_addr().unwrap();
    let connector = Connector::new()
        .transport(transport)
        .provider(active_provider())
        .timeout(PATIENCE);
    let active = thread::spawn(move || connector.connect_to(address).unwrap());
    let passive = listener.accept_within(PATIENCE).unwrap();
    let passive = passive.accept_with(options_of_passive).unwrap();
    let active = active.join().unwrap();
    established([active.qp_num(), passive.qp_num()]);
    (active, passive)
}

#[test]
fn an_unreliable_connection_carries_messages_and_writes_and_refuses_reads() {
    // Unreliable connections use a link through memory only if it is up when they are established.
    let _linked = pair(Transport::Rc, &Options::default());
    let (active, passive) = pair(Transport::Uc, &Options::default());
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

#[test]
fn connections_share_receives_and_leave_them_to_each_other() {
    let queue = SharedReceiveQueue::new(2, 64);
    let options = Options::default().shared_receives(queue.clone());
    let (first_active, first_passive) = pair(Transport::Rc, &options);
    let (second_active, second_passive) = pair(Transport::Rc, &options);
    for number in 0..4 {
        first_active.send(vec![number]).unwrap().wait().unwrap();
        let message = first_passive.receive_within(PATIENCE).unwrap();
        assert_eq!(message[..], [number]);
    }
    // Two unread messages occupy both receives, until their connection is dropped.
    for number in 0..2 {
        first_active.send(vec![number]).unwrap().wait().unwrap();
    }
    let waiting = second_active.send(vec![9]).unwrap();
    let waiting = waiting.wait_within(Duration::from_millis(100)).unwrap_err();
    drop(first_passive);
    assert_eq!(second_passive.receive_within(PATIENCE).unwrap()[..], [9]);
    waiting.wait().unwrap();
    assert_eq!(queue.posted(), 2);
}

#[test]
fn an_idle_peer_confirms_a_close_and_keeps_its_messages() {
    let (active, passive) = pair(Transport::Rc, &Options::default());
    active.send(vec![4]).unwrap().wait().unwrap();
    active.close(PATIENCE).unwrap();
    assert_eq!(passive.receive().unwrap()[..], [4]);
    assert!(passive.receive().unwrap_err().is_disconnected());
}
