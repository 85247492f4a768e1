//! The same random operations on a `TcpStream` pair and a `Stream` pair give the same bytes, ends, errors and
//! readiness.
//!
//! `PORTOLAN_TEST_OPERATIONS=N` runs at least N operations instead of a few thousand.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portolan::Stream;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestError, TestRunner};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::harness::PATIENCE;
use crate::pair::streams;

/// The operations of both kinds of streams.
pub(crate) trait Socket: Sized {
    fn write(&self, data: &[u8]) -> std::io::Result<usize>;
    fn read(&self, into: &mut [u8]) -> std::io::Result<usize>;
    /// Reads without waiting.
    fn read_now(&self, into: &mut [u8]) -> std::io::Result<usize>;
    fn peek(&self, into: &mut [u8]) -> std::io::Result<usize>;
    fn shutdown(&self, how: Shutdown) -> std::io::Result<()>;
    /// Whether it is readable, writable, and hung up.
    fn ready(&self) -> [bool; 3];
}

/// The readiness of a TCP socket.
pub(crate) fn poll_tcp(stream: &impl std::os::fd::AsFd) -> [bool; 3] {
    let all = PollFlags::IN | PollFlags::OUT | PollFlags::HUP;
    let mut fds = [PollFd::new(stream, all)];
    poll(&mut fds, Some(&Timespec::default())).unwrap();
    [PollFlags::IN, PollFlags::OUT, PollFlags::HUP].map(|flag| fds[0].revents().contains(flag))
}

/// The readiness of a stream.
pub(crate) fn look_at(stream: &Stream) -> [bool; 3] {
    let ready = stream.ready();
    [ready.readable, ready.writable, ready.hung_up]
}

macro_rules! socket {
    ($type:ty, $ready:path) => {
        impl Socket for $type {
            fn write(&self, data: &[u8]) -> std::io::Result<usize> {
                (&*self).write_all(data).map(|()| data.len())
            }
            fn read(&self, into: &mut [u8]) -> std::io::Result<usize> {
                let mut stream = self;
                Read::read(&mut stream, into)
            }
            fn read_now(&self, into: &mut [u8]) -> std::io::Result<usize> {
                self.set_nonblocking(true)?;
                let read = Socket::read(self, into);
                self.set_nonblocking(false)?;
                read
            }
            fn peek(&self, into: &mut [u8]) -> std::io::Result<usize> {
                <$type>::peek(self, into)
            }
            fn shutdown(&self, how: Shutdown) -> std::io::Result<()> {
                <$type>::shutdown(self, how)
            }
            fn ready(&self) -> [bool; 3] {
                $ready(self)
            }
        }
    };
}

socket!(TcpStream, poll_tcp);
socket!(Stream, look_at);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Write {
        side: usize,
        length: usize,
    },
    /// Reads so many bytes, or to the end.
    Read {
        side: usize,
        length: usize,
    },
    Peek {
        side: usize,
    },
    /// A read that does not wait, when nothing can have been sent.
    ReadNothing {
        side: usize,
    },
    ShutdownWrite {
        side: usize,
    },
    ShutdownRead {
        side: usize,
    },
    /// Queries the readiness.
    Ready {
        side: usize,
    },
}

fn operation() -> impl Strategy<Value = Operation> {
    let side = 0..2usize;
    let length = prop_oneof![1..100usize, 1..9000usize];
    prop_oneof![
        80 => (side.clone(), length.clone()).prop_map(|(side, length)| Operation::Write { side, length }),
        80 => (side.clone(), length).prop_map(|(side, length)| Operation::Read { side, length }),
        20 => side.clone().prop_map(|side| Operation::Peek { side }),
        20 => side.clone().prop_map(|side| Operation::Ready { side }),
        20 => side.clone().prop_map(|side| Operation::ReadNothing { side }),
        1 => side.clone().prop_map(|side| Operation::ShutdownWrite { side }),
        1 => side.prop_map(|side| Operation::ShutdownRead { side }),
    ]
}

/// Maximum of unread bytes: they fit into the buffers of any socket.
const UNDER_WAY_MAX: usize = 60_000;
/// Maximum of unread writes: fewer than a stream's credits.
const WRITES_UNDER_WAY_MAX: usize = 190;

/// Time limit for a change at the other end to be seen, on a busy machine.
const NEWS_MAX: Duration = Duration::from_secs(10);

/// What a run of operations gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Readable, writable, hung up.
    Ready([bool; 3]),
    Bytes(Vec<u8>),
    Written,
    Done,
    Error(ErrorKind),
}

fn outcome<T>(result: std::io::Result<T>, ok: impl FnOnce(T) -> Outcome) -> Outcome {
    result.map_or_else(|error| Outcome::Error(error.kind()), ok)
}

