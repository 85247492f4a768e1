//! Streams for tasks of tokio.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portolan::StreamListener;
use portolan::stream::{AsyncStream, AsyncStreamListener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::harness::*;
use crate::pair::*;

/// More than tokio lets a task have in a row, and less than a peer that does not call has room for.
const TURNS: usize = 200;

/// A future that hangs fails its test.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("it ends in time")
}

fn async_listener() -> (AsyncStreamListener, SocketAddr) {
    let listener = StreamListener::new(listener("127.0.0.1:0"), stream_options());
    let listener = AsyncStreamListener::new(listener).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn async_streams() -> (AsyncStream, AsyncStream) {
    let (listener, address) = async_listener();
    let connect = tokio::spawn(async move {
        AsyncStream::connect_with(&address.to_string(), &stream_options())
            .await
            .unwrap()
    });
    let (passive, peer) = soon(listener.accept()).await.unwrap();
    let active = soon(connect).await.unwrap();
    assert_eq!(active.local_addr().unwrap(), peer);
    assert_eq!(passive.peer_addr().unwrap(), peer);
    (active, passive)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_halves_move_megabytes_at_once() {
    let (active, passive) = async_streams().await;
    let sent = [pattern(3_000_000, 1), pattern(2_000_000, 2)];
    let mut tasks = JoinSet::new();
    for (stream, own, others) in [(active, 0, 1), (passive, 1, 0)] {
        let (mut reads, mut writes) = stream.into_split();
        let (own, others) = (sent[own].clone(), sent[others].clone());
        tasks.spawn(async move {
            writes.write_all(&own).await.unwrap();
            writes.shutdown().await.unwrap();
        });
        tasks.spawn(async move {
            let mut found = Vec::new();
            reads.read_to_end(&mut found).await.unwrap();
            assert_same(&found, &others);
        });
    }
    while let Some(ended) = soon(tasks.join_next()).await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn one_thread_serves_both_ends() {
    let (mut active, mut passive) = async_streams().await;
    let sent = pattern(500_000, 3);
    let (wrote, read) = soon(async {
        let mut found = vec![0; sent.len()];
        tokio::join!(active.write_all(&sent), async {
            passive.read_exact(&mut found).await.unwrap();
            found
        })
    })
    .await;
    wrote.unwrap();
    assert_same(&read, &sent);
}

#[tokio::test]
async fn dropping_the_writing_half_ends_that_direction_only() {
    let (active, mut passive) = async_streams().await;
    let (mut reads, mut writes) = active.into_split();
    soon(writes.write_all(b"question")).await.unwrap();
    drop(writes);
    let mut question = String::new();
    soon(passive.read_to_string(&mut question)).await.unwrap();
    soon(passive.write_all(b"answer")).await.unwrap();
    drop(passive);
    let mut answer = String::new();
    soon(reads.read_to_string(&mut answer)).await.unwrap();
    assert_eq!((&question[..], &answer[..]), ("question", "answer"));
}

#[tokio::test]
async fn a_read_that_is_given_up_loses_nothing() {
    let (mut active, mut passive) = async_streams().await;
    let mut found = Vec::new();
    let sent = pattern(40_000, 4);
    let mut written = 0;
    while found.len() < sent.len() {
        let mut bytes = [0; 777];
        let read = timeout(Duration::from_micros(200), passive.read(&mut bytes)).await;
        if let Ok(read) = read {
            found.extend_from_slice(&bytes[..read.unwrap()]);
        } else if written < sent.len() {
            let end = sent.len().min(written + 1500);
            if let Ok(now) = timeout(
                Duration::from_micros(200),
                active.write(&sent[written..end]),
            )
            .await
            {
                written += now.unwrap();
            }
        }
    }
    assert_same(&found, &sent);
}

#[tokio::test]
async fn a_write_without_room_waits_until_the_peer_reads() {
    let (mut active, mut passive) = async_streams().await;
    let sent = pattern(400_000, 5);
    let blocked = timeout(Duration::from_millis(50), active.write_all(&sent)).await;
    assert!(blocked.is_err(), "a write ends without a reader");
    let mut found = vec![0; 1000];
    soon(passive.read_exact(&mut found)).await.unwrap();
    assert_same(&found, &sent[..1000]);
    drop(active);
    let mut rest = Vec::new();
    soon(passive.read_to_end(&mut rest)).await.unwrap();
    assert_same(&rest, &sent[1000..1000 + rest.len()]);
    let taken = stream_options().receive_buffer as usize / 2;
    assert!(1000 + rest.len() >= taken, "{}", rest.len());

    let (mut active, mut passive) = async_streams().await;
    let writing = tokio::spawn(async move {
        active.write_all(&sent).await.unwrap();
        (active, sent)
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!writing.is_finished(), "a write ends without a reader");
    let mut found = vec![0; 400_000];
    soon(passive.read_exact(&mut found)).await.unwrap();
    let (_active, sent) = soon(writing).await.unwrap();
    assert_same(&found, &sent);
}

#[tokio::test]
async fn connecting_where_nobody_listens_is_an_error() {
    let (listener, address) = async_listener();
    drop(listener);
    let refused = AsyncStream::connect_with(&address.to_string(), &stream_options()).await;
    assert!(refused.is_err());
}

#[tokio::test]
async fn halves_of_two_streams_are_not_one() {
    let (one, other) = async_streams().await;
    let (reads, writes) = one.into_split();
    let (other_reads, other_writes) = other.into_split();
    let (reads, other_writes) = reads.reunite(other_writes).unwrap_err();
    let mut one = reads.reunite(writes).unwrap();
    let mut other = other_reads.reunite(other_writes).unwrap();
    soon(one.write_all(b"whole")).await.unwrap();
    let mut found = [0; 5];
    soon(other.read_exact(&mut found)).await.unwrap();
    assert_eq!(&found, b"whole");
    soon(one.shutdown()).await.unwrap();
    let after = one.get_ref().try_write(b"x").unwrap_err();
    assert_eq!(after.kind(), ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn closing_waits_until_the_peer_has_the_data_and_may_be_dropped_and_awaited_again() {
    let (mut active, mut passive) = async_streams().await;
    // More than the peer's device takes while its program reads nothing: written by the runtime's other task.
    let sent = pattern(3_000_000, 1);
    let words = sent.clone();
    let closing = tokio::spawn(async move {
        active.write_all(&words).await.unwrap();
        for _ in 0..3 {
            let _ = timeout(Duration::ZERO, active.close()).await;
        }
        active.close().await.unwrap();
        // Closing what is closed waits for nothing.
        active.close().await.unwrap();
        active
    });
    let mut found = Vec::new();
    soon(passive.read_to_end(&mut found)).await.unwrap();
    assert_same(&found, &sent);
    let active = soon(closing).await.unwrap();
    assert!(active.get_ref().try_write(b"more").is_err());
    soon(passive.close()).await.unwrap();
}

/// Starts tasks that all wait for the same, before what they wait for may happen.
async fn waiting<T: Send + 'static>(
    futures: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> JoinSet<T> {
    let mut tasks = JoinSet::new();
    for future in futures {
        tasks.spawn(future);
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    tasks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_several_tasks_that_accept_gets_a_stream() {
    let (listener, address) = async_listener();
    let listener = Arc::new(listener);
    let accepts = (0..3).map(|_| {
        let listener = listener.clone();
        async move { listener.accept().await.unwrap().1 }
    });
    let mut accepting = waiting(accepts).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let connect = AsyncStream::connect_with(&address.to_string(), &stream_options()).await;
        clients.push(connect.unwrap());
    }
    let mut peers = Vec::new();
    while let Some(peer) = soon(accepting.join_next()).await {
        peers.push(peer.unwrap());
    }
    for client in clients {
        assert!(peers.contains(&client.local_addr().unwrap()), "{peers:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_wakes_every_task_that_waits_until_it_can_be_read() {
    let (mut active, passive) = async_streams().await;
    let passive = Arc::new(passive);
    let waits = (0..3).map(|_| {
        let passive = passive.clone();
        async move { passive.readable().await.unwrap() }
    });
    let mut tasks = waiting(waits).await;
    active.write_all(b"ahoy").await.unwrap();
    for _ in 0..3 {
        soon(tasks.join_next()).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_gives_up_its_wait_for_data_keeps_no_other_from_it() {
    let (mut active, passive) = async_streams().await;
    let passive = Arc::new(passive);
    let wait = || {
        let passive = passive.clone();
        async move { passive.readable().await.unwrap() }
    };
    let mut first = waiting([wait()]).await;
    let mut second = waiting([wait()]).await;
    first.abort_all();
    assert!(soon(first.join_next()).await.unwrap().is_err());
    active.write_all(b"ahoy").await.unwrap();
    soon(second.join_next()).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_wait_that_nobody_polls_any_more_keeps_no_other_from_anything() {
    let (mut active, mut passive) = async_streams().await;
    // Until there is no room.
    while let Ok(written) = timeout(Duration::from_millis(200), active.write(&[7; 1 << 16])).await {
        written.unwrap();
    }
    let short = Duration::from_millis(10);
    let mut writable = std::pin::pin!(active.writable());
    assert!(timeout(short, &mut writable).await.is_err(), "no room");
    let mut readable = std::pin::pin!(active.readable());
    assert!(timeout(short, &mut readable).await.is_err(), "no data");
    let reading = tokio::spawn(async move {
        let mut all = Vec::new();
        passive.read_to_end(&mut all).await.map(|_| passive)
    });
    soon(active.writable()).await.unwrap();
    soon(active.close()).await.unwrap();
    soon(active.readable()).await.unwrap();
    drop(soon(reading).await.unwrap());
}

#[tokio::test]
async fn what_is_closed_is_writable_although_the_peer_does_not_have_all_data() {
    let (mut active, _passive) = async_streams().await;
    while let Ok(written) = timeout(Duration::from_millis(200), active.write(&[7; 1 << 16])).await {
        written.unwrap();
    }
    let active = Arc::new(active);
    let closing = active.clone();
    let closing = tokio::spawn(async move { closing.close().await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    soon(active.writable()).await.unwrap();
    closing.abort();
}

/// Calls `call` often, whose future is always ready at once. Returns whether another task of the thread has run meanwhile.
async fn lets_others_run(mut call: impl AsyncFnMut()) -> bool {
    let ran = Arc::new(AtomicBool::new(false));
    let other = ran.clone();
    tokio::spawn(async move { other.store(true, Ordering::Relaxed) });
    for _ in 0..TURNS {
        call().await;
    }
    ran.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_task_that_finds_all_its_calls_ready_lets_others_run_as_with_tcp() {
    let (mut active, mut passive) = async_streams().await;
    active.write_all(&pattern(TURNS, 1)).await.unwrap();
    passive.readable().await.unwrap();
    soon(async {
        while passive.get_ref().ready().unread_bytes < TURNS as u32 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert!(lets_others_run(async || passive.readable().await.unwrap()).await);
    assert!(lets_others_run(async || active.writable().await.unwrap()).await);
    assert!(lets_others_run(async || assert!(passive.read_u8().await.is_ok())).await);
    assert!(soon(lets_others_run(async || active.write_u8(1).await.unwrap())).await);
    assert!(active.get_ref().ready().writable, "no write has waited");
}
