//! Unreliable connections (UC).

use std::thread;
use std::time::Duration;

use portolan::provider::Cause;
use portolan::{
    Access, Connection, Connector, Keepalive, ListenOptions, Listener, Options, RemoteMemory,
    Transport,
};

use crate::harness::*;

/// A time in which nothing is expected to arrive.
const SHORTLY: Duration = Duration::from_millis(100);

fn unreliable_listener() -> Listener {
    let options = ListenOptions::default()
        .transport(Transport::Uc)
        .provider(provider());
    Listener::bind_with("127.0.0.1:0", &options).unwrap()
}

fn unreliable_connector() -> Connector {
    connector().transport(Transport::Uc)
}

/// Both ends: active, passive.
fn unreliable_pair(active: &Options, passive: &Options) -> (Connection, Connection) {
    let listener = unreliable_listener();
    let address = listener.local_addr().unwrap();
    let connector = unreliable_connector().options(active.clone());
    pair_at(connector, &listener, address, passive)
}

#[test]
fn sends_writes_and_immediate_data_arrive() {
    let (active, passive) = unreliable_pair(&options(), &options());
    assert_eq!(active.transport(), Transport::Uc);
    assert_eq!(passive.transport(), Transport::Uc);
    // Several packets, in both directions.
    let long = pattern(3000, 1);
    active.send(long.clone()).unwrap().wait().unwrap();
    assert_same(&passive.receive_within(PATIENCE).unwrap(), &long);
    passive
        .send_with_immediate(vec![7], 9)
        .unwrap()
        .wait()
        .unwrap();
    let message = active.receive_within(PATIENCE).unwrap();
    assert_eq!((&message[..], message.immediate()), (&[7][..], Some(9)));

    let shared = passive.share(5000, Access::REMOTE_WRITE).unwrap();
    let written = pattern(5000, 2);
    let done = active.write_with_immediate(written.clone(), shared.remote(), 3);
    done.unwrap().wait().unwrap();
    let message = passive.receive_within(PATIENCE).unwrap();
    assert_eq!(
        (message.immediate(), message.written()),
        (Some(3), Some(5000))
    );
    let mut found = vec![0; 5000];
    shared.load(0, &mut found);
    assert_same(&found, &written);
}

#[test]
fn a_message_without_a_receive_is_lost_and_later_ones_arrive() {
    let few = options();
    let few = few.receive_depth(2).held_messages(2);
    let (active, passive) = unreliable_pair(&options(), &few);
    for number in 0..4 {
        active.send(vec![number]).unwrap().wait().unwrap();
    }
    let held: Vec<_> = (0..2)
        .map(|_| passive.receive_within(PATIENCE).unwrap())
        .collect();
    assert_eq!([&held[0][..], &held[1][..]], [&[0][..], &[1][..]]);
    let error = passive.receive_within(SHORTLY).unwrap_err();
    assert!(error.is_timeout(), "{error}");
    drop(held);
    active.send(vec![9]).unwrap().wait().unwrap();
    assert_eq!(passive.receive_within(PATIENCE).unwrap()[..], [9]);
}

#[test]
fn messages_longer_than_the_receives_are_lost_and_cost_no_receive() {
    let small = options().receive_depth(2).receive_size(16);
    let (active, passive) = unreliable_pair(&options(), &small);
    for _ in 0..5 {
        active.send(vec![1; 17]).unwrap().wait().unwrap();
        active.send(vec![2; 16]).unwrap().wait().unwrap();
        assert_eq!(passive.receive_within(PATIENCE).unwrap()[..], [2; 16]);
    }
    assert!(passive.ended().is_none() && active.ended().is_none());
}

#[test]
fn a_write_that_the_peer_refuses_is_lost_and_the_connection_goes_on() {
    let (active, passive) = unreliable_pair(&options(), &options());
    let shared = passive.share(16, Access::REMOTE_WRITE).unwrap();
    let wrong = RemoteMemory::new(shared.remote().addr, 16, shared.remote().rkey ^ 1);
    active.write(vec![1; 16], wrong).unwrap().wait().unwrap();
    active.send(vec![5]).unwrap().wait().unwrap();
    assert_eq!(passive.receive_within(PATIENCE).unwrap()[..], [5]);
    let mut found = [0; 16];
    shared.load(0, &mut found);
    assert_eq!(found, [0; 16]);
}

