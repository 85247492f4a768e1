//! What applications do: connect, send, write, read, close.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use portolan::wire::cm::Ece;
use portolan::{Access, Connection, Connector, Listener, Options, RemoteMemory};

use crate::harness::*;
use crate::process::Peer;

const LENGTHS: [usize; 11] = [
    1,
    8,
    1023,
    1024,
    1025,
    4096,
    4097,
    65_536,
    100_003,
    1 << 20,
    8 << 20,
];

fn big_receives() -> Options {
    options().receive_depth(2).receive_size(8 << 20)
}

fn send_all(from: &Connection, bytes: &[u8]) {
    let buffer = from.buffer_from(bytes).unwrap();
    from.send(buffer).unwrap().wait().unwrap();
}

#[test]
fn messages_of_every_length_arrive_unchanged() {
    let (active, passive) = pair_with(&options(), &big_receives());
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        let bytes = pattern(length, seed as u8);
        send_all(&active, &bytes);
        let message = passive.receive_within(PATIENCE).unwrap();
        assert_same(&message, &bytes);
        assert_eq!(message.immediate(), None);
    }
}

#[test]
fn vendor_options_reach_the_program_at_the_other_end() {
    let ece = |options| Ece {
        vendor_id: 0x15b3,
        options,
    };
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connecting = thread::spawn(move || {
        let connector = Connector::new().options(options().ece(ece(1)));
        connector.connect_to(address).unwrap()
    });
    let incoming = listener.accept_within(PATIENCE).unwrap();
    assert_eq!(incoming.ece(), ece(1));
    let passive = incoming.accept_with(&options().ece(ece(0x8000_0002)));
    assert_eq!(passive.unwrap().peer_ece(), ece(1));
    assert_eq!(connecting.join().unwrap().peer_ece(), ece(0x8000_0002));
    // None by default.
    let (active, passive) = pair();
    assert_eq!([active.peer_ece(), passive.peer_ece()], [Ece::default(); 2]);

    let error = Connector::new().options(options().ece(Ece {
        vendor_id: 1 << 24,
        options: 0,
    }));
    let error = error.connect_to(address).unwrap_err().to_string();
    assert!(error.contains("ECE vendor id"), "{error}");
    assert!(error.contains("24 bits"), "{error}");
}

#[test]
fn a_buffer_comes_back_when_its_work_ends_and_may_be_sent_again() {
    let (active, passive) = pair();
    let mut buffer = active.buffer_from(b"one").unwrap();
    for text in [b"two", b"six"] {
        buffer.copy_from_slice(text);
        buffer = active.send(buffer).unwrap().wait().unwrap().buffer;
        assert_eq!(&passive.receive_within(PATIENCE).unwrap()[..], text);
    }
}

#[test]
fn a_message_may_be_empty_and_still_carries_its_immediate_data() {
    let (active, passive) = pair();
    let buffer = active.buffer(1).unwrap();
    let done = active.send_prefix(buffer, 0).unwrap().wait().unwrap();
    assert_eq!(done.length, 0);
    assert_eq!(&passive.receive_within(PATIENCE).unwrap()[..], b"");

    let buffer = passive.buffer_from(b"x").unwrap();
    passive
        .send_with_immediate(buffer, 0xfeed_f00d)
        .unwrap()
        .wait()
        .unwrap();
    let message = active.receive_within(PATIENCE).unwrap();
    assert_eq!(
        (&message[..], message.immediate()),
        (&b"x"[..], Some(0xfeed_f00d))
    );
}

