//! What two processes of a host reach through memory, beside a plain copy and a bare flag in shared memory, by turns in
//! one run. `cargo bench -p portolan-roce --bench memory`.
#![allow(unsafe_code, reason = "registering memory is unsafe by contract")]
#![allow(unreachable_pub, dead_code, reason = "shares the tests' harness")]

#[path = "../tests/io/harness.rs"]
mod harness;
#[path = "memory/ucx.rs"]
mod ucx;

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::{End, Pair, Shape, config};
use portolan_provider::verbs::{RecvWr, SendData, SendFlags, SendOp, SendWr, WorkCompletion};
use rustix::thread::{CpuSet, sched_setaffinity};

const ROUNDS: usize = 7;
const REQUESTS: usize = 20_000;
const STREAM_BYTES: usize = 512 << 20;
/// Requests of which one is signaled, where the yardstick does not wait for each.
const WINDOW: usize = 16;
const SENDS: u64 = 300_000;

fn main() {
    // For a profiler. In the first five cases, one thread does all the work.
    if let Some(work) = std::env::args().skip_while(|arg| arg != "work").nth(1) {
        let pair = two_ends(work.starts_with("write"));
        let times = std::env::args().filter_map(|arg| arg.parse().ok()).next();
        let runs = 0..times.unwrap_or(50);
        let work = || match &*work {
            "ping" => both_ends(&pair),
            "batch" => batches(&pair),
            "rally" => rally(&pair),
            "write" => each(|| request(&pair.a, SendOp::RdmaWrite(pair.b.remote(0)), 64)),
            "write-64k" => each(|| request(&pair.a, SendOp::RdmaWrite(pair.b.remote(0)), 64 << 10)),
            // The rest use two threads.
            "ping-pong" => ping_pong(&pair),
            _ => sends(&two_ends(false)),
        };
        let best = runs.map(|_| work()).fold(f64::MAX, f64::min);
        println!("{best:.0} ns");
        return;
    }
    let only = |part: &str| std::env::args().any(|arg| arg == part);
    if !only("sends") {
        if !only("program") {
            one_sided();
        }
        program_memory();
    }
    if !only("program") {
        two_sided();
    }
}

fn one_sided() {
    let one_sided = two_ends(true);
    // A tenth of a second after the processes have met, their locks may have owners.
    std::thread::sleep(Duration::from_millis(300));
    println!("64 bytes, post to completion    median   yardstick   ratio");
    let a = &one_sided.a;
    for (name, op) in [
        ("write", SendOp::RdmaWrite(one_sided.b.remote(0))),
        ("read", SendOp::RdmaRead(one_sided.b.remote(0))),
        ("compare and swap", swap(&one_sided)),
    ] {
        let len = if name == "compare and swap" { 8 } else { 64 };
        by_turns(
            name,
            "memcpy",
            || each(|| request(a, op, len)),
            || copies(len),
        );
    }
    println!("bytes per second                 GiB/s   yardstick   ratio");
    for size in [4 << 10, 64 << 10, 1 << 20] {
        for write in [true, false] {
            let name = format!(
                "{} of {} KiB",
                if write { "writes" } else { "reads" },
                size >> 10
            );
            let subject = || stream(&one_sided, size, write, places(size), 1);
            rates_by_turns(&name, "memcpy", subject, || memcpy_rate(size));
        }
    }
    beside_ucx(&one_sided, ucx::Transport::Posix);
}

/// Memory that the program owns, beside one kernel copy of the same length.
fn program_memory() {
    let pair = two_ends(false);
    println!("the program's memory             GiB/s   yardstick   ratio");
    for size in [4 << 10, 64 << 10, 1 << 20] {
        for write in [true, false] {
            let (name, yardstick) = match write {
                true => ("writes", "process_vm_writev"),
                false => ("reads", "process_vm_readv"),
            };
            let name = format!("{name} of {} KiB", size >> 10);
            let subject = || stream(&pair, size, write, places(size), 1);
            rates_by_turns(&name, yardstick, subject, || kernel_copy_rate(size, write));
        }
    }
    beside_ucx(&pair, ucx::Transport::Cma);
}

