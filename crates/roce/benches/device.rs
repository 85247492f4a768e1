//! Latency and throughput of the software device over loopback, beside those of plain UDP sockets
//! used as well as they can be. `cargo bench -p portolan-roce`.
#![allow(unsafe_code, reason = "registering memory is unsafe by contract")]
#![allow(unreachable_pub, dead_code, reason = "shares the tests' harness")]

#[path = "../tests/io/harness.rs"]
mod harness;

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{End, Pair, Shape};
use portolan_provider::verbs::{SendOp, WorkCompletion};

const ROUNDS: usize = 20_000;
const STREAM_BYTES: usize = 2 << 30;

fn main() {
    let udp = udp_ping_pong(ROUNDS, true);
    let send = ping_pong_by_send();
    let write = ping_pong_by_write();
    let udp_asleep = udp_ping_pong(ROUNDS / 4, false);
    let sleeping = ping_pong_asleep();
    println!("round trip           10 %     median       99 %   median / UDP");
    for (name, of) in [
        ("UDP, polling", udp),
        ("send, polling", send),
        ("write, polling", write),
        ("UDP, asleep", udp_asleep),
        ("send, asleep", sleeping),
    ] {
        let Summary { p10, median, p99 } = of;
        let times = median.as_secs_f64() / udp.median.as_secs_f64();
        println!("  {name:<14} {p10:>10.2?} {median:>10.2?} {p99:>10.2?}   {times:.2}");
    }
    let udp = udp_stream();
    println!("stream:");
    println!("  {:<16} {:>7.2} Gbit/s", "UDP with GSO", udp);
    for (name, gbit) in [
        ("write, 1 MiB", stream(1 << 20, Stream::Write)),
        ("read, 1 MiB", stream(1 << 20, Stream::Read)),
        ("write, 4 KiB", stream(4096, Stream::Write)),
    ] {
        println!(
            "  {name:<16} {gbit:>7.2} Gbit/s  {:.0} % of UDP",
            gbit / udp * 100.0
        );
    }
}

/// Of round trip times. The 10th percentile tells most on a busy machine.
#[derive(Clone, Copy)]
struct Summary {
    p10: Duration,
    median: Duration,
    p99: Duration,
}

fn summary(mut samples: Vec<Duration>) -> Summary {
    samples.sort();
    let at = |percent: usize| samples[samples.len() * percent / 100];
    Summary {
        p10: at(10),
        median: at(50),
        p99: at(99),
    }
}

/// Two threads that do nothing but receive, polling or asleep, and answer.
fn udp_ping_pong(rounds: usize, polling: bool) -> Summary {
    let [a, b] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    a.connect(b.local_addr().unwrap()).unwrap();
    b.connect(a.local_addr().unwrap()).unwrap();
    for socket in [&a, &b] {
        socket.set_nonblocking(polling).unwrap();
    }
    let receive = |socket: &UdpSocket, buffer: &mut [u8]| {
        while let Err(error) = socket.recv(buffer) {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 64];
            for _ in 0..rounds {
                receive(&b, &mut buffer);
                b.send(&buffer).unwrap();
            }
        });
        let mut buffer = [0; 64];
        summary(
            (0..rounds)
                .map(|_| {
                    timed(|| {
                        a.send(&buffer).unwrap();
                        receive(&a, &mut buffer);
                    })
                })
                .collect(),
        )
    })
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// The name of a work request that succeeded.
fn completed(wc: WorkCompletion) -> u64 {
    harness::expect(wc, wc.wr_id).wr_id
}

/// Posts a receive, sends, and waits for the peer's answer.
fn exchange(end: &End, next: impl Fn(&End) -> WorkCompletion) {
    end.post(1, SendOp::Send, end.sge(0, 64));
    let (mut sent, mut received) = (false, false);
    while !(sent && received) {
        match completed(next(end)) {
            1 => sent = true,
            _ => received = true,
        }
    }
    end.receive(2, end.sge(64, 64));
}

