//! Tokio tasks: futures may be dropped at any await point, and nothing is lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan::tasks::{AsyncConnection, AsyncListener};
use portolan::{Access, Cause, Connector, Options, SharedReceiveQueue};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::harness::*;

async fn async_pair() -> (AsyncConnection, AsyncConnection) {
    async_pair_with(options()).await
}

async fn async_pair_with(options: Options) -> (AsyncConnection, AsyncConnection) {
    let listener = AsyncListener::new(listener("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let connector = connector().options(options.clone());
    let active = tokio::spawn(async move { connector.connect_async(&address).await.unwrap() });
    let incoming = listener.accept().await.unwrap();
    let passive = incoming.accept_async(&options).await.unwrap();
    (active.await.unwrap(), passive)
}

fn elapsed_ms(started: Instant) -> u64 {
    started.elapsed().as_millis() as u64
}

/// Fails a test whose future hangs.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("it ends in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn send_write_read_and_receive_are_awaited() {
    let (active, passive) = soon(async_pair()).await;
    let memory = passive
        .get_ref()
        .share(100_000, Access::REMOTE_READ | Access::REMOTE_WRITE)
        .unwrap();
    let bytes = pattern(100_000, 6);
    let buffer = active.get_ref().buffer_from(&bytes).unwrap();
    let done = soon(active.write(buffer, memory.remote()).unwrap())
        .await
        .unwrap();
    let done = soon(active.read(done.buffer, memory.remote()).unwrap())
        .await
        .unwrap();
    assert_same(&done.buffer, &bytes);
    let buffer = passive.get_ref().buffer_from(b"done").unwrap();
    soon(passive.send(buffer).unwrap()).await.unwrap();
    assert_eq!(&soon(active.receive()).await.unwrap()[..], b"done");
    drop(passive);
    soon(active.disconnected()).await.unwrap();
    let error = soon(active.receive()).await.unwrap_err();
    assert_eq!(error.cause, Cause::Disconnected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn atomics_are_awaited() {
    let (active, passive) = soon(async_pair()).await;
    let access = Access::REMOTE_ATOMIC;
    let memory = passive.get_ref().share(8, access).unwrap();
    let buffer = active.get_ref().buffer(8).unwrap();
    let done = soon(active.fetch_add(buffer, memory.remote(), 5).unwrap()).await;
    let done = done.unwrap();
    assert_eq!(done.original(), Some(0));
    let swapped = soon(
        active
            .compare_swap(done.buffer, memory.remote(), 5, 8)
            .unwrap(),
    )
    .await;
    assert_eq!(swapped.unwrap().original(), Some(5));
    let mut found = [0; 8];
    memory.load(0, &mut found);
    assert_eq!(u64::from_ne_bytes(found), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receive_that_is_dropped_repeatedly_loses_no_message() {
    const MESSAGES: u32 = 300;
    let (active, passive) = soon(async_pair()).await;
    let mut dropped = 0u32;
    for _ in 0..10 {
        assert!(timeout(Duration::ZERO, passive.receive()).await.is_err());
        dropped += 1;
    }
    let sending = tokio::spawn(async move {
        for number in 0..MESSAGES {
            if number % 8 == 0 {
                // Gives some waiting receives time to be dropped.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let buffer = active.get_ref().buffer_from(&number.to_be_bytes()).unwrap();
            active.send(buffer).unwrap().await.unwrap();
        }
        active
    });
    for number in 0..MESSAGES {
        let message = soon(async {
            loop {
                // From zero to longer than a message takes.
                let patience = Duration::from_micros(u64::from(dropped % 8) * 20);
                match timeout(patience, passive.receive()).await {
                    Ok(message) => break message.unwrap(),
                    Err(_) => dropped += 1,
                }
            }
        })
        .await;
        assert_eq!(&message[..], number.to_be_bytes());
    }
    drop(sending.await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_send_continues_and_its_buffer_lives_as_long_as_it() {
    const MESSAGES: usize = 40;
    let (active, passive) = soon(async_pair()).await;
    for number in 0..MESSAGES {
        let bytes = pattern(4096, number as u8);
        let buffer = active.get_ref().buffer_from(&bytes).unwrap();
        // Polled at least once, so it is posted. Most are dropped before they end.
        let _ = timeout(Duration::ZERO, active.send(buffer).unwrap()).await;
    }
    for number in 0..MESSAGES {
        let message = soon(passive.receive()).await.unwrap();
        assert_same(&message, &pattern(4096, number as u8));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buffers_of_dropped_transfers_are_freed_at_their_end() {
    let provider = own_provider();
    let listener = listener_on(provider.clone(), "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let none = options().receive_depth(0);
    let connector = connector_on(provider.clone()).options(none.clone());
    let (active, passive) =
        tokio::task::spawn_blocking(move || pair_at(connector, &listener, address, &none))
            .await
            .unwrap();
    let (active, passive) = (
        AsyncConnection::new(active).unwrap(),
        AsyncConnection::new(passive).unwrap(),
    );
    assert_eq!(provider.usage().memory_regions, 0);
    for _ in 0..8 {
        let buffer = active.get_ref().buffer(64).unwrap();
        drop(active.get_ref().send(buffer).unwrap());
    }
    assert_eq!(
        provider.usage().memory_regions,
        8,
        "posted: the device may read them"
    );
    for _ in 0..8 {
        let buffer = passive.get_ref().buffer(64).unwrap();
        let receive = passive.get_ref().post_receive(buffer).unwrap();
        drop(soon(passive.finish(receive)).await.unwrap());
    }
    // Sends end in order: once this one has ended, so have the dropped ones.
    let receive = passive
        .get_ref()
        .post_receive(passive.get_ref().buffer(64).unwrap())
        .unwrap();
    let last = active.get_ref().buffer(64).unwrap();
    let (sent, received) = tokio::join!(
        soon(active.send(last).unwrap()),
        soon(passive.finish(receive))
    );
    drop((sent.unwrap(), received.unwrap()));
    assert_eq!(provider.usage().memory_regions, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_that_timed_out_can_be_awaited_again_and_returns_its_buffer() {
    let none = options().receive_depth(0);
    let (active, passive) = soon(async_pair_with(none)).await;
    let mut sending = active
        .send(active.get_ref().buffer_from(b"ahoy").unwrap())
        .unwrap();
    assert!(timeout(Duration::ZERO, &mut sending).await.is_err());
    let buffer = passive.get_ref().buffer(64).unwrap();
    let received = soon(passive.post_receive(buffer).unwrap()).await.unwrap();
    assert_eq!(&received.buffer[..received.length], b"ahoy");
    assert_eq!(&soon(sending).await.unwrap().buffer[..], b"ahoy");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_work_is_taken_over_in_its_order_and_as_much_is_kept_as_may_be_posted() {
    let few = options().receive_depth(64).send_depth(2).posted_receives(1);
    let (active, passive) = soon(async_pair_with(few)).await;
    assert!(active.get_ref().take_abandoned().is_none());
    for number in 0..5u8 {
        let buffer = active.get_ref().buffer_from(&[number]).unwrap();
        drop(active.send(buffer).unwrap());
        assert_eq!(soon(passive.receive()).await.unwrap()[..], [number]);
        // So that the abandoned one is acknowledged, and has left its place to the next.
        wait_for_one(&active).await;
        soon(passive.receive()).await.unwrap();
    }
    let mut kept = Vec::new();
    while let Some(transfer) = active.get_ref().take_abandoned() {
        kept.push(soon(active.finish(transfer)).await.unwrap().buffer[0]);
    }
    assert_eq!(kept, [2, 3, 4]);
}

/// Sends and waits for it: all that was sent before is acknowledged then.
async fn wait_for_one(connection: &AsyncConnection) {
    let buffer = connection.get_ref().buffer(1).unwrap();
    soon(connection.send(buffer).unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_share_a_connection() {
    const TASKS: usize = 32;
    const ROUNDS: usize = 20;
    let (active, passive) = soon(async_pair()).await;
    let active = Arc::new(active);
    let memory = Arc::new(
        passive
            .get_ref()
            .share(TASKS * 4096, Access::REMOTE_READ | Access::REMOTE_WRITE)
            .unwrap(),
    );
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let (active, memory) = (active.clone(), memory.clone());
        tasks.spawn(async move {
            let part = memory.remote().slice(number * 4096, 4096).unwrap();
            for round in 0..ROUNDS {
                let bytes = pattern(4096, (number * ROUNDS + round) as u8);
                let buffer = active.get_ref().buffer_from(&bytes).unwrap();
                let mut buffer = active.write(buffer, part).unwrap().await.unwrap().buffer;
                buffer.fill(0);
                let buffer = active.read(buffer, part).unwrap().await.unwrap().buffer;
                assert_same(&buffer, &bytes);
            }
        });
    }
    soon(tasks.join_all()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_thread_and_a_task_wait_for_the_same_connection() {
    let (active, passive) = soon(async_pair()).await;
    let active = Arc::new(active);
    let shared = active.clone();
    let blocking = tokio::task::spawn_blocking(move || {
        (0..50)
            .map(|_| shared.get_ref().receive_within(PATIENCE).unwrap()[0])
            .collect::<Vec<_>>()
    });
    let awaiting = tokio::spawn(async move {
        let mut seen = Vec::new();
        for _ in 0..50 {
            seen.push(soon(active.receive()).await.unwrap()[0]);
        }
        seen
    });
    for number in 0..100u8 {
        let buffer = passive.get_ref().buffer_from(&[number]).unwrap();
        soon(passive.send(buffer).unwrap()).await.unwrap();
    }
    let mut seen = blocking.await.unwrap();
    seen.extend(awaiting.await.unwrap());
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<u8>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connects_and_accepts_run_concurrently() {
    const CONNECTS: usize = 32;
    let listener = AsyncListener::new(listener("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut tasks = JoinSet::new();
    for _ in 0..CONNECTS {
        let address = address.clone();
        tasks.spawn(async move {
            let connection = connector().connect_async(&address).await.unwrap();
            assert_eq!(&connection.receive().await.unwrap()[..], b"welcome");
        });
    }
    for _ in 0..CONNECTS {
        let incoming = soon(listener.accept()).await.unwrap();
        tasks.spawn(async move {
            let connection = incoming.accept_async(&options()).await.unwrap();
            let buffer = connection.get_ref().buffer_from(b"welcome").unwrap();
            connection.send(buffer).unwrap().await.unwrap();
            connection.disconnected().await.unwrap();
        });
    }
    soon(tasks.join_all()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connects_and_accepts_that_are_dropped_midway_leave_nothing_behind() {
    let provider = own_provider();
    let listener = AsyncListener::new(listener_on(provider.clone(), "127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let connector: Connector = connector_on(provider.clone());
    for step in 0..60u64 {
        // Increasing, so that each step of the handshake is sometimes the last one.
        let patience = Duration::from_micros(step * 50);
        let (connected, accepted) = tokio::join!(
            timeout(patience, connector.connect_async(&address)),
            timeout(patience, async {
                let incoming = listener.accept().await?;
                incoming.accept_async(&options()).await
            }),
        );
        drop((connected, accepted));
    }
    drop(listener);
    soon(async {
        while provider.usage() != portolan::software::Usage::default() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_missed_deadline_of_a_connect_is_reported_with_step_and_addresses() {
    let port = free_port();
    let ours = start(port);
    let mut peer = crate::process::Peer::start(port);
    let address = peer.listen();
    let _stopped = peer.stop();
    // Long enough to reach the step that times out.
    let connector = connector_on(ours).timeout(Duration::from_secs(3));
    let started = Instant::now();
    let error = soon(connector.connect_async(&address.to_string()))
        .await
        .unwrap_err();
    let Cause::TimedOut { after_ms, .. } = error.cause else {
        panic!("{error:?}");
    };
    // Counted from the attempt at this address, which begins after name resolution.
    assert!((100..=elapsed_ms(started)).contains(&after_ms), "{error}");
    assert_eq!(error.step, portolan::Step::Connect);
    assert_eq!(error.context.remote, Some(address.into()));
}

#[tokio::test]
async fn a_connect_and_an_accept_whose_deadlines_have_passed_fail_at_once() {
    let listener = AsyncListener::new(listener("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let (after_ms, retries) = (0, 0);
    let passed = Cause::TimedOut { after_ms, retries };
    for timeout in [Duration::ZERO, Duration::from_nanos(1)] {
        let connector = connector().timeout(timeout);
        let error = soon(connector.connect_to_async(address)).await.unwrap_err();
        assert_eq!(error.cause, passed, "{error}");

        let connecting =
            tokio::spawn(
                async move { crate::harness::connector().connect_to_async(address).await },
            );
        let incoming = soon(listener.accept()).await.unwrap();
        let options = options().timeout(timeout);
        let error = soon(incoming.accept_async(&options)).await.unwrap_err();
        assert_eq!(error.cause, passed, "{error}");
        let error = soon(connecting).await.unwrap().unwrap_err();
        assert!(error.is_refused(), "{error}");
    }
}

#[tokio::test]
async fn another_connections_transfer_is_refused_and_stays_with_its_own() {
    let (first, _first_peer) = pair();
    let (second, second_peer) = pair();
    let first = AsyncConnection::new(first).unwrap();
    let transfer = second.send(b"ahoy".to_vec()).unwrap();
    let failed = first.finish(transfer).await.unwrap_err();
    let text = failed.error.to_string();
    assert!(
        text.contains("expected one of this connection, found one of another"),
        "{text}"
    );
    let transfer = second.take_abandoned().expect("its own connection has it");
    assert_eq!(transfer.wait().unwrap().buffer[..], *b"ahoy");
    assert_eq!(second_peer.receive_within(PATIENCE).unwrap()[..], *b"ahoy");
}

#[tokio::test]
async fn closing_waits_for_the_peer_and_may_be_dropped_and_awaited_again() {
    for drops in [0, 1, 5] {
        let (active, passive) = soon(async_pair()).await;
        soon(active.send(b"the last words".to_vec()).unwrap())
            .await
            .unwrap();
        for _ in 0..drops {
            let _ = timeout(Duration::ZERO, active.close()).await;
        }
        soon(active.close()).await.unwrap();
        // Closing what is closed waits for nothing.
        soon(active.close()).await.unwrap();
        assert_eq!(
            &soon(passive.receive()).await.unwrap()[..],
            b"the last words"
        );
        assert!(soon(passive.receive()).await.unwrap_err().is_disconnected());
        soon(passive.close()).await.unwrap();
    }
}

#[tokio::test]
async fn a_task_that_waits_for_a_connection_hears_that_its_id_was_destroyed() {
    let sharing = options().shared_receives(SharedReceiveQueue::new(4, 64));
    for options in [options(), sharing] {
        let (active, passive) = soon(async_pair_with(options)).await;
        let destroying = passive.get_ref().id().clone();
        let destroyed = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            destroying.destroy(PATIENCE).unwrap();
        };
        let (received, ()) = tokio::join!(soon(passive.receive()), destroyed);
        assert_eq!(received.unwrap_err().cause, Cause::Closed);
        soon(passive.close()).await.unwrap();
        let error = soon(active.receive()).await.unwrap_err();
        assert_eq!(error.cause, Cause::Disconnected);
    }
}