#[test]
fn writes_of_every_length_change_exactly_their_range() {
    let (active, passive) = pair();
    let memory = passive.share((8 << 20) + 64, Access::REMOTE_WRITE).unwrap();
    for (seed, length) in LENGTHS.into_iter().enumerate() {
        let bytes = pattern(length, seed as u8);
        memory.store(0, &vec![0xa5; memory.len()]);
        let target = memory.remote().slice(32, length).unwrap();
        let buffer = active.buffer_from(&bytes).unwrap();
        active.write(buffer, target).unwrap().wait().unwrap();

        let mut found = vec![0; memory.len()];
        memory.load(0, &mut found);
        assert_same(&found[..32], &[0xa5; 32]);
        assert_same(&found[32..32 + length], &bytes);
        assert_same(
            &found[32 + length..],
            &vec![0xa5; memory.len() - 32 - length],
        );
    }
}

#[test]
fn reads_of_every_length_give_the_peers_bytes() {
    let (active, passive) = pair();
    let memory = passive.share(8 << 20, Access::REMOTE_READ).unwrap();
    let bytes = pattern(memory.len(), 77);
    memory.store(0, &bytes);
    for length in LENGTHS {
        let offset = (memory.len() - length).min(3);
        let source = memory.remote().slice(offset, length).unwrap();
        let buffer = active.buffer(length).unwrap();
        let done = active.read(buffer, source).unwrap().wait().unwrap();
        assert_same(&done.buffer, &bytes[offset..offset + length]);
    }
}

#[test]
fn a_write_with_immediate_data_notifies_the_peer() {
    let (active, passive) = pair();
    let memory = passive.share(100_000, Access::REMOTE_WRITE).unwrap();
    let bytes = pattern(memory.len(), 5);
    let buffer = active.buffer_from(&bytes).unwrap();
    let transfer = active
        .write_with_immediate(buffer, memory.remote(), 7)
        .unwrap();
    assert_eq!(
        passive.receive_within(PATIENCE).unwrap().immediate(),
        Some(7)
    );
    let mut found = vec![0; memory.len()];
    memory.load(0, &mut found);
    assert_same(&found, &bytes);
    transfer.wait().unwrap();
}

#[test]
fn withdrawn_shared_memory_becomes_a_buffer_with_the_peers_data() {
    let (active, passive) = pair();
    let memory = passive.share(4096, Access::REMOTE_WRITE).unwrap();
    let remote = memory.remote();
    let buffer = active.buffer_from(&pattern(4096, 1)).unwrap();
    active.write(buffer, remote).unwrap().wait().unwrap();
    let buffer = passive.revoke(memory).unwrap();
    assert_same(&buffer, &pattern(4096, 1));
}

#[test]
fn private_data_travels_both_ways_padded_to_the_messages_length() {
    let listener = listener("127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let mut accept = options();
    accept.private_data = pattern(196, 2);
    let connector = connector().private_data(&b"ahoy"[..]);
    let (active, passive) = pair_at(connector, &listener, address, &accept);
    let mut request = b"ahoy".to_vec();
    request.resize(56, 0);
    assert_eq!(passive.peer_private_data(), request);
    assert_eq!(active.peer_private_data(), pattern(196, 2));
    let printed = format!("{passive:?}");
    assert!(
        printed.contains(r#"peer_private_data: b"ahoy","#),
        "{printed}"
    );
}

#[test]
fn messages_keep_their_order_with_many_in_flight() {
    const MESSAGES: u32 = 2000;
    let (active, passive) = pair();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut under_way = std::collections::VecDeque::new();
            for number in 0..MESSAGES {
                if under_way.len() == 32 {
                    let oldest: portolan::Transfer = under_way.pop_front().unwrap();
                    oldest.wait().unwrap();
                }
                let buffer = active.buffer_from(&number.to_be_bytes()).unwrap();
                under_way.push_back(active.send(buffer).unwrap());
            }
            under_way.into_iter().for_each(|transfer| {
                transfer.wait().unwrap();
            });
        });
        for number in 0..MESSAGES {
            let message = passive.receive_within(PATIENCE).unwrap();
            assert_eq!(&message[..], number.to_be_bytes());
        }
    });
}

