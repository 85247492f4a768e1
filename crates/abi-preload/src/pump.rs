//! Copies data between streams and kernel socket pairs, for processes that cannot use a stream themselves: children
//! after a fork, and programs after an exec. One thread serves all pumps.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use portolan::Stream;
use portolan_threads::lock::Mutex;
use portolan_threads::{ProcessCell, with_signals_blocked};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{SendFlags, Shutdown as Side, send, shutdown};

use crate::background::{make_aside, make_bell};
use crate::report;

/// Buffer size in each direction.
const BUFFER_BYTES: usize = 64 << 10;
/// Maximum of consecutive turns of one pump, for fairness.
const TURNS_MAX: usize = 16;
const BELL: u64 = u64::MAX;
const BATCH: usize = 64;

/// The thread's wakeup descriptor and the pumps that it has not started yet.
struct Service {
    bell: OwnedFd,
    new: Mutex<Vec<Pump>>,
}

static SERVICE: ProcessCell<Option<Service>> = ProcessCell::new();

struct Pump {
    stream: Stream,
    pair: OwnedFd,
    to_kernel: Half,
    to_stream: Half,
}

/// One direction.
struct Half {
    buffer: Box<[u8]>,
    from: usize,
    to: usize,
    /// The source has reached its end.
    is_last: bool,
    /// The end was passed on to the sink.
    is_done: bool,
    /// The sink takes no more, so what comes is dropped.
    is_refused: bool,
}

/// What a pump does after its turn.
#[derive(PartialEq, Eq)]
enum Outcome {
    Waits,
    /// It can continue at once, after the other pumps' turns.
    HasMore,
    Over,
}