/// Executes operations on both ends. A model of the unread data decides which operations would depend on timing. They
/// are skipped, or wait. The model is the same for both kinds of streams.
pub(crate) fn run<S: Socket>(sides: [S; 2], operations: &[Operation]) -> Vec<Outcome> {
    let mut sent = 0u32;
    let mut under_way = [0usize; 2];
    let mut writes_under_way = [0usize; 2];
    let mut write_closed = [false; 2];
    let mut read_closed = [false; 2];
    let mut outcomes = Vec::new();
    for operation in operations {
        match *operation {
            // A side that has shut both directions down tells an rsocket that it wants nothing more; TCP does not.
            Operation::Write { side, .. } if read_closed[1 - side] => {}
            Operation::Write { side, length } => {
                let length = length.min(UNDER_WAY_MAX - under_way[1 - side]);
                if length == 0 || writes_under_way[1 - side] == WRITES_UNDER_WAY_MAX {
                    continue;
                }
                let bytes: Vec<u8> = (0..length)
                    .map(|at| (sent as usize + at * 7) as u8)
                    .collect();
                sent = sent.wrapping_add(13);
                if !write_closed[side] {
                    under_way[1 - side] += length;
                    writes_under_way[1 - side] += 1;
                }
                outcomes.push(outcome(sides[side].write(&bytes), |_| Outcome::Written));
            }
            Operation::Read { side, length } => {
                let ends = write_closed[1 - side] || read_closed[side];
                let wanted = if ends {
                    length
                } else {
                    length.min(under_way[side])
                };
                let mut found = vec![0; wanted];
                let mut filled = 0;
                while filled < wanted {
                    match sides[side].read(&mut found[filled..]) {
                        Ok(0) => break,
                        Ok(length) => filled += length,
                        Err(error) => {
                            outcomes.push(Outcome::Error(error.kind()));
                            break;
                        }
                    }
                    if read_closed[side] && filled == under_way[side] {
                        break;
                    }
                }
                found.truncate(filled);
                under_way[side] -= filled;
                if under_way[side] == 0 {
                    writes_under_way[side] = 0;
                }
                outcomes.push(Outcome::Bytes(found));
            }
            Operation::Peek { side } if under_way[side] > 0 || write_closed[1 - side] => {
                let mut found = [0; 1];
                let peeked = sides[side].peek(&mut found);
                outcomes.push(outcome(peeked, |length| {
                    Outcome::Bytes(found[..length].to_vec())
                }));
            }
            Operation::ReadNothing { side } if under_way[side] == 0 && !write_closed[1 - side] => {
                let mut found = [0; 8];
                let read = sides[side].read_now(&mut found);
                outcomes.push(outcome(read, |length| {
                    Outcome::Bytes(found[..length].to_vec())
                }));
            }
            Operation::Peek { .. } | Operation::ReadNothing { .. } => {}
            // A side that has shut down both directions hangs up at once. With TCP, the other side does not.
            Operation::Ready { .. } if read_closed != [false; 2] && write_closed != [false; 2] => {}
            Operation::Ready { side } => {
                let ends = write_closed[1 - side] || read_closed[side];
                let is_readable = under_way[side] > 0 || ends;
                // An rsocket hangs up only after all data is read.
                let hangs_up = write_closed == [true; 2] && under_way[side] == 0;
                if write_closed == [true; 2] && !hangs_up {
                    continue;
                }
                let expected = [is_readable, true, hangs_up];
                outcomes.push(Outcome::Ready(await_ready(&sides[side], expected)));
            }
            Operation::ShutdownWrite { side } if !write_closed[side] => {
                write_closed[side] = true;
                outcomes.push(outcome(sides[side].shutdown(Shutdown::Write), |()| {
                    Outcome::Done
                }));
            }
            Operation::ShutdownWrite { .. } => {}
            // What is under way may come before or after.
            Operation::ShutdownRead { side } if under_way[side] == 0 && !read_closed[side] => {
                read_closed[side] = true;
                if !write_closed[side] && !write_closed[1 - side] {
                    outcomes.push(outcome(sides[side].shutdown(Shutdown::Read), |()| {
                        Outcome::Done
                    }));
                } else {
                    read_closed[side] = false;
                }
            }
            Operation::ShutdownRead { .. } => {}
        }
    }
    outcomes
}

/// Waits for the expected readiness. Returns the readiness found, at the latest after [`NEWS_MAX`].
fn await_ready(socket: &impl Socket, expected: [bool; 3]) -> [bool; 3] {
    let started = Instant::now();
    loop {
        let found = socket.ready();
        if found == expected || started.elapsed() > NEWS_MAX {
            return found;
        }
        thread::sleep(Duration::from_micros(100));
    }
}

fn tcp_streams() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let active = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (passive, _) = listener.accept().unwrap();
    for stream in [&active, &passive] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    [active, passive]
}

/// Runs one case, and shrinks it if it fails.
fn run_once<S: Strategy>(
    runner: &mut TestRunner,
    strategy: &S,
    test: impl Fn(S::Value) -> TestCaseResult,
) -> Result<(), TestError<S::Value>> {
    let tree = strategy.new_tree(runner).map_err(TestError::Abort)?;
    runner.run_one(tree, test).map(drop)
}

/// Runs at least `usual` random operations, or as many as the environment requests, and compares the outcomes.
pub(crate) fn compare(usual: usize, run: impl Fn(&[Operation]) -> [Vec<Outcome>; 2]) {
    let wanted = std::env::var("PORTOLAN_TEST_OPERATIONS");
    let wanted = wanted.map_or(usual, |number| number.parse().unwrap());
    let done = AtomicUsize::new(0);
    let config = Config {
        failure_persistence: None,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let mut runner = TestRunner::new(config);
    let operations = proptest::collection::vec(operation(), 1..400);
    while done.load(Ordering::Relaxed) < wanted {
        let result = run_once(&mut runner, &operations, |operations| {
            let [found, expected] = run(&operations);
            done.fetch_add(expected.len(), Ordering::Relaxed);
            prop_assert_eq!(found, expected);
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{error}"));
    }
    println!("{} operations", done.into_inner());
}

#[test]
fn tcp_streams_and_streams_do_the_same() {
    compare(20_000, |operations| {
        let (active, passive) = streams();
        [
            run([active, passive], operations),
            run(tcp_streams(), operations),
        ]
    });
}
