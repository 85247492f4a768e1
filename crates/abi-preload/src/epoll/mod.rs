//! epoll(7) sets that contain streams.
//!
//! The program's set is still the kernel's and contains all kernel descriptors. The streams' descriptors are in a
//! second set, which is itself in the first set, marked by its event data. So a set without streams costs next to nothing, and
//! the kernel reports other descriptors as usual: level-triggered, edge-triggered or one-shot.
//!
//! A wait checks only hot streams: those that were ready at the last wait, and those that their device or the second
//! set reports. A device that calls needs no descriptors of streams: the set lists what it reports, and rings one bell
//! if a thread sleeps. A waiting thread drives the device itself for a short time before it sleeps. If no other set or stream
//! waits for the device, the first set contains what other processes ring, so that no other thread has to wake this one.
//!
//! After a fork two processes have the program's set. Then it contains nothing of this library: see [`shared`].

#![allow(unsafe_code, reason = "events of the program, and calls of libc")]

mod driving;
mod instance;
mod placing;
mod shared;
pub(crate) mod waiting;

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP,
    EPOLLONESHOT, c_short, epoll_event,
};
use portolan::stream::DeviceWait;
use portolan_abi_layout::guard::Result;
use portolan_threads::lock::Mutex;
use portolan_threads::spin::Spin;
use rustix::event::epoll;
use rustix::io::Errno;

#[cfg(not(test))]
pub(crate) use self::instance::{Early, note_member};
pub(crate) use self::instance::{
    INSTANCES, before_fork, closed, created, duplicated, known, note_poll,
};
use self::placing::{borrowed, duplicate};
use self::shared::Marks;
use crate::background::{make_aside, make_bell};
use crate::listen::is_readable;
use crate::look::{Edge, Look, Next, look};
use crate::socket::{Kind, Socket, Watch};
use crate::watchers::Watcher;

/// Event data of the second set in the first. An unlikely value, because it must differ from the program's own data.
const MARK: u64 = 0xd7a1_5bc0_9e3f_7a6d;
/// Event data of the bell in the second set.
const BELL: u64 = u64::MAX;
/// Event data of what other processes ring, in the first set, if the set waits for the device. As unlikely.
const DEVICE: u64 = 0x3b92_e04c_71a5_d8f6;
/// Flags that epoll_ctl(2) accepts in every combination, for every socket.
const ORDINARY: u32 = (libc::EPOLLIN
    | libc::EPOLLOUT
    | libc::EPOLLRDHUP
    | libc::EPOLLRDNORM
    | libc::EPOLLWRNORM
    | libc::EPOLLPRI
    | EPOLLERR
    | EPOLLHUP
    | EPOLLET
    | EPOLLONESHOT) as u32;
/// What concerns the direction of reads.
const READS: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP) as u32;
/// No stream of the set can drive the device: only streams of the kernel's devices are in it.
const NO_DRIVER: c_int = -2;
/// Maximum of events taken from the second set at a time.
const BATCH: usize = 64;
/// How often a poll looks at a set that changes.
const LOOKS_MAX: usize = 4;

pub(crate) struct Set {
    /// The program's set, in a descriptor of this library: the program may close the number that it added streams with, and
    /// use another one.
    kernels: OwnedFd,
    /// The second set.
    streams: OwnedFd,
    /// Wakes waiters when the interests change.
    bell: OwnedFd,
    /// Whether the bell rings.
    is_ringing: AtomicBool,
    sleepers: AtomicU32,
    /// Threads that began to wait before the set had streams. The bell rings until they are awake.
    early: Arc<AtomicU32>,
    /// Another process may have the program's set.
    is_shared: Arc<AtomicBool>,
    /// Threads that sleep in the first set alone.
    in_first: AtomicU32,
    marks: Mutex<Marks>,
    /// The kernel's waits on the set's own descriptor are not this library's: it is in another set, or was polled.
    has_outsiders: AtomicBool,
    interests: Mutex<Interests>,
    /// Numbers that a device reports. Locked last of all locks.
    reports: Mutex<Vec<c_int>>,
    /// Whether a waiter should look again: for reports, or because the interests have changed.
    must_look: AtomicBool,
    /// The last wait had room for streams only. The next one asks the kernel first.
    is_kernels_turn: AtomicBool,
    /// A number whose stream drives the device, or [`NO_DRIVER`]. Changed under the interests' lock.
    driver: AtomicI32,
    /// The set's waiters wait for the device, too, so that no other thread has to wake them.
    device: OnceLock<Box<dyn DeviceWait>>,
    spin: Spin,
    this: Weak<Set>,
}