/// As UCX's test does it: in one place, and without waiting for each request.
fn beside_ucx(pair: &Pair, transport: ucx::Transport) {
    if !ucx::is_installed() {
        println!("  (ucx_perftest is not installed)");
        return;
    }
    for size in [64 << 10, 1 << 20] {
        for (name, write) in [("writes", true), ("reads", false)] {
            let name = format!("{name} of {} KiB, one place", size >> 10);
            let subject = || stream(pair, size, write, 1, WINDOW);
            let yardstick = || transport.rate(write, size, STREAM_BYTES);
            rates_by_turns(&name, transport.name(), subject, yardstick);
        }
    }
}

fn two_sided() {
    println!("64 bytes, half round trip       median   yardstick   ratio");
    let ends = two_ends(false);
    by_turns("send", "bare flag", || ping_pong(&ends), bare_flag);
    let ends = two_ends(false);
    by_turns("send", "polled UDP", || ping_pong(&ends), polled_udp);
    let has_ucx = ucx::is_installed();
    if has_ucx {
        let ends = two_ends(false);
        let yardstick = || ucx::time_ns("tag_lat", 64, 100_000);
        by_turns("send", "UCX tag_lat", || ping_pong(&ends), yardstick);
    } else {
        println!("  (ucx_perftest is not installed)");
    }
    println!("64 bytes, work of both ends by one thread");
    let ends = two_ends(false);
    by_turns("send", "memcpy", || both_ends(&ends), || copies(64));
    let ends = two_ends(false);
    by_turns("32 sends, each", "memcpy", || batches(&ends), || copies(64));
    println!("sends of 64 bytes one way");
    if has_ucx {
        let yardstick = || ucx::time_ns("tag_bw", 64, 500_000);
        by_turns("each", "UCX tag_bw", || sends(&two_ends(false)), yardstick);
    } else {
        by_turns("each", "memcpy", || sends(&two_ends(false)), || copies(64));
    }
}

/// Two ends that reach each other through memory.
fn two_ends(in_file: bool) -> Pair {
    let mut config = config();
    config.local_memory = true;
    let shape = Shape {
        memory: 32 << 20,
        cqe: 1024,
        depth: 512,
        in_file,
        ..Shape::default()
    };
    // Another thread allocates the second end's memory, so that it is in other cache lines and pages, as if it belonged
    // to another process.
    let ip = "127.0.0.1".parse().unwrap();
    let make = || {
        let stack = harness::stack(&config);
        let end = End::new(&stack, ip, shape);
        (stack, end)
    };
    let (first, a) = make();
    let (second, b) = std::thread::scope(|scope| scope.spawn(make).join().unwrap());
    a.connect(ip, b.qp.qpn(), shape);
    b.connect(ip, a.qp.qpn(), shape);
    let stacks = [first, second];
    let pair = Pair {
        a,
        b,
        stacks,
        config,
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    // A write to the program's memory may be copied by the kernel, which also shows that the link is up.
    let counted = |number: usize| {
        let counters = pair.stacks[number].counters();
        match in_file {
            true => counters.carried_out_in_memory,
            false => counters.sent_through_memory + counters.carried_out_in_memory,
        }
    };
    while counted(0) == 0 || counted(1) == 0 {
        assert!(Instant::now() < deadline, "no way through memory");
        request(&pair.a, SendOp::RdmaWrite(pair.b.remote(0)), 8);
        request(&pair.b, SendOp::RdmaWrite(pair.a.remote(0)), 8);
    }
    pair
}

fn swap(pair: &Pair) -> SendOp {
    let remote = pair.b.remote(0);
    SendOp::AtomicCmpSwap {
        remote,
        compare: 0,
        swap: 0,
    }
}

fn request(end: &End, op: SendOp, len: usize) {
    end.post(1, op, end.sge(0, len));
    taken(end);
}

/// Takes the completion that there is to be.
fn taken(end: &End) {
    let mut out = [WorkCompletion::EMPTY];
    while end.cq.poll(&mut out).unwrap() == 0 {}
    harness::expect(out[0], 1);
}

/// Nanoseconds of one, of many.
fn each(mut once: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..REQUESTS).for_each(|_| once());
    start.elapsed().as_nanos() as f64 / REQUESTS as f64
}

