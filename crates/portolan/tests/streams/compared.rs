//! The same random operations on a `TcpStream` pair and a `Stream` pair give the same bytes, ends and errors.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Instant;

use portolan::Stream;
use proptest::prelude::*;
use proptest::test_runner::Config;

use crate::harness::PATIENCE;
use crate::pair::streams;

/// What both kinds of streams do.
trait Socket: Sized {
    fn write(&self, data: &[u8]) -> std::io::Result<usize>;
    fn read(&self, into: &mut [u8]) -> std::io::Result<usize>;
    fn peek(&self, into: &mut [u8]) -> std::io::Result<usize>;
    fn shutdown(&self, how: Shutdown) -> std::io::Result<()>;
    fn set_nonblocking(&self, nonblocking: bool);
}

macro_rules! socket {
    ($type:ty) => {
        impl Socket for $type {
            fn write(&self, data: &[u8]) -> std::io::Result<usize> {
                (&*self).write_all(data).map(|()| data.len())
            }
            fn read(&self, into: &mut [u8]) -> std::io::Result<usize> {
                let mut stream = self;
                Read::read(&mut stream, into)
            }
            fn peek(&self, into: &mut [u8]) -> std::io::Result<usize> {
                <$type>::peek(self, into)
            }
            fn shutdown(&self, how: Shutdown) -> std::io::Result<()> {
                <$type>::shutdown(self, how)
            }
            fn set_nonblocking(&self, nonblocking: bool) {
                <$type>::set_nonblocking(self, nonblocking).unwrap();
            }
        }
    };
}

socket!(TcpStream);
socket!(Stream);

#[derive(Clone, Copy, Debug)]
enum Operation {
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
}

fn operation() -> impl Strategy<Value = Operation> {
    let side = 0..2usize;
    let length = prop_oneof![1..100usize, 1..9000usize];
    prop_oneof![
        8 => (side.clone(), length.clone()).prop_map(|(side, length)| Operation::Write { side, length }),
        8 => (side.clone(), length).prop_map(|(side, length)| Operation::Read { side, length }),
        2 => side.clone().prop_map(|side| Operation::Peek { side }),
        2 => side.clone().prop_map(|side| Operation::ReadNothing { side }),
        1 => side.clone().prop_map(|side| Operation::ShutdownWrite { side }),
        1 => side.prop_map(|side| Operation::ShutdownRead { side }),
    ]
}

/// Bytes that may be under way at once: any socket's buffers hold them.
const UNDER_WAY_MAX: usize = 60_000;

/// What a run of operations gave.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Bytes(Vec<u8>),
    Written,
    Done,
    Error(ErrorKind),
}

fn outcome<T>(result: std::io::Result<T>, ok: impl FnOnce(T) -> Outcome) -> Outcome {
    result.map_or_else(|error| Outcome::Error(error.kind()), ok)
}

/// Carries operations out on both ends. What would depend on timing is left out or waited for: the model of what is under way
/// decides that, which is the same for both kinds.
fn run<S: Socket>(sides: [S; 2], operations: &[Operation]) -> Vec<Outcome> {
    let mut sent = 0u32;
    let mut under_way = [0usize; 2];
    let mut write_closed = [false; 2];
    let mut read_closed = [false; 2];
    let mut outcomes = Vec::new();
    for operation in operations {
        match *operation {
            // A side that has shut both directions down tells an rsocket that it wants nothing more; TCP does not.
            Operation::Write { side, .. } if read_closed[1 - side] => {}
            Operation::Write { side, length } => {
                let length = length.min(UNDER_WAY_MAX - under_way[1 - side]);
                if length == 0 {
                    continue;
                }
                let bytes: Vec<u8> = (0..length)
                    .map(|at| (sent as usize + at * 7) as u8)
                    .collect();
                sent = sent.wrapping_add(13);
                if !write_closed[side] {
                    under_way[1 - side] += length;
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
                sides[side].set_nonblocking(true);
                let mut found = [0; 8];
                let read = sides[side].read(&mut found);
                outcomes.push(outcome(read, |length| {
                    Outcome::Bytes(found[..length].to_vec())
                }));
                sides[side].set_nonblocking(false);
            }
            Operation::Peek { .. } | Operation::ReadNothing { .. } => {}
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

fn tcp_streams() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let active = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (passive, _) = listener.accept().unwrap();
    for stream in [&active, &passive] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    [active, passive]
}

proptest! {
    #![proptest_config(Config { cases: 120, failure_persistence: None, ..Config::default() })]

    #[test]
    fn tcp_streams_and_streams_do_the_same(operations in proptest::collection::vec(operation(), 1..400)) {
        let started = Instant::now();
        let expected = run(tcp_streams(), &operations);
        let (active, passive) = streams();
        let found = run([active, passive], &operations);
        prop_assert_eq!(found, expected, "after {:?}", started.elapsed());
    }
}
