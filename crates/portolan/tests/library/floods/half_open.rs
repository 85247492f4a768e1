//! A flood of connection requests to a server that accepts all of them, while the senders never confirm.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::AtomicUsize;

use portolan::tasks::AsyncListener;
use portolan::wire::cm::CmMessage;
use tokio::task::JoinSet;

use super::forged::{Source, request};
use super::requests::counted;
use super::*;

/// The provider's default limit on half-open connections of a listener.
const HALF_OPEN_MAX: usize = 512;
/// Descriptors of a connection: two for its events, two for its completions.
const DESCRIPTORS_EACH: usize = 4;
/// Descriptors of the shared memory links between the three devices: a connection and a bell at each end of
/// six.
const DESCRIPTORS_OF_LINKS: usize = 24;
/// Senders of the flood, each with its own address.
const SENDERS: u64 = 64;
/// Requests per second.
const RATE: u64 = 2000;
/// Minimum duration of the flood, which also lasts until enough clients have connected.
const LASTS: Duration = Duration::from_secs(4);
const CONNECTS_MIN: u32 = 12;

/// Number of open descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Accepts every request in a task of its own, and keeps established connections until `over`.
fn accept_all(listener: portolan::Listener, over: &AtomicBool, established: &AtomicUsize) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let listener = AsyncListener::new(listener).unwrap();
        let mut accepting = JoinSet::new();
        while !over.load(Ordering::Relaxed) {
            tokio::select! {
                incoming = listener.accept() => {
                    let incoming = incoming.unwrap();
                    let options = options().receive_depth(1);
                    accepting.spawn(async move {
                        let connection = incoming.accept_async(&options).await.ok()?;
                        let message = connection.receive().await.ok()?;
                        let buffer = connection.get_ref().buffer_from(&message).unwrap();
                        connection.send(buffer).ok()?.await.ok()?;
                        connection.disconnected().await.ok()
                    });
                }
                Some(ended) = accepting.join_next() => {
                    established.fetch_add(usize::from(ended.unwrap().is_some()), Ordering::Relaxed);
                }
                () = tokio::time::sleep(Duration::from_millis(10)) => {}
            }
        }
    });
}

#[test]
fn a_flood_of_accepted_but_never_confirmed_requests_excludes_no_client() {
    // In a separate process, so that descriptors of other tests are not counted.
    let test = [
        "--ignored",
        "--exact",
        "--nocapture",
        "floods::half_open::flooded",
    ];
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(test)
        .status();
    assert!(ended.unwrap().success());
}

#[test]
#[ignore = "run by the test above, in a separate process"]
fn flooded() {
    let port = free_port();
    let _hub = start(port);
    let server = start(port);
    let listener = listener_on(server.clone(), "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let friend = connector_on(start(port));
    let senders: Vec<_> = (0..SENDERS)
        .map(|number| Source::new(Ipv4Addr::new(127, 0, 1, number as u8)))
        .collect();
    let began = Instant::now();
    let paced = |number: u64| {
        let due = began + Duration::from_secs(1) * number as u32 / RATE as u32;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let source = &senders[(number % SENDERS) as usize];
        let request = request(source.ip(), address, number);
        source.send_message(target(port), number, &CmMessage::Req(request));
    };
    let (over, established) = (AtomicBool::new(false), AtomicUsize::new(0));
    let before = descriptors();
    let (mut connects, mut longest, mut most) = (0, Duration::ZERO, 0);
    thread::scope(|scope| {
        let serving = scope.spawn(|| accept_all(listener, &over, &established));
        let ends_serving = Over(&over);
        let sent = flood(paced, || {
            // A slow machine makes fewer connections in that time, but none fails.
            while connects < CONNECTS_MIN || began.elapsed() < LASTS {
                let started = Instant::now();
                let near = friend.connect_to(address).unwrap();
                let sent = near.send(near.buffer_from(b"ahoy").unwrap()).unwrap();
                assert_eq!(&near.receive_within(PATIENCE).unwrap()[..], b"ahoy");
                sent.wait().unwrap();
                drop(near);
                (connects, longest) = (connects + 1, longest.max(started.elapsed()));
                most = most.max(descriptors());
            }
        });
        let displaced = counted(port, "cm_dropped_displaced");
        println!(
            "{sent} requests, {displaced} displaced; {connects} connects, the longest \
             {longest:?}; {before} descriptors before, {most} at most"
        );
        assert!(sent > RATE, "{sent} requests are no flood");
        assert!(displaced > 0, "none was displaced");
        drop(ends_serving);
        serving.join().unwrap();
    });
    // Plus those of the few honest connections.
    let before = before + DESCRIPTORS_OF_LINKS;
    let allowed = before + (HALF_OPEN_MAX + 64) * DESCRIPTORS_EACH;
    assert!(most <= allowed, "{most} descriptors, {allowed} allowed");
    eventually("an end of all ids", || server.usage().ids == 0);
    eventually("an end of all queue pairs", || {
        server.usage().queue_pairs == 0
    });
    eventually("descriptors as before", || descriptors() <= before);
}