#[derive(Default)]
struct Interests {
    by_number: HashMap<c_int, Interest>,
    /// Numbers to check at the next wait.
    hot: VecDeque<c_int>,
    /// The last one given to an interest.
    versions: u64,
}

struct Interest {
    socket: Weak<Socket>,
    events: u32,
    data: u64,
    placed: Watch,
    /// Of the own descriptor, and watched in its place: the set has that by another number of the socket.
    duplicate: Option<OwnedFd>,
    is_hot: bool,
    /// State at the last report.
    last: Option<Edge>,
    /// A one-shot interest that was reported and not rearmed.
    is_disabled: bool,
    /// No other interest of the set had it, nor this one before it was modified.
    version: u64,
}

impl Interest {
    fn new(socket: &Arc<Socket>, event: epoll_event) -> Self {
        Self {
            socket: Arc::downgrade(socket),
            events: event.events,
            data: event.u64,
            placed: Watch::default(),
            duplicate: None,
            is_hot: true,
            last: None,
            is_disabled: false,
            version: 0,
        }
    }

    fn is_one_shot(&self) -> bool {
        self.events & EPOLLONESHOT as u32 != 0
    }
}

/// A number to look at.
struct Hot {
    number: c_int,
    /// `None` if it is gone or its interest is disabled.
    socket: Option<Arc<Socket>>,
    wanted: u32,
    version: u64,
    /// Whether the set reports the kernel's events of the number.
    has_kernels: bool,
}

impl Hot {
    fn look(&self, socket: &Socket, always: bool) -> Look {
        let mut seen = look(
            socket,
            self.number,
            self.wanted as c_short,
            Next::Call { always },
        );
        if self.has_kernels && is_readable(self.number) {
            seen.events |= self.wanted as c_short & (libc::POLLIN | libc::POLLRDNORM);
        }
        seen
    }
}

impl Interests {
    fn next_version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    fn heat(&mut self, number: c_int) {
        if let Some(interest) = self.by_number.get_mut(&number)
            && !interest.is_hot
        {
            interest.is_hot = true;
            self.hot.push_back(number);
        }
    }
}

/// `epoll_ctl` for a socket in the table.
///
/// # Errors
/// As for epoll_ctl(2).
pub(crate) fn control(
    set: c_int,
    operation: c_int,
    number: c_int,
    socket: &Arc<Socket>,
    event: Option<epoll_event>,
) -> Result<()> {
    let set = match operation {
        EPOLL_CTL_ADD => instance::entered(set)?.set_or_make(set)?,
        _ => known(set).ok_or(Errno::NOENT)?,
    };
    match operation {
        EPOLL_CTL_ADD => set.add(number, socket, event.ok_or(Errno::FAULT)?),
        EPOLL_CTL_MOD => set.modify(number, event.ok_or(Errno::FAULT)?),
        EPOLL_CTL_DEL => set.remove(number, true),
        _ => Err(Errno::INVAL),
    }
}