#[test]
fn several_transfers_are_outstanding_and_may_be_waited_for_in_any_order() {
    let (active, passive) = pair();
    let memory = passive
        .share(16 << 16, Access::REMOTE_READ | Access::REMOTE_WRITE)
        .unwrap();
    let part = |number: usize| memory.remote().slice(number << 16, 1 << 16).unwrap();
    let mut writes: Vec<_> = (0..16usize)
        .map(|number| {
            let buffer = active.buffer_from(&pattern(1 << 16, number as u8)).unwrap();
            active.write(buffer, part(number)).unwrap()
        })
        .collect();
    while let Some(write) = writes.pop() {
        write.wait().unwrap();
    }
    let reads: Vec<_> = (0..16usize)
        .map(|number| {
            active
                .read(active.buffer(1 << 16).unwrap(), part(number))
                .unwrap()
        })
        .collect();
    for (number, read) in reads.into_iter().enumerate().rev() {
        assert_same(
            &read.wait().unwrap().buffer,
            &pattern(1 << 16, number as u8),
        );
    }
}

#[test]
fn threads_share_a_connection() {
    const THREADS: u8 = 8;
    const MESSAGES: u8 = 50;
    let (active, passive) = pair();
    let (active, passive) = (Arc::new(active), Arc::new(passive));
    let mut seen = thread::scope(|scope| {
        for thread in 0..THREADS {
            let active = active.clone();
            scope.spawn(move || {
                for number in 0..MESSAGES {
                    send_all(&active, &[thread, number]);
                }
            });
        }
        let receivers: Vec<_> = (0..THREADS)
            .map(|_| {
                let passive = passive.clone();
                scope.spawn(move || {
                    let receive = |_| passive.receive_within(PATIENCE).unwrap().to_vec();
                    (0..MESSAGES).map(receive).collect::<Vec<_>>()
                })
            })
            .collect();
        let joined = receivers
            .into_iter()
            .flat_map(|thread| thread.join().unwrap());
        joined.collect::<Vec<_>>()
    });
    seen.sort();
    let sent =
        (0..THREADS).flat_map(|thread| (0..MESSAGES).map(move |number| vec![thread, number]));
    assert_eq!(seen, sent.collect::<Vec<_>>());
}

#[test]
fn a_completion_found_by_another_thread_wakes_its_waiter() {
    let (active, passive) = pair();
    let memory = active.share(8, Access::REMOTE_READ).unwrap();
    for round in 0..300u32 {
        // Both post. Then one waits asleep while the other's polling finds both completions.
        let read = passive
            .read(passive.buffer(8).unwrap(), memory.remote())
            .unwrap();
        thread::scope(|scope| {
            let sleeping = scope.spawn(|| read.wait_within(PATIENCE).map(Result::unwrap));
            send_all(&active, &round.to_be_bytes());
            while passive.try_receive().unwrap().is_none() {}
            sleeping
                .join()
                .unwrap()
                .expect("the polling thread wakes it");
        });
    }
}

