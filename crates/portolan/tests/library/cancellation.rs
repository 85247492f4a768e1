//! Drops every future of the library at every point where it waits: nothing is left behind and nothing is lost.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use portolan::software::{SoftwareProvider, Usage};
use portolan::tasks::{AsyncConnection, AsyncListener};
use portolan::{Access, Options};
use tokio::time::timeout;

use crate::harness::*;

/// Limit on the runs of a future until every wait has been the last one.
const RUNS_MAX: u32 = 1000;

/// Bytes that take longer than a future's first poll.
const LONG: usize = 8 << 20;

/// Drives a future until it has waited `waits` times, then drops it. Returns its output if it ended earlier.
async fn dropped_after<T>(waits: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = waits;
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

/// Runs the future from `make` repeatedly and drops it one wait later each time, until it has completed three
/// times. A fast future may complete without ever waiting; then everything is repeated. `clean_up` gets each
/// outcome and restores the state before the run.
async fn at_every_wait<T, F: Future<Output = T>>(
    mut make: impl FnMut() -> F,
    mut clean_up: impl AsyncFnMut(Option<T>),
) {
    let (mut ended, mut dropped, mut waits) = (0, 0, 0);
    for _ in 0..RUNS_MAX {
        let outcome = timeout(PATIENCE, dropped_after(waits, make()))
            .await
            .expect("it makes progress");
        ended += u32::from(outcome.is_some());
        dropped += u32::from(outcome.is_none());
        waits += 1;
        clean_up(outcome).await;
        match (ended, dropped) {
            (3.., 1..) => return,
            (3.., 0) => (ended, waits) = (0, 0),
            _ => {}
        }
    }
    panic!("{dropped} of {RUNS_MAX} runs were dropped, and fewer than three completed after that");
}

async fn returns_to(provider: &SoftwareProvider, usage: Usage) {
    settles(provider, usage, || {}).await;
}

/// Like `returns_to`, for a connection without a waiting task. `look` takes completed work.
async fn settles(provider: &SoftwareProvider, usage: Usage, mut look: impl FnMut()) {
    let settled = timeout(PATIENCE, async {
        while provider.usage() != usage {
            look();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    if settled.await.is_err() {
        panic!("held {usage:?} before, and {:?} after", provider.usage());
    }
}

/// Takes completed work of which nobody waits.
fn collect(connection: &AsyncConnection) {
    assert!(connection.get_ref().try_receive().unwrap().is_none());
}

/// Both ends of a connection, and the resources held while it is idle.
async fn pair(
    provider: &Arc<SoftwareProvider>,
    options: Options,
) -> (AsyncConnection, AsyncConnection, Usage) {
    let listener = listener_on(provider.clone(), "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let connector = connector_on(provider.clone()).options(options.clone());
    let (active, passive) =
        tokio::task::spawn_blocking(move || pair_at(connector, &listener, address, &options))
            .await
            .unwrap();
    let watch = |connection| AsyncConnection::new(connection).unwrap();
    let (active, passive) = (watch(active), watch(passive));
    (active, passive, provider.usage())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_may_be_dropped_at_every_wait() {
    let provider = own_provider();
    let listener = AsyncListener::new(listener_on(provider.clone(), "127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let idle = provider.usage();
    // A peer that accepts every request.
    let accepting = tokio::spawn(async move {
        loop {
            let incoming = listener.accept().await.unwrap();
            let options = options().timeout(Duration::from_millis(500));
            tokio::spawn(async move {
                if let Ok(connection) = incoming.accept_async(&options).await {
                    let _ = connection.disconnected().await;
                }
            });
        }
    });
    let connector = connector_on(provider.clone());
    at_every_wait(
        || connector.connect_async(&address),
        async |connected| {
            if let Some(connected) = connected {
                drop(connected.unwrap());
            }
            returns_to(&provider, idle).await;
        },
    )
    .await;
    accepting.abort();
    assert!(accepting.await.unwrap_err().is_cancelled());
    returns_to(&provider, Usage::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepting_may_be_dropped_at_every_wait() {
    let provider = own_provider();
    let listener = AsyncListener::new(listener_on(provider.clone(), "127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let idle = provider.usage();
    let connector = connector_on(provider.clone());
    at_every_wait(
        || async {
            let (connector, address) = (connector.clone(), address.clone());
            // Starts after the accept. Dropping the accept rejects the request.
            let connecting = async move {
                tokio::time::sleep(Duration::from_millis(2)).await;
                connector.connect_async(&address).await.map(drop)
            };
            let connecting = tokio::spawn(timeout(PATIENCE, connecting));
            let incoming = listener.accept().await.unwrap();
            let accepted = incoming.accept_async(&options()).await;
            let _ = connecting.await;
            accepted.map(drop)
        },
        async |accepted| {
            if let Some(Err(error)) = accepted {
                panic!("{error}");
            }
            // Requests that arrived too late for the dropped accept.
            while provider.usage() != idle {
                let waiting = timeout(Duration::from_millis(20), listener.accept());
                drop(waiting.await);
            }
        },
    )
    .await;
    drop(listener);
    returns_to(&provider, Usage::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sending_may_be_dropped_at_every_wait_and_continues() {
    let provider = own_provider();
    let none = options().receive_depth(0);
    let (active, passive, idle) = pair(&provider, none).await;
    let passive = Arc::new(passive);
    let receiving = RefCell::new(None);
    at_every_wait(
        || {
            // Posted after the send has begun to wait for it.
            let peer = passive.clone();
            let late = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                let buffer = peer.get_ref().buffer(64).unwrap();
                let receive = peer.get_ref().post_receive(buffer).unwrap();
                peer.finish(receive).await.unwrap().length
            });
            receiving.replace(Some(late));
            let buffer = active.get_ref().buffer_from(b"ahoy").unwrap();
            active.send(buffer).unwrap()
        },
        async |sent| {
            let done = match (sent, active.get_ref().take_abandoned()) {
                (Some(done), None) => done,
                (None, Some(transfer)) => timeout(PATIENCE, active.finish(transfer)).await.unwrap(),
                _ => panic!("it has ended or is abandoned"),
            };
            assert_eq!(&done.unwrap().buffer[..], b"ahoy");
            let late = receiving.take().expect("one for each send");
            assert_eq!(timeout(PATIENCE, late).await.unwrap().unwrap(), 4);
            settles(&provider, idle, || collect(&active)).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receiving_may_be_dropped_at_every_wait_and_loses_no_message() {
    let provider = own_provider();
    let (active, passive, idle) = pair(&provider, options()).await;
    let active = Arc::new(active);
    let sending = RefCell::new(None);
    at_every_wait(
        || {
            let peer = active.clone();
            let late = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                let buffer = peer.get_ref().buffer_from(b"ahoy").unwrap();
                drop(peer.send(buffer).unwrap().await.unwrap());
            });
            sending.replace(Some(late));
            passive.receive()
        },
        async |received| {
            let message = match received {
                Some(message) => message,
                // The message is there for the next receive.
                None => timeout(PATIENCE, passive.receive()).await.unwrap(),
            };
            assert_eq!(message.unwrap()[..], *b"ahoy");
            let late = sending.take().expect("one for each receive");
            timeout(PATIENCE, late).await.unwrap().unwrap();
            returns_to(&provider, idle).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_and_writing_may_be_dropped_at_every_wait_and_their_buffers_are_freed() {
    let provider = own_provider();
    let (active, passive, _) = pair(&provider, options()).await;
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let memory = passive.get_ref().share(LONG, access).unwrap();
    let idle = provider.usage();
    let buffer = || active.get_ref().buffer(LONG).unwrap();
    at_every_wait(
        || active.write(buffer(), memory.remote()).unwrap(),
        async |outcome| {
            drop(outcome.map(Result::unwrap));
            drop(active.get_ref().take_abandoned());
            settles(&provider, idle, || collect(&active)).await;
        },
    )
    .await;
    at_every_wait(
        || active.read(buffer(), memory.remote()).unwrap(),
        async |outcome| {
            drop(outcome.map(Result::unwrap));
            drop(active.get_ref().take_abandoned());
            settles(&provider, idle, || collect(&active)).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_the_end_may_be_dropped_at_every_wait() {
    let provider = own_provider();
    for waits in 0..4 {
        let (active, passive, _) = pair(&provider, options()).await;
        let ending = async {
            let (ended, ()) = tokio::join!(passive.disconnected(), async {
                tokio::task::yield_now().await;
                active.get_ref().disconnect().unwrap();
            });
            ended
        };
        drop(dropped_after(waits, ending).await);
        drop((active, passive));
        returns_to(&provider, Usage::default()).await;
    }
}