fn answer(end: &End, next: impl Fn(&End) -> WorkCompletion) {
    while completed(next(end)) != 2 {}
    end.receive(2, end.sge(64, 64));
    end.post(1, SendOp::Send, end.sge(0, 64));
}

fn ping_pong_by_send() -> Summary {
    rounds(ROUNDS, End::poll)
}

fn ping_pong_asleep() -> Summary {
    rounds(ROUNDS / 4, End::wait)
}

fn rounds(rounds: usize, next: impl Fn(&End) -> WorkCompletion + Copy + Send) -> Summary {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (a, b) = (&pair.a, &pair.b);
    for end in [a, b] {
        for _ in 0..4 {
            end.receive(2, end.sge(64, 64));
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(move || (0..rounds).for_each(|_| answer(b, next)));
        summary((0..rounds).map(|_| timed(|| exchange(a, next))).collect())
    })
}

/// Both write to each other and wait for their memory to change, polling in between.
fn ping_pong_by_write() -> Summary {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (a, b) = (&pair.a, &pair.b);
    let write = |from: &End, to: &End, value: u8| {
        from.memory.write(0, &[value; 64]);
        from.post(1, SendOp::RdmaWrite(to.remote(64)), from.sge(0, 64));
    };
    let await_value = |end: &End, value: u8| {
        while end.memory.byte(64 + 63) != value {
            end.try_poll();
        }
    };
    // Never that of the round before, nor zero.
    let value = |round: usize| (round % 255) as u8 + 1;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                await_value(b, value(round));
                write(b, a, value(round));
            }
        });
        let round = |round| {
            timed(|| {
                write(a, b, value(round));
                await_value(a, value(round));
            })
        };
        summary((0..ROUNDS).map(round).collect())
    })
}

/// Segmented by the kernel and coalesced by it, in the sizes that packets of a 4096-byte path MTU
/// have; Gbit/s of what arrives.
fn udp_stream() -> f64 {
    const PACKET: usize = 4112;
    let [from, to] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    from.connect(to.local_addr().unwrap()).unwrap();
    let set = |socket: &UdpSocket, name, value: i32| {
        let (pointer, len) = ((&raw const value).cast(), size_of::<i32>() as u32);
        // SAFETY: an integer option.
        let done =
            unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_UDP, name, pointer, len) };
        assert_eq!(done, 0);
    };
    set(&from, libc::UDP_SEGMENT, PACKET as i32);
    set(&to, libc::UDP_GRO, 1);
    to.set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bytes = vec![0; PACKET * 15];
            while !stop.load(Ordering::Relaxed) {
                from.send(&bytes).unwrap();
            }
        });
        let mut buffer = vec![0; 1 << 16];
        let start = Instant::now();
        let mut received = 0;
        while received < STREAM_BYTES {
            received += to.recv(&mut buffer).unwrap();
        }
        let elapsed = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        gbit_per_s(received, elapsed)
    })
}

#[derive(Clone, Copy)]
enum Stream {
    Write,
    Read,
}

fn stream(size: usize, kind: Stream) -> f64 {
    const DEPTH: usize = 16;
    let pair = Pair::new(
        "127.0.0.1",
        Shape {
            memory: 16 << 20,
            ..Shape::default()
        },
    );
    let (a, b) = (&pair.a, &pair.b);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                b.try_poll();
            }
        });
        let post = |number: usize| {
            let at = number % DEPTH * size;
            let op = match kind {
                Stream::Write => SendOp::RdmaWrite(b.remote(at)),
                Stream::Read => SendOp::RdmaRead(b.remote(at)),
            };
            a.post(number as u64, op, a.sge(at, size));
        };
        let count = (STREAM_BYTES / 4 / size).min(200_000);
        let start = Instant::now();
        (0..DEPTH).for_each(post);
        for number in 0..count {
            a.expect(number as u64);
            if number + DEPTH < count {
                post(number + DEPTH);
            }
        }
        let elapsed = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        gbit_per_s(count * size, elapsed)
    })
}

fn gbit_per_s(bytes: usize, elapsed: Duration) -> f64 {
    bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e9
}