#[test]
fn two_hundred_connects_to_one_listener_succeed_and_all_carry_data() {
    const CONNECTS: usize = 200;
    const CONNECTING_THREADS: usize = 8;
    let listener = listener("127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    drop(pair_at(connector(), &listener, address, &options()));
    let small = options().receive_depth(2).receive_size(64);
    thread::scope(|scope| {
        let connecting: Vec<_> = (0..CONNECTING_THREADS)
            .map(|_| {
                let connector = connector().options(small.clone());
                scope.spawn(move || {
                    let each = CONNECTS / CONNECTING_THREADS;
                    let connect = |_| connector.connect_to(address).unwrap();
                    (0..each).map(connect).collect::<Vec<_>>()
                })
            })
            .collect();
        let accept = |_| {
            let incoming = listener.accept_within(PATIENCE).unwrap();
            incoming.accept_with(&small).unwrap()
        };
        let accepted: Vec<_> = (0..CONNECTS).map(accept).collect();
        let connected: Vec<_> = connecting
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect();
        for connection in &connected {
            let name = connection.local_addr().unwrap().to_string();
            send_all(connection, name.as_bytes());
        }
        for connection in &accepted {
            let name = connection.peer_addr().unwrap().to_string();
            assert_eq!(
                &connection.receive_within(PATIENCE).unwrap()[..],
                name.as_bytes()
            );
        }
    });
}

#[test]
fn a_process_with_a_hundred_connections_has_as_many_threads_as_with_one() {
    const CONNECTIONS: usize = 100;
    let port = free_port();
    let ours = start(port);
    let mut peer = Peer::start(port);
    let address = peer.listen();
    let connect = |peer: &mut Peer| {
        peer.tell("accept");
        let connection = connector_on(ours.clone()).connect_to(address).unwrap();
        assert_eq!(peer.answer(), "ok");
        connection
    };
    let mut connections = vec![connect(&mut peer)];
    let with_one = peer.ask("threads");
    connections.extend((1..CONNECTIONS).map(|_| connect(&mut peer)));
    assert_eq!(peer.ask("threads"), with_one);
}

#[test]
fn a_dropped_message_posts_its_receive_again() {
    let few = options().receive_depth(2);
    let (active, passive) = pair_with(&options(), &few);
    for round in 0..100u8 {
        send_all(&active, &[round]);
        assert_eq!(&passive.receive_within(PATIENCE).unwrap()[..], [round]);
    }
}

#[test]
fn a_sender_waits_for_a_receive_that_is_posted_late() {
    let none = options().receive_depth(0);
    let (active, passive) = pair_with(&options(), &none);
    let transfer = active.send(active.buffer_from(b"early").unwrap()).unwrap();
    let transfer = transfer
        .wait_within(std::time::Duration::from_millis(100))
        .expect_err("no receive is posted");
    let receive = passive.post_receive(passive.buffer(64).unwrap()).unwrap();
    let done = receive.wait().unwrap();
    assert_eq!(&done.buffer[..done.length], b"early");
    transfer.wait().unwrap();
}

#[test]
fn receives_posted_by_hand_do_not_affect_the_connections_own() {
    let few = options().receive_depth(2).posted_receives(2);
    let (active, passive) = pair_with(&options(), &few);
    send_all(&active, b"1");
    let held = passive.receive_within(PATIENCE).unwrap();
    let by_hand = || passive.post_receive(passive.buffer(64).unwrap());
    let posted = [by_hand().unwrap(), by_hand().unwrap()];
    let refused = by_hand().unwrap_err();
    assert!(
        matches!(
            refused.error.cause,
            portolan::Cause::LimitReached { limit: 2, .. }
        ),
        "{refused}"
    );
    drop(held);
    // Order of the queue: the connection's remaining receive, the two posted by hand, the connection's reposted
    // one.
    for text in [b"2", b"3", b"4", b"5"] {
        send_all(&active, text);
    }
    assert_eq!(&passive.receive_within(PATIENCE).unwrap()[..], b"2");
    for (receive, text) in posted.into_iter().zip([b"3", b"4"]) {
        let done = receive.wait().unwrap();
        assert_eq!(&done.buffer[..done.length], text);
    }
    assert_eq!(&passive.receive_within(PATIENCE).unwrap()[..], b"5");
}

#[test]
fn either_side_may_close_and_the_other_learns_of_it() {
    for active_closes in [true, false] {
        let (active, passive) = pair();
        let (closing, told) = match active_closes {
            true => (active, passive),
            false => (passive, active),
        };
        thread::scope(|scope| {
            scope.spawn(|| told.wait_disconnected(PATIENCE).unwrap());
            closing.close(PATIENCE).unwrap();
        });
        let error = told.receive().unwrap_err();
        assert_eq!(error.cause, portolan::Cause::Disconnected);
    }
}

#[test]
fn both_sides_may_close_at_once() {
    for _ in 0..10 {
        let (active, passive) = pair();
        thread::scope(|scope| {
            scope.spawn(|| active.close(PATIENCE).unwrap());
            passive.close(PATIENCE).unwrap();
        });
    }
}

#[test]
fn messages_that_arrived_before_the_peer_closed_can_be_received() {
    let (active, passive) = pair();
    for number in 0..5u8 {
        send_all(&active, &[number]);
    }
    drop(active);
    passive.wait_disconnected(PATIENCE).unwrap();
    for number in 0..5u8 {
        assert_eq!(&passive.receive().unwrap()[..], [number]);
    }
    let error = passive.receive().unwrap_err();
    assert_eq!(error.cause, portolan::Cause::Disconnected);
}

#[test]
fn dropping_a_connection_disconnects_even_if_its_messages_and_transfers_are_kept() {
    let (active, passive) = pair();
    send_all(&passive, b"kept");
    let message = active.receive_within(PATIENCE).unwrap();
    let transfer = active.post_receive(active.buffer(16).unwrap()).unwrap();
    drop(active);
    passive.wait_disconnected(PATIENCE).unwrap();
    assert_eq!(&message[..], b"kept");
    let failed = transfer.wait().unwrap_err();
    assert_eq!(failed.error.cause, portolan::Cause::Closed);
    assert!(failed.buffer.is_some(), "the buffer comes back");
}

#[test]
fn a_closed_listeners_port_is_free_and_its_connections_continue() {
    let listener = listener("127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let (active, passive) = pair_at(connector(), &listener, address, &options());
    drop(listener);
    send_all(&active, b"still here");
    assert_eq!(
        &passive.receive_within(PATIENCE).unwrap()[..],
        b"still here"
    );
    let again = Listener::bind_on(provider(), address).unwrap();
    assert_eq!(again.local_addr().unwrap(), address);
}

#[test]
fn an_offer_of_memory_is_parsed_as_it_was_written() {
    let (active, passive) = pair();
    let memory = passive.share(4096, Access::REMOTE_READ).unwrap();
    memory.store(0, b"here");
    send_all(&passive, &memory.remote().to_bytes());
    let offer = active.receive_within(PATIENCE).unwrap();
    let remote = RemoteMemory::from_bytes(&offer).unwrap();
    assert_eq!(remote, memory.remote());
    let part = remote.slice(0, 4).unwrap();
    let done = active
        .read(active.buffer(4).unwrap(), part)
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(&done.buffer[..], b"here");
}

#[test]
fn the_id_of_a_connection_exposes_neither_its_queue_pair_nor_its_completions() {
    let (active, passive) = pair();
    for connection in [&active, &passive] {
        let id = connection.id().clone();
        assert!(id.queue_pair().is_none());
        assert!(id.send_completions().is_none());
        assert!(id.recv_completions().is_none());
        assert!(id.device().is_ok(), "other calls work");
    }
    active
        .send(active.buffer_from(b"ahoy").unwrap())
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(&passive.receive_within(PATIENCE).unwrap()[..], b"ahoy");
}

#[test]
fn the_connecting_side_chooses_the_type_of_service_and_the_flow_label_of_both() {
    let listener = listener("[::1]:0");
    let SocketAddr::V6(mut address) = listener.local_addr().unwrap() else {
        panic!("an IPv6 listener");
    };
    address.set_flowinfo(0x1_2345_u32.to_be());
    let connector = connector().options(options().type_of_service(0x68));
    let (active, passive) = pair_at(connector, &listener, address.into(), &options());
    for end in [&active, &passive] {
        let path = &end.id().paths().unwrap()[0];
        assert_eq!((path.traffic_class, path.flow_label), (0x68, 0x1_2345));
    }
    active.send(b"ahoy".to_vec()).unwrap().wait().unwrap();
    assert_eq!(&passive.receive().unwrap()[..], b"ahoy");
}
