//! Which tasks of tokio are woken, and when. The streams are between two processes of a host, each a provider of its own.

use std::io::Write;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use portolan::Stream;
use portolan::stream::AsyncStream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use crate::harness::*;
use crate::own_waits::streams_of_two;

/// Counts its wakes.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Wakes {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    async fn first(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.count() == 0 {
            assert!(Instant::now() < deadline, "the task was not woken");
            sleep(Duration::from_millis(1)).await;
        }
    }
}

fn async_streams_of_two() -> (AsyncStream, AsyncStream) {
    many_async_streams_of_two(1).remove(0)
}

fn many_async_streams_of_two(count: usize) -> Vec<(AsyncStream, AsyncStream)> {
    let of = |stream| AsyncStream::new(stream).unwrap();
    let pairs = streams_of_two(count).into_iter();
    pairs.map(|(a, b)| (of(a), of(b))).collect()
}

/// Reads at most 64 bytes.
fn poll_read(stream: &mut (impl AsyncRead + Unpin), wakes: &Arc<Wakes>) -> Poll<usize> {
    poll_read_for(stream, &Waker::from(wakes.clone()))
}

fn poll_read_for(stream: &mut (impl AsyncRead + Unpin), waker: &Waker) -> Poll<usize> {
    let mut bytes = [0; 64];
    let mut into = ReadBuf::new(&mut bytes);
    let read = Pin::new(stream).poll_read(&mut Context::from_waker(waker), &mut into);
    read.map(|read| {
        read.unwrap();
        into.filled().len()
    })
}

fn poll_write(stream: &mut AsyncStream, wakes: &Arc<Wakes>) -> Poll<usize> {
    let waker = Waker::from(wakes.clone());
    let written = Pin::new(stream).poll_write(&mut Context::from_waker(&waker), &[9; 4096]);
    written.map(|written| written.unwrap())
}

/// Drops a stream when it is woken.
struct Drops(Mutex<Option<Stream>>, AtomicBool);