fn copies(len: usize) -> f64 {
    let (from, mut to) = (vec![1u8; len], vec![0u8; len]);
    each(|| std::hint::black_box(&mut to[..]).copy_from_slice(std::hint::black_box(&from)))
}

fn by_turns(
    name: &str,
    yardstick_name: &str,
    subject: impl FnMut() -> f64,
    yardstick: impl FnMut() -> f64,
) {
    let [subject, beside, ratio] = medians(subject, yardstick);
    println!("  {name:<24} {subject:>9.0} ns {beside:>8.1} ns {ratio:>7.2} × {yardstick_name}");
}

fn rates_by_turns(
    name: &str,
    yardstick_name: &str,
    subject: impl FnMut() -> f64,
    yardstick: impl FnMut() -> f64,
) {
    let [subject, beside, ratio] = medians(subject, yardstick);
    println!("  {name:<28} {subject:>8.2} {beside:>11.2} {ratio:>7.2} × {yardstick_name}");
}

/// The medians of the subject, the yardstick and their ratio, of rounds by turns.
fn medians(mut subject: impl FnMut() -> f64, mut yardstick: impl FnMut() -> f64) -> [f64; 3] {
    let rounds = (0..ROUNDS).map(|_| {
        let (beside, measured) = (yardstick(), subject());
        [measured, beside, measured / beside]
    });
    let rounds: Vec<_> = rounds.collect();
    [0, 1, 2].map(|column| {
        let mut values: Vec<_> = rounds.iter().map(|round| round[column]).collect();
        median(&mut values)
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Places that a stream goes through, so that all of them stay in the caches or none.
fn places(size: usize) -> usize {
    ((2 << 20) / size).max(2)
}

/// The rate of requests of `size` bytes that go through so many places. The last of each `window` is signaled, and its
/// completion awaited.
fn stream(pair: &Pair, size: usize, write: bool, places: usize, window: usize) -> f64 {
    let (a, b) = (&pair.a, &pair.b);
    let requests = (0..places).map(|place| {
        let (remote, sge) = (b.remote(place * size), a.sge(place * size, size));
        let op = match write {
            true => SendOp::RdmaWrite(remote),
            false => SendOp::RdmaRead(remote),
        };
        (op, [sge])
    });
    let requests: Vec<_> = requests.collect();
    let count = (STREAM_BYTES / size).min(50_000).next_multiple_of(window);
    let mut start = Instant::now();
    let mut place = 0;
    // The first half is not counted: ucx_perftest does not count its first requests either.
    for number in 0..2 * count {
        if number == count {
            start = Instant::now();
        }
        let (op, sges) = &requests[place];
        place = if place + 1 == places { 0 } else { place + 1 };
        let is_last = (number + 1).is_multiple_of(window);
        let posted = a.qp.post_send(&SendWr {
            wr_id: 1,
            op: *op,
            data: SendData::Sges(sges),
            flags: match is_last {
                true => SendFlags::SIGNALED,
                false => SendFlags::empty(),
            },
            ud: None,
            srq: None,
        });
        posted.unwrap();
        if is_last {
            taken(a);
        }
    }
    gib(count * size, start.elapsed())
}

fn memcpy_rate(size: usize) -> f64 {
    let len = places(size) * size;
    let (from, mut to) = (vec![1u8; len], vec![0u8; len]);
    let count = (STREAM_BYTES / size).min(50_000);
    let start = Instant::now();
    for number in 0..count {
        let at = number % places(size) * size;
        let (from, to) = (&from[at..at + size], &mut to[at..at + size]);
        std::hint::black_box(to).copy_from_slice(std::hint::black_box(from));
    }
    gib(count * size, start.elapsed())
}

/// Copies by the kernel between two parts of this process's memory, as if one were another process's.
fn kernel_copy_rate(size: usize, write: bool) -> f64 {
    let len = places(size) * size;
    let (mut own, mut other) = (vec![1u8; len], vec![2u8; len]);
    let count = (STREAM_BYTES / size).min(50_000);
    let pid = std::process::id() as libc::pid_t;
    let call = match write {
        true => libc::process_vm_writev,
        false => libc::process_vm_readv,
    };
    let start = Instant::now();
    for number in 0..count {
        let at = number % places(size) * size;
        let piece = |bytes: &mut Vec<u8>| libc::iovec {
            iov_base: bytes[at..at + size].as_mut_ptr().cast(),
            iov_len: size,
        };
        let (local, remote) = (piece(&mut own), piece(&mut other));
        // SAFETY: both are this function's bytes, and no reference to them is in use.
        let copied = unsafe { call(pid, &local, 1, &remote, 1, 0) };
        assert_eq!(copied, size as isize);
    }
    gib(count * size, start.elapsed())
}

fn gib(bytes: usize, elapsed: Duration) -> f64 {
    bytes as f64 / elapsed.as_secs_f64() / f64::from(1 << 30)
}

/// Half the median time of many round trips, in nanoseconds.
fn round_trips(mut once: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..REQUESTS)
        .map(|_| {
            let start = Instant::now();
            once();
            start.elapsed().as_nanos() as f64
        })
        .collect();
    median(&mut times) / 2.0
}

/// Runs both on threads of their own, each on its own processor if there are two.
fn apart<R: Send>(other: impl FnOnce() + Send, own: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stay_on(1);
            other();
        });
        let own = scope.spawn(|| {
            stay_on(0);
            own()
        });
        own.join().unwrap()
    })
}