impl Set {
    fn make(number: c_int, early: Arc<AtomicU32>, is_shared: Arc<AtomicBool>) -> Result<Arc<Self>> {
        let kernels = duplicate(number)?;
        let streams = make_aside(|| epoll::create(epoll::CreateFlags::CLOEXEC))?;
        let bell = make_bell()?;
        let data = epoll::EventData::new_u64(BELL);
        epoll::add(&streams, &bell, data, epoll::EventFlags::IN)?;
        // Threads may already wait for the program's set.
        rustix::io::write(&bell, &1u64.to_ne_bytes())?;
        Ok(Arc::new_cyclic(|this| Self {
            kernels,
            streams,
            bell,
            is_ringing: AtomicBool::new(true),
            sleepers: AtomicU32::new(0),
            early,
            is_shared,
            in_first: AtomicU32::new(0),
            marks: Mutex::default(),
            has_outsiders: AtomicBool::new(false),
            interests: Mutex::default(),
            reports: Mutex::default(),
            must_look: AtomicBool::new(false),
            is_kernels_turn: AtomicBool::new(false),
            driver: AtomicI32::new(-1),
            device: OnceLock::new(),
            spin: Spin::default(),
            this: this.clone(),
        }))
    }

    /// The kernel's waits on the set are not all this library's.
    fn note_outsiders(&self) {
        self.has_outsiders.store(true, Ordering::SeqCst);
        // Without memory they are not woken.
        let _ = self.settle();
        self.wake();
    }

    fn add(&self, number: c_int, socket: &Arc<Socket>, event: epoll_event) -> Result<()> {
        let interest = Interest::new(socket, event);
        if !socket.watch_in_set(interest.is_one_shot()).kernel && event.events & !ORDINARY != 0 {
            // A trial: the kernel reports wrong combinations of the other flags.
            self.kernel(EPOLL_CTL_ADD, number, &event)?;
            self.kernel(EPOLL_CTL_DEL, number, &event)?;
        }
        self.enter(number, socket, interest)
    }

    /// Adds an interest, unless the number has one.
    fn enter(&self, number: c_int, socket: &Arc<Socket>, mut interest: Interest) -> Result<()> {
        let mut interests = self.interests.lock();
        if interests.by_number.contains_key(&number) {
            return Err(Errno::EXIST);
        }
        interest.version = interests.next_version();
        let watch = socket.watch_in_set(interest.is_one_shot());
        self.place(number, &mut interest, watch)?;
        // Before another thread looks at it, which asks for the next report.
        let this: Weak<dyn Watcher> = self.this.clone();
        socket.add_watcher(number, this);
        interests.by_number.insert(number, interest);
        interests.hot.push_back(number);
        self.driver.store(number, Ordering::Relaxed);
        drop(interests);
        self.wake();
        Ok(())
    }

    fn modify(&self, number: c_int, event: epoll_event) -> Result<()> {
        let mut guard = self.interests.lock();
        let interests = &mut *guard;
        let version = interests.next_version();
        let interest = interests.by_number.get_mut(&number).ok_or(Errno::NOENT)?;
        if (interest.events | event.events) & EPOLLEXCLUSIVE as u32 != 0 {
            return Err(Errno::INVAL);
        }
        if interest.placed.kernel {
            self.kernel(EPOLL_CTL_MOD, number, &event)?;
        }
        (interest.events, interest.data) = (event.events, event.u64);
        if let Some(socket) = interest.socket.upgrade() {
            let watch = socket.watch_in_set(interest.is_one_shot());
            self.place(number, interest, watch)?;
        }
        (interest.last, interest.is_disabled) = (None, false);
        interest.version = version;
        if !interest.is_hot {
            interest.is_hot = true;
            interests.hot.push_back(number);
        }
        drop(guard);
        self.wake();
        Ok(())
    }

    fn remove(&self, number: c_int, tells_socket: bool) -> Result<()> {
        let mut interests = self.interests.lock();
        let mut interest = interests.by_number.remove(&number).ok_or(Errno::NOENT)?;
        interests.hot.retain(|hot| *hot != number);
        if !tells_socket && self.is_shared() {
            // The kernel goes on to report what another process still has open.
            interest.placed.kernel = false;
        }
        // A closed descriptor has already left its set.
        let _ = self.place(number, &mut interest, Watch::default());
        // Before another thread adds it again.
        if tells_socket && let Some(socket) = interest.socket.upgrade() {
            let this: Weak<dyn Watcher> = self.this.clone();
            socket.remove_watcher(number, &this);
            drop(interests);
        }
        Ok(())
    }

