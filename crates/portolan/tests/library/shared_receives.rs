//! Connections that share receives.

use std::thread;
use std::time::{Duration, Instant};

use portolan::{
    Connection, ListenOptions, Listener, Message, Options, SharedReceiveQueue, Transport,
};

use crate::harness::*;

fn sharing(queue: &SharedReceiveQueue) -> Options {
    options().shared_receives(queue.clone())
}

/// `count` connections whose passive ends share the receives: active, passive.
fn pairs(count: usize, queue: &SharedReceiveQueue) -> (Vec<Connection>, Vec<Connection>) {
    let both = (0..count).map(|_| pair_with(&options(), &sharing(queue)));
    both.unzip()
}

/// Receives from whichever connection has a message, until there are `count`.
fn receive_any(connections: &[Connection], count: usize, mut take: impl FnMut(usize, Message)) {
    let deadline = Instant::now() + PATIENCE;
    let mut taken = 0;
    while taken < count {
        assert!(
            Instant::now() < deadline,
            "only {taken} of {count} messages came"
        );
        for (number, connection) in connections.iter().enumerate() {
            if let Some(message) = connection.try_receive().unwrap() {
                take(number, message);
                taken += 1;
            }
        }
    }
}

#[test]
fn many_connections_need_only_the_shared_buffers_and_get_all_their_messages() {
    const COUNT: usize = 60;
    let provider = own_provider();
    let queue = SharedReceiveQueue::new(8, 4096);
    let listener = listener_on(provider.clone(), "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let sparse = options().receive_depth(1);
    let connector = connector_on(provider.clone()).options(sparse);
    let both = (0..COUNT).map(|_| pair_at(connector.clone(), &listener, address, &sharing(&queue)));
    let (active, passive): (Vec<_>, Vec<_>) = both.unzip();
    assert_eq!(queue.posted(), 8);
    // One receive of each active end, and the shared ones.
    assert_eq!(provider.usage().memory_regions as usize, COUNT + 8);

    let sends = active.iter().enumerate().flat_map(|(number, connection)| {
        (0..3u8).map(move |round| connection.send(vec![number as u8, round]).unwrap())
    });
    let sends: Vec<_> = sends.collect();
    let mut rounds = [0u8; COUNT];
    receive_any(&passive, COUNT * 3, |number, message| {
        assert_eq!(message[..], [number as u8, rounds[number]]);
        rounds[number] += 1;
    });
    assert_eq!(rounds, [3; COUNT]);
    for sending in sends {
        sending.wait().unwrap();
    }
    assert_eq!(queue.posted(), 8);
}

#[test]
fn a_message_that_finds_all_receives_occupied_waits_and_none_is_lost() {
    let queue = SharedReceiveQueue::new(2, 64);
    let (active, passive) = pairs(2, &queue);
    active[0].send(vec![1]).unwrap().wait().unwrap();
    active[0].send(vec![2]).unwrap().wait().unwrap();
    let held = [0, 1].map(|_| passive[0].receive_within(PATIENCE).unwrap());
    assert_eq!(queue.posted(), 0);
    let waiting = active[1].send(vec![3]).unwrap();
    let waiting = waiting.wait_within(Duration::from_millis(50)).unwrap_err();
    assert!(passive[1].try_receive().unwrap().is_none());
    drop(held);
    waiting.wait().unwrap();
    assert_eq!(passive[1].receive_within(PATIENCE).unwrap()[..], [3]);
    assert_eq!(queue.posted(), 2);
}

#[test]
fn a_dropped_connection_leaves_its_unread_messages_receives_to_the_others() {
    let queue = SharedReceiveQueue::new(4, 64);
    let (active, mut passive) = pairs(2, &queue);
    for number in 0..4 {
        active[0].send(vec![number]).unwrap().wait().unwrap();
    }
    // One is held, the others are unread.
    let held = passive[0].receive_within(PATIENCE).unwrap();
    drop(passive.remove(0));
    assert_eq!(held[..], [0]);
    assert_eq!(queue.posted(), 0, "a held message keeps its connection");
    drop(held);
    eventually("the return of the receives", || queue.posted() == 4);
    for number in 0..4 {
        active[1].send(vec![number]).unwrap().wait().unwrap();
        assert_eq!(passive[0].receive_within(PATIENCE).unwrap()[..], [number]);
    }
}

#[test]
fn a_message_taken_out_leaves_a_receive_in_its_place() {
    let queue = SharedReceiveQueue::new(2, 64);
    let (active, passive) = pairs(1, &queue);
    let mut kept = Vec::new();
    for number in 0..5 {
        active[0].send(vec![number; 3]).unwrap().wait().unwrap();
        let message = passive[0].receive_within(PATIENCE).unwrap();
        kept.push(message.into_buffer().unwrap());
        assert_eq!(queue.posted(), 2);
    }
    let kept: Vec<_> = kept.iter().map(|buffer| buffer.to_vec()).collect();
    let sent: Vec<_> = (0..5).map(|number| vec![number; 3]).collect();
    assert_eq!(kept, sent);
}

#[test]
fn the_end_of_one_connection_costs_the_others_no_receive() {
    let queue = SharedReceiveQueue::new(3, 16);
    let (mut active, mut passive) = pairs(3, &queue);
    // A message that does not fit breaks its connection.
    let failed = active[0].send(vec![0; 17]).unwrap().wait().unwrap_err();
    assert!(
        failed.error.to_string().contains("remote invalid request"),
        "{failed}"
    );
    let error = passive[0].receive_within(PATIENCE).unwrap_err();
    assert!(error.to_string().contains("local length error"), "{error}");
    drop(active.remove(1));
    let error = passive[1].receive_within(PATIENCE).unwrap_err();
    assert!(error.is_disconnected(), "{error}");
    drop(passive.drain(0..2));
    assert_eq!(queue.posted(), 3);
    active[1].send(vec![5]).unwrap().wait().unwrap();
    assert_eq!(passive[0].receive_within(PATIENCE).unwrap()[..], [5]);
}

#[test]
fn a_receive_of_the_programs_own_is_refused_and_its_buffer_comes_back() {
    let queue = SharedReceiveQueue::new(2, 64);
    let (_active, passive) = pairs(1, &queue);
    let failed = passive[0].post_receive(vec![0; 8]).unwrap_err();
    let text = failed.error.to_string();
    let expected = "posting a receive to a connection with shared receives is not supported here";
    assert!(text.contains(expected), "{text}");
    assert_eq!(failed.buffer.unwrap().len(), 8);
}

#[test]
fn a_queue_without_receives_or_bytes_is_refused() {
    for (depth, size, what) in [(0, 64, "receives"), (1, 0, "receive_size")] {
        let queue = SharedReceiveQueue::new(depth, size);
        let listener = listener("127.0.0.1:0");
        let connector = connector().options(sharing(&queue));
        let error = connector
            .connect_to(listener.local_addr().unwrap())
            .unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[test]
fn unreliable_connections_share_receives_too() {
    let queue = SharedReceiveQueue::new(2, 16);
    let settings = ListenOptions::default()
        .transport(Transport::Uc)
        .provider(provider());
    let listener = Listener::bind_with("127.0.0.1:0", &settings).unwrap();
    let address = listener.local_addr().unwrap();
    let both = (0..2).map(|_| {
        let connector = connector().transport(Transport::Uc);
        pair_at(connector, &listener, address, &sharing(&queue))
    });
    let (active, passive): (Vec<_>, Vec<_>) = both.unzip();
    for number in 0..6 {
        // The first is too long and is lost.
        active[0].send(vec![0; 17]).unwrap().wait().unwrap();
        active[0].send(vec![number]).unwrap().wait().unwrap();
        assert_eq!(passive[0].receive_within(PATIENCE).unwrap()[..], [number]);
        active[1].send(vec![number]).unwrap().wait().unwrap();
        assert_eq!(passive[1].receive_within(PATIENCE).unwrap()[..], [number]);
    }
}

#[test]
fn threads_that_wait_on_their_connections_share_receives() {
    let queue = SharedReceiveQueue::new(4, 64);
    let (active, passive) = pairs(6, &queue);
    let threads: Vec<_> = passive
        .into_iter()
        .map(|connection| {
            thread::spawn(move || {
                (0..50u8).for_each(|number| {
                    assert_eq!(connection.receive_within(PATIENCE).unwrap()[..], [number]);
                });
            })
        })
        .collect();
    for number in 0..50u8 {
        let sends: Vec<_> = active
            .iter()
            .map(|each| each.send(vec![number]).unwrap())
            .collect();
        sends
            .into_iter()
            .for_each(|sending| drop(sending.wait().unwrap()));
    }
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert_eq!(queue.posted(), 4);
}

#[cfg(feature = "tokio")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_share_receives() {
    let listener = portolan::tasks::AsyncListener::new(listener("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let queue = SharedReceiveQueue::new(3, 64);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        tasks.spawn(async move {
            let client = connector().connect_to_async(address).await.unwrap();
            for number in 0..20u8 {
                client.send(vec![number]).unwrap().await.unwrap();
            }
            client.disconnected().await.unwrap();
        });
        let incoming = listener.accept().await.unwrap();
        let server = incoming.accept_async(&sharing(&queue)).await.unwrap();
        tasks.spawn(async move {
            for number in 0..20u8 {
                assert_eq!(server.receive().await.unwrap()[..], [number]);
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert_eq!(queue.posted(), 3);
}