/// Keeps the calling thread on a processor, if there is such a one.
fn stay_on(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    let _ = sched_setaffinity(None, &set);
}

/// Two threads hand a word to each other.
fn bare_flag() -> f64 {
    let words = [AtomicU64::new(0), AtomicU64::new(0)];
    let wait = |word: &AtomicU64, value| {
        while word.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
    };
    let answer = || {
        for value in 1..=REQUESTS as u64 {
            wait(&words[0], value);
            words[1].store(value, Ordering::Release);
        }
    };
    apart(answer, || {
        let mut value = 0;
        round_trips(|| {
            value += 1;
            words[0].store(value, Ordering::Release);
            wait(&words[1], value);
        })
    })
}

/// Two threads exchange 64 bytes over UDP and poll their sockets without sleeping.
fn polled_udp() -> f64 {
    let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let ends = [bind(), bind()];
    for (end, other) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
        end.connect(other.local_addr().unwrap()).unwrap();
        end.set_nonblocking(true).unwrap();
    }
    let send = |end: &UdpSocket| assert_eq!(end.send(&[1; 64]).unwrap(), 64);
    let receive = |end: &UdpSocket| while end.recv(&mut [0; 64]).is_err() {};
    let answer = || {
        for _ in 0..REQUESTS {
            receive(&ends[1]);
            send(&ends[1]);
        }
    };
    apart(answer, || {
        round_trips(|| {
            send(&ends[0]);
            receive(&ends[0]);
        })
    })
}

fn ping_pong(pair: &Pair) -> f64 {
    let (a, b) = (&pair.a, &pair.b);
    for end in [a, b] {
        for _ in 0..4 {
            end.receive(2, end.sge(64, 64));
        }
    }
    let receive = |end: &End| {
        while end.try_poll().is_none_or(|wc| wc.wr_id != 2) {}
        end.receive(2, end.sge(64, 64));
    };
    let send = |end: &End| end.post(1, SendOp::Send, end.sge(0, 64));
    let answer = || {
        for _ in 0..REQUESTS {
            receive(b);
            send(b);
        }
    };
    let time = apart(answer, || {
        round_trips(|| {
            send(a);
            receive(a);
        })
    });
    // What is left of both.
    for end in [a, b] {
        while end.try_poll().is_some() {}
    }
    time
}