    /// Makes a waiter look again. One that is on its way to sleep sees the mark.
    fn wake(&self) {
        self.must_look.store(true, Ordering::SeqCst);
        if self.is_awaited() && !self.is_ringing.swap(true, Ordering::AcqRel) {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Whether a thread sleeps in the kernel for the set, as far as is known.
    fn is_awaited(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) > 0
            || self.early.load(Ordering::SeqCst) > 0
            || self.has_outsiders.load(Ordering::Relaxed)
    }

    /// At the end of a wait: streams that may still be ready are for the next waiter, as in the kernel. It may be on its way to
    /// sleep.
    fn pass_on(&self) {
        if self.must_look.load(Ordering::SeqCst) || self.may_be_ready() {
            self.wake();
        }
    }

    /// Whether a stream is to be looked at. A connecting one is looked at in each wait, ready or not.
    fn may_be_ready(&self) -> bool {
        let interests = self.interests.lock();
        let mut hot = interests.hot.iter();
        hot.any(|number| {
            let interest = interests.by_number.get(number);
            let socket = interest.and_then(|interest| interest.socket.upgrade());
            socket.is_some_and(|socket| socket.kind() != Kind::Connecting)
        })
    }

    fn heat(&self, number: c_int) {
        self.interests.lock().heat(number);
    }

    /// Checks each hot socket once and reports those that are ready.
    fn collect(&self, events: &mut [epoll_event]) -> usize {
        let mut found = 0;
        let mut left = self.interests.lock().hot.len();
        while left > 0 && found < events.len() {
            left -= 1;
            let Some(mut hot) = self.next_hot() else {
                break;
            };
            let (number, wanted, version) = (hot.number, hot.wanted, hot.version);
            let Some(socket) = hot.socket.take() else {
                continue;
            };
            // The stream is ready while it has data, but this interest waits for its end.
            let ends_only = wanted & READS == libc::EPOLLRDHUP as u32;
            let always = wanted & EPOLLET as u32 != 0 || ends_only;
            let seen = hot.look(&socket, always);
            let mut guard = self.interests.lock();
            let interests = &mut *guard;
            // Another one is hot, and what was seen may be of another socket.
            let interest = interests.by_number.get_mut(&number);
            let Some(interest) = interest.filter(|interest| interest.version == version) else {
                continue;
            };
            let connects = socket.kind() == Kind::Connecting;
            let last = interest.last.replace(seen.edge);
            // A one-shot event is the first one.
            let is_edge = interest.events & EPOLLET as u32 != 0 && !interest.is_one_shot();
            let always = (EPOLLERR | EPOLLHUP) as u32;
            let ready = u32::from(seen.events.cast_unsigned()) & (interest.events | always);
            let news = match is_edge {
                true => u32::from(seen.edge.news(last, ready as c_short).cast_unsigned()),
                false => ready,
            };
            let reports = news != 0 && !interest.is_disabled;
            if reports {
                events[found] = epoll_event {
                    events: news,
                    u64: interest.data,
                };
                found += 1;
                interest.is_disabled = interest.is_one_shot();
            }
            if (reports && !is_edge || connects) && !interest.is_hot {
                interest.is_hot = true;
                interests.hot.push_back(number);
            }
        }
        found
    }

    fn next_hot(&self) -> Option<Hot> {
        let mut guard = self.interests.lock();
        let interests = &mut *guard;
        let number = interests.hot.pop_front()?;
        let mut hot = Hot {
            number,
            socket: None,
            wanted: 0,
            version: 0,
            has_kernels: false,
        };
        if let Some(interest) = interests.by_number.get_mut(&number) {
            interest.is_hot = false;
            if !interest.is_disabled {
                hot.socket = interest.socket.upgrade();
            }
            (hot.wanted, hot.version) = (interest.events, interest.version);
            hot.has_kernels = interest.placed.number;
        }
        Some(hot)
    }

    /// Marks the sockets that the second set reports as hot.
    fn drain(&self) {
        let mut events = Vec::with_capacity(BATCH);
        let now = rustix::event::Timespec::default();
        let room = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&self.streams, room, Some(&now)).is_err() {
            return;
        }
        for event in events {
            match event.data.u64() {
                BELL if self.early.load(Ordering::SeqCst) > 0 => {}
                BELL => {
                    let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
                    self.is_ringing.store(false, Ordering::Release);
                }
                // The next collection drives it.
                DEVICE => {}
                number => self.heat(number as c_int),
            }
        }
    }