/// Number of running pumps, and of those about to start.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Waits until all pumps have ended, for an exiting process.
pub(crate) fn wait_until(deadline: Instant) {
    while RUNNING.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// An exiting process waits until this is dropped.
pub(crate) struct Starting;

impl Starting {
    pub(crate) fn begin() -> Self {
        RUNNING.fetch_add(1, Ordering::AcqRel);
        Self
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// In a forked child: the pumps are the parent's.
pub(crate) fn forget() {
    RUNNING.store(0, Ordering::Release);
}

/// Starts a pump. If the thread cannot be created, the stream ends.
pub(crate) fn start(stream: Stream, pair: OwnedFd) {
    report::count(&report::HANDED_OVER);
    let pump = Pump {
        stream,
        pair,
        to_kernel: Half::new(),
        to_stream: Half::new(),
    };
    if let Some(service) = SERVICE.get_or_make(launch) {
        RUNNING.fetch_add(1, Ordering::AcqRel);
        service.new.lock().push(pump);
        let _ = rustix::io::write(&service.bell, &1u64.to_ne_bytes());
    }
}

fn launch() -> Option<Service> {
    let bell = make_bell().ok()?;
    let own = make_aside(|| fcntl_dupfd_cloexec(&bell, 0)).ok()?;
    let thread = std::thread::Builder::new().name("portolan-handed".into());
    with_signals_blocked(|| thread.spawn(move || run(&own))).ok()?;
    Some(Service {
        bell,
        new: Mutex::default(),
    })
}

fn run(bell: &OwnedFd) {
    let Ok(set) = make_aside(|| epoll::create(epoll::CreateFlags::CLOEXEC)) else {
        return;
    };
    let data = epoll::EventData::new_u64(BELL);
    if epoll::add(&set, bell, data, epoll::EventFlags::IN).is_err() {
        return;
    }
    let mut pumps: HashMap<u64, Pump> = HashMap::new();
    let mut next = 0;
    let mut unfinished: Vec<u64> = Vec::new();
    loop {
        let mut events = Vec::with_capacity(BATCH);
        let room = rustix::buffer::spare_capacity(&mut events);
        let now = Timespec::default();
        let timeout = (!unfinished.is_empty()).then_some(&now);
        if epoll::wait(&set, room, timeout).is_err() {
            continue;
        }
        let mut ready = std::mem::take(&mut unfinished);
        ready.extend(events.iter().map(|event| event.data.u64()));
        if ready.contains(&BELL) {
            let _ = rustix::io::read(bell, &mut [0u8; 8]);
            let new = match SERVICE.get_or_make(launch) {
                Some(service) => std::mem::take(&mut *service.new.lock()),
                None => return,
            };
            for pump in new {
                if pump.enter(&set, next).is_ok() {
                    pumps.insert(next, pump);
                    ready.push(next);
                } else {
                    pump.end();
                    RUNNING.fetch_sub(1, Ordering::AcqRel);
                }
                next += 1;
            }
        }
        ready.sort_unstable();
        ready.dedup();
        for id in ready {
            match pumps.get_mut(&id).map(Pump::turn) {
                None | Some(Outcome::Waits) => {}
                Some(Outcome::HasMore) => unfinished.push(id),
                Some(Outcome::Over) => {
                    if let Some(pump) = pumps.remove(&id) {
                        // The stream lingers until the peer has received the written data.
                        let _ = epoll::delete(&set, &pump.stream);
                        pump.end();
                    }
                    RUNNING.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
    }
}

impl Half {
    fn new() -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            from: 0,
            to: 0,
            is_last: false,
            is_done: false,
            is_refused: false,
        }
    }

    fn is_empty(&self) -> bool {
        self.from == self.to
    }

    fn filled(&mut self, bytes: usize) {
        (self.from, self.to) = (0, bytes);
        self.is_last = bytes == 0;
    }
}

impl Pump {
    fn enter(&self, set: &OwnedFd, id: u64) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(id);
        let both = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(set, &self.pair, data, both)?;
        epoll::add(set, &self.stream, data, epoll::EventFlags::IN)
    }

    /// Ends the pair for the process at its other end. Closing is not enough: a forked child has a copy of this end, too.
    fn end(&self) {
        let _ = shutdown(&self.pair, Side::Both);
    }

    /// Moves data until both directions would block.
    fn turn(&mut self) -> Outcome {
        for _ in 0..TURNS_MAX {
            let moved = match (self.move_to_kernel(), self.move_to_stream()) {
                (Ok(one), Ok(other)) => one || other,
                _ => return Outcome::Over,
            };
            if self.to_stream.is_done && self.is_deserted() {
                return Outcome::Over;
            }
            if self.to_kernel.is_done && self.to_stream.is_done {
                return Outcome::Over;
            }
            if moved {
                continue;
            }
            // A stream that has ended stays readable.
            let wants_data = self.to_kernel.is_empty() && !self.to_kernel.is_last;
            let wants_room = !self.to_stream.is_empty();
            let ready = self.stream.ready_or_watch(wants_data, wants_room);
            if !(ready.readable && wants_data || ready.writable && wants_room) {
                return Outcome::Waits;
            }
        }
        Outcome::HasMore
    }

    /// Whether no process has the pair's other end open.
    fn is_deserted(&self) -> bool {
        let mut fds = [PollFd::new(&self.pair, PollFlags::empty())];
        let now = Timespec::default();
        poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }

    fn move_to_kernel(&mut self) -> Result<bool, ()> {
        let half = &mut self.to_kernel;
        let mut moved = false;
        if half.is_empty() && !half.is_last {
            match self.stream.try_read(&mut half.buffer) {
                Ok(bytes) => {
                    half.filled(bytes);
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Err(()),
            }
        }
        while !half.is_empty() {
            if half.is_refused {
                half.from = half.to;
                break;
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match send(&self.pair, &half.buffer[half.from..half.to], flags) {
                Ok(bytes) => {
                    half.from += bytes;
                    moved = true;
                }
                Err(Errno::AGAIN) => return Ok(moved),
                Err(Errno::INTR) => {}
                // The process has shut down its reading, or closed. What it has written still goes to the peer.
                Err(Errno::PIPE | Errno::CONNRESET) => half.is_refused = true,
                Err(_) => return Err(()),
            }
        }
        if half.is_last && !half.is_done {
            let _ = shutdown(&self.pair, Side::Write);
            half.is_done = true;
        }
        Ok(moved)
    }

    fn move_to_stream(&mut self) -> Result<bool, ()> {
        let half = &mut self.to_stream;
        let mut moved = false;
        if half.is_empty() && !half.is_last {
            match rustix::io::read(self.pair.as_fd(), &mut half.buffer[..]) {
                Ok(bytes) => {
                    half.filled(bytes);
                    moved = true;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                // The other end was closed with unread data.
                Err(_) => half.filled(0),
            }
        }
        while !half.is_empty() {
            match self.stream.try_write(&half.buffer[half.from..half.to]) {
                Ok(bytes) => {
                    half.from += bytes;
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(moved),
                // The peer takes no more. What it has sent before still goes to the process, whose writes fail from now on.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                    let _ = shutdown(&self.pair, Side::Read);
                    half.filled(0);
                }
                Err(_) => return Err(()),
            }
        }
        if half.is_last && !half.is_done {
            let _ = self.stream.shutdown(Shutdown::Write);
            half.is_done = true;
        }
        Ok(moved)
    }
}