/// One thread plays both ends: the work of a send and its acknowledgement without the way between processors.
fn both_ends(pair: &Pair) -> f64 {
    let mut ends = [&pair.a, &pair.b];
    each(|| {
        let [from, to] = ends;
        to.receive(1, to.sge(64, 64));
        from.post(1, SendOp::Send, from.sge(0, 64));
        taken(to);
        ends = [to, from];
        while from.try_poll().is_some() {}
    })
}

/// One thread plays both ends of a [`ping_pong`]: an acknowledgement goes with the answer.
fn rally(pair: &Pair) -> f64 {
    let mut ends = [&pair.a, &pair.b];
    for end in ends {
        for _ in 0..4 {
            end.receive(2, end.sge(64, 64));
        }
    }
    each(|| {
        let [from, to] = ends;
        from.post(1, SendOp::Send, from.sge(0, 64));
        while to.try_poll().is_none_or(|wc| wc.wr_id != 2) {}
        to.receive(2, to.sge(64, 64));
        ends = [to, from];
    })
}

/// One thread plays both ends. It posts 32 sends, signals only the last one, and then receives all of them.
fn batches(pair: &Pair) -> f64 {
    const BATCH: u64 = 32;
    let (a, b) = (&pair.a, &pair.b);
    let mut out = [WorkCompletion::EMPTY; 64];
    let batch = || {
        for _ in 0..BATCH {
            b.receive(2, b.sge(64, 64));
        }
        for number in 0..BATCH {
            post_unsignaled(a, number == BATCH - 1);
        }
        let (mut taken, mut sent) = (0, 0);
        while taken < BATCH as usize || sent == 0 {
            taken += b.cq.poll(&mut out).unwrap();
            sent += a.cq.poll(&mut out).unwrap();
        }
    };
    each(batch) / BATCH as f64
}

fn post_unsignaled(end: &End, is_signaled: bool) {
    let flags = match is_signaled {
        true => SendFlags::SIGNALED,
        false => SendFlags::empty(),
    };
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        data: SendData::Sges(&[end.sge(0, 64)]),
        flags,
        ud: None,
        srq: None,
    };
    end.qp.post_send(&wr).unwrap();
}

/// Nanoseconds per send to a receiver that keeps up: the median over stretches of 960 sends. Every thirty-second send
/// is signaled.
fn sends(pair: &Pair) -> f64 {
    const BATCH: u64 = 32;
    const STRETCH: u64 = 30 * BATCH;
    let (a, b) = (&pair.a, &pair.b);
    let ready = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let post = |count| {
                for _ in 0..count {
                    let sges = [b.sge(64, 64)];
                    b.qp.post_recv(&RecvWr {
                        wr_id: 2,
                        sges: &sges,
                    })
                    .unwrap();
                }
            };
            post(400);
            ready.store(true, Ordering::Release);
            let (mut taken, mut to_post) = (0, 0);
            let mut out = [WorkCompletion::EMPTY; 64];
            while taken < SENDS {
                let count = b.cq.poll(&mut out).unwrap() as u64;
                taken += count;
                to_post += count;
                if to_post >= 32 {
                    post(to_post);
                    to_post = 0;
                }
            }
        });
        while !ready.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let (mut under_way, mut out) = (0, [WorkCompletion::EMPTY; 16]);
        let (mut times, mut start) = (Vec::new(), Instant::now());
        for number in 0..SENDS {
            let last = number % BATCH == BATCH - 1;
            post_unsignaled(a, last);
            under_way += u64::from(last);
            while under_way >= 4 {
                under_way -= a.cq.poll(&mut out).unwrap() as u64;
            }
            if (number + 1) % STRETCH == 0 {
                times.push(start.elapsed().as_nanos() as f64 / STRETCH as f64);
                start = Instant::now();
            }
        }
        while under_way > 0 {
            under_way -= a.cq.poll(&mut out).unwrap() as u64;
        }
        median(&mut times)
    })
}