    /// Whether a wait would report a stream. Consumes no event.
    pub(crate) fn has_ready(&self) -> bool {
        // The caller waits in the kernel.
        if !self.has_outsiders.swap(true, Ordering::SeqCst) {
            let _ = self.settle();
        }
        for _ in 0..LOOKS_MAX {
            if self.is_any_ready() {
                // What was drained is still for others that wait in the kernel.
                self.wake();
                return true;
            }
            // The look may have rung the bell: a child's first one opens a listener. The kernel would report that.
            if !self.must_look.load(Ordering::SeqCst) {
                break;
            }
        }
        false
    }

    fn is_any_ready(&self) -> bool {
        let driver = self.driver();
        if let Some(stream) = driver.as_ref().and_then(|driver| driver.stream()) {
            self.drive(stream);
            self.stop_driving(stream);
        }
        self.drain();
        self.take_reports();
        let hot: Vec<c_int> = self.interests.lock().hot.iter().copied().collect();
        hot.into_iter().any(|number| {
            let interests = self.interests.lock();
            let Some(interest) = interests.by_number.get(&number) else {
                return false;
            };
            let socket = interest.socket.upgrade();
            let (last, is_disabled) = (interest.last, interest.is_disabled);
            let is_edge = interest.events & EPOLLET as u32 != 0 && !interest.is_one_shot();
            let hot = Hot {
                number,
                socket: None,
                wanted: interest.events,
                version: interest.version,
                has_kernels: interest.placed.number,
            };
            drop(interests);
            let Some(socket) = socket.filter(|_| !is_disabled) else {
                return false;
            };
            let seen = hot.look(&socket, true);
            match is_edge {
                true => seen.edge.news(last, seen.events) != 0,
                false => seen.events != 0,
            }
        })
    }
}

impl Watcher for Set {
    fn changed(&self, number: c_int) {
        let mut guard = self.interests.lock();
        let interests = &mut *guard;
        let Some(interest) = interests.by_number.get_mut(&number) else {
            return;
        };
        let Some(socket) = interest.socket.upgrade() else {
            return;
        };
        let watch = socket.watch_in_set(interest.is_one_shot());
        if interest.is_disabled && watch.kernel {
            // The kernel did not report this one-shot event itself, so it must be told to report nothing.
            interest.events &= EPOLLONESHOT as u32;
        }
        let _ = self.place(number, interest, watch);
        self.driver.store(number, Ordering::Relaxed);
        if socket.kind() == Kind::Plain {
            interests.by_number.remove(&number);
        } else if !interest.is_hot {
            interest.is_hot = true;
            interests.hot.push_back(number);
        }
        drop(guard);
        self.wake();
    }

    fn touched(&self, number: c_int) {
        self.heat(number);
        self.wake();
    }

    fn reported(&self, number: c_int) {
        let mut reports = self.reports.lock();
        let room = reports.capacity();
        if reports.len() == room {
            // If no thread waits for the set, the same numbers come again and again.
            reports.sort_unstable();
            reports.dedup();
            if reports.len() > room / 2 {
                reports.reserve(room);
            }
        }
        reports.push(number);
        drop(reports);
        self.wake();
    }

    fn closed(&self, number: c_int) {
        let _ = self.remove(number, false);
    }
}

/// The second set's descriptor.
impl AsRawFd for Set {
    fn as_raw_fd(&self) -> RawFd {
        self.streams.as_raw_fd()
    }
}