#[test]
fn reads_and_atomics_are_refused_with_a_reason_and_return_the_buffer() {
    let (active, passive) = unreliable_pair(&options(), &options());
    let memory = passive
        .share(16, Access::REMOTE_READ | Access::REMOTE_ATOMIC)
        .unwrap();
    let refused = [
        (active.read(vec![0; 8], memory.remote()), "a read"),
        (
            active.fetch_add(vec![0; 8], memory.remote(), 1),
            "an atomic",
        ),
        (
            active.compare_swap(vec![0; 8], memory.remote(), 1, 2),
            "an atomic",
        ),
    ];
    for (posted, what) in refused {
        let failed = posted.unwrap_err();
        let text = failed.error.to_string();
        let expected = format!("{what} on an unreliable connection (UC) is not supported here");
        assert!(text.contains(&expected), "{text}");
        assert_eq!(failed.buffer.unwrap().len(), 8);
    }
    active.send(vec![5]).unwrap().wait().unwrap();
    assert_eq!(passive.receive_within(PATIENCE).unwrap()[..], [5]);
}

#[test]
fn a_write_of_more_than_one_request_is_refused_because_a_part_of_it_could_be_lost() {
    let (active, _passive) = unreliable_pair(&options(), &options());
    let length = (1 << 30) + 1;
    let memory = RemoteMemory::new(0, 1 << 31, 0);
    let failed = active.write(vec![0; length], memory).unwrap_err();
    let text = failed.error.to_string();
    assert!(
        text.contains("more than 1 GiB on an unreliable connection (UC)"),
        "{text}"
    );
    assert_eq!(failed.buffer.unwrap().len(), length);
}

#[test]
fn a_keepalive_is_refused() {
    let keepalive = Keepalive::new(Duration::from_secs(1), Duration::from_secs(1));
    let listener = unreliable_listener();
    let connector = unreliable_connector().options(options().keepalive(Some(keepalive)));
    let error = connector
        .connect_to(listener.local_addr().unwrap())
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("keepalive of an unreliable connection: expected none"),
        "{text}"
    );
}

#[test]
fn the_ends_of_the_connection_hear_of_each_other_as_on_a_reliable_one() {
    let (active, passive) = unreliable_pair(&options(), &options());
    let waiting = thread::spawn(move || {
        let error = passive.receive().unwrap_err();
        (passive, error)
    });
    active.close(PATIENCE).unwrap();
    let (passive, error) = waiting.join().unwrap();
    assert!(error.is_disconnected(), "{error}");
    let sent = passive.send(vec![1]).and_then(|sending| sending.wait());
    assert_eq!(sent.unwrap_err().error.cause, Cause::Disconnected);
}

#[test]
fn a_reliable_connector_finds_no_unreliable_listener_and_the_reverse() {
    let unreliable = unreliable_listener();
    let error = connector()
        .connect_to(unreliable.local_addr().unwrap())
        .unwrap_err();
    assert!(error.is_refused(), "{error}");
    let reliable = listener("127.0.0.1:0");
    let connector = unreliable_connector();
    let error = connector
        .connect_to(reliable.local_addr().unwrap())
        .unwrap_err();
    assert!(error.is_refused(), "{error}");
}

#[cfg(feature = "tokio")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_use_unreliable_connections() {
    let listener = portolan::tasks::AsyncListener::new(unreliable_listener()).unwrap();
    let address = listener.local_addr().unwrap();
    let client =
        tokio::spawn(async move { unreliable_connector().connect_to_async(address).await });
    let incoming = listener.accept().await.unwrap();
    let server = incoming.accept_async(&options()).await.unwrap();
    let client = client.await.unwrap().unwrap();
    client.send(vec![1, 2]).unwrap().await.unwrap();
    assert_eq!(server.receive().await.unwrap()[..], [1, 2]);
    assert_eq!(client.get_ref().transport(), Transport::Uc);
}