impl Wake for Drops {
    fn wake(self: Arc<Self>) {
        let stream = self.0.lock().unwrap().take();
        drop(stream);
        self.1.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_task_that_is_woken_while_a_keepalive_is_due_may_drop_a_stream() {
    for _ in 0..10 {
        let mut pairs = streams_of_two(2).into_iter();
        let (mut active, passive) = pairs.next().unwrap();
        let (dropped, peer) = pairs.next().unwrap();
        dropped.set_nonblocking(true).unwrap();
        passive.set_keepalive(Some(Duration::from_millis(1)));
        let mut passive = AsyncStream::new(passive).unwrap();
        let drops = Arc::new(Drops(Mutex::new(Some(dropped)), AtomicBool::new(false)));
        let waker = Waker::from(drops.clone());
        assert!(poll_read_for(&mut passive, &waker).is_pending());
        active.write_all(&[7; 64]).unwrap();
        // This thread does not let the runtime look. The one that sends keepalives finds the message.
        let deadline = Instant::now() + PATIENCE;
        while !drops.1.load(Ordering::SeqCst) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_woken = drops.1.load(Ordering::SeqCst);
        if !is_woken {
            // Their drops would not return.
            std::mem::forget((active, passive, peer));
        }
        assert!(is_woken, "the stream's drop does not return");
    }
}

#[tokio::test]
async fn a_read_that_finds_a_message_leaves_the_wake_up_of_a_waiting_write_in_place() {
    let (mut active, mut passive) = async_streams_of_two();
    for _ in 0..50 {
        let [reads, writes] = [(); 2].map(|()| Arc::default());
        assert!(poll_read(&mut passive, &reads).is_pending());
        let mut written = 0;
        while let Poll::Ready(length) = poll_write(&mut passive, &writes) {
            written += length;
        }
        active.write_all(&[7; 64]).await.unwrap();
        // The reader comes for a reason of its own, before the runtime sees the message.
        while poll_read(&mut passive, &reads).is_pending() {
            std::thread::sleep(Duration::from_micros(100));
        }
        active.read_exact(&mut vec![0; written]).await.unwrap();
        writes.first().await;
    }
}

#[tokio::test]
async fn a_writing_task_goes_on_although_the_reading_one_does_not_come_when_it_is_woken() {
    let (mut active, passive) = async_streams_of_two();
    let (mut reads, mut writes) = passive.into_split();
    let sent = pattern(400_000, 3);
    for _ in 0..20 {
        let writing = sent.clone();
        let writing = tokio::spawn(async move {
            writes.write_all(&writing).await.unwrap();
            writes
        });
        // Until it waits for room.
        sleep(Duration::from_millis(2)).await;
        let wakes = Arc::default();
        assert!(poll_read(&mut reads, &wakes).is_pending());
        active.write_all(&[7; 64]).await.unwrap();
        wakes.first().await;
        let mut found = vec![0; sent.len()];
        let all = timeout(PATIENCE, active.read_exact(&mut found)).await;
        all.expect("the writer goes on").unwrap();
        assert_same(&found, &sent);
        writes = writing.await.unwrap();
        assert_eq!(poll_read(&mut reads, &wakes), Poll::Ready(64));
    }
}

#[tokio::test]
async fn a_task_is_woken_for_a_message_that_no_descriptor_signals() {
    if std::thread::available_parallelism().unwrap().get() == 1 {
        // Then no task polls: the sender needs the processor.
        return;
    }
    let (mut active, mut passive) = async_streams_of_two();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let wakes = Arc::default();
        assert!(poll_read(&mut passive, &wakes).is_pending());
        // The polling task looks for the first time.
        tokio::task::yield_now().await;
        active.write_all(&[7; 64]).await.unwrap();
        wakes.first().await;
        let fd = passive.get_ref().as_fd();
        let is_signalled = poll(
            &mut [PollFd::new(&fd, PollFlags::IN)],
            Some(&Timespec::default()),
        );
        while poll_read(&mut passive, &wakes) != Poll::Ready(64) {
            sleep(Duration::from_millis(1)).await;
        }
        if is_signalled == Ok(0) {
            return;
        }
        assert!(Instant::now() < deadline, "each message was signalled");
    }
}

#[tokio::test]
async fn the_task_that_polls_ends_with_its_stream() {
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let mut pairs = many_async_streams_of_two(2);
    assert!(tasks() > before, "no task polls");
    let deadline = Instant::now() + PATIENCE;
    pairs.clear();
    while tasks() > before {
        assert!(Instant::now() < deadline, "it has not ended");
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn while_a_task_waits_for_long_its_runtime_sleeps() {
    let (mut active, mut passive) = async_streams_of_two();
    let wakes = Arc::default();
    active.write_all(&[7; 64]).await.unwrap();
    passive.read_exact(&mut [0; 64]).await.unwrap();
    assert!(poll_read(&mut passive, &wakes).is_pending());
    let of_thread = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let before = of_thread();
    sleep(Duration::from_secs(1)).await;
    let used = of_thread() - before;
    assert!(used < Duration::from_millis(50), "{used:?}");
    active.write_all(&[7; 64]).await.unwrap();
    wakes.first().await;
}

#[tokio::test]
async fn a_read_that_finds_a_message_does_not_wake_its_own_task() {
    let (mut active, mut passive) = async_streams_of_two();
    for _ in 0..50 {
        let wakes = Arc::default();
        assert!(poll_read(&mut passive, &wakes).is_pending());
        active.write_all(&[7; 64]).await.unwrap();
        wakes.first().await;
        let before = wakes.count();
        assert_eq!(poll_read(&mut passive, &wakes), Poll::Ready(64));
        assert_eq!(wakes.count(), before);
    }
}

#[tokio::test]
async fn a_task_that_polls_again_while_nothing_has_arrived_is_woken_for_the_next_message() {
    let (mut active, mut passive) = async_streams_of_two();
    for polls in 1..50 {
        let earlier = Arc::default();
        for _ in 0..polls {
            assert!(poll_read(&mut passive, &earlier).is_pending());
        }
        // The last waker counts.
        let wakes = Arc::default();
        assert!(poll_read(&mut passive, &wakes).is_pending());
        active.write_all(&[7; 64]).await.unwrap();
        wakes.first().await;
        while poll_read(&mut passive, &wakes) != Poll::Ready(64) {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test]
async fn another_task_waits_for_the_device_after_the_stream_that_did_has_ended() {
    let mut pairs = many_async_streams_of_two(3);
    let (mut active, mut passive) = pairs.remove(2);
    let is_free = |stream: &AsyncStream| stream.get_ref().wait_for_device().is_some();
    assert!(!is_free(&passive), "the first stream waits");
    drop(pairs.remove(0));
    assert!(is_free(&passive));
    assert!(poll_read(&mut passive, &Arc::default()).is_pending());
    assert!(!is_free(&pairs[0].1), "the stream that was polled waits");
    for _ in 0..50 {
        let wakes = Arc::default();
        assert!(poll_read(&mut passive, &wakes).is_pending());
        active.write_all(&[7; 64]).await.unwrap();
        wakes.first().await;
        assert_eq!(poll_read(&mut passive, &wakes), Poll::Ready(64));
    }
}

#[tokio::test]
async fn a_dropped_stream_that_still_delivers_its_data_does_not_wait_for_the_device() {
    let mut pairs = many_async_streams_of_two(2);
    let (other, _kept) = pairs.remove(1);
    let (mut active, mut passive) = pairs.remove(0);
    let sent = pattern(100_000, 7);
    // More than half of the peer's buffer: the other half may not be announced yet.
    active.write_all(&sent).await.unwrap();
    assert!(other.get_ref().wait_for_device().is_none());
    drop(active);
    assert!(other.get_ref().wait_for_device().is_some());
    let mut found = Vec::new();
    passive.read_to_end(&mut found).await.unwrap();
    assert_same(&found, &sent);
}
