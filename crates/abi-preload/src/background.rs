//! One thread per process does what the kernel does for TCP while the program is busy elsewhere: it accepts the
//! connections of listeners, and advances the connects that the program does not wait for.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portolan_port_sharing::room::{aside, with_room};
use portolan_threads::fork::ForkGuard;
use portolan_threads::lock::Mutex;
use portolan_threads::{ProcessCell, with_signals_blocked};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::{Errno, Result};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::watchers::Watcher;

const BATCH: usize = 64;
/// How long a task that is put off waits.
pub(crate) const DELAY: Duration = Duration::from_millis(10);
/// The places of the timer and of what wakes the thread.
const TIMER: u64 = u64::MAX;
const WAKER: u64 = u64::MAX - 1;

/// What the thread works on.
pub(crate) trait Task: Send + Sync {
    /// The descriptor that was watched at this place is readable, the time has passed, or the place was woken. Neither
    /// calls again by itself.
    fn ready(&self, place: u64);
}

/// A place in the thread's work. Leaves it on drop.
pub(crate) struct Place {
    number: u64,
    service: &'static Service,
    owner: ForkGuard,
}

struct Service {
    set: OwnedFd,
    /// Runs while places are put off.
    timer: OwnedFd,
    /// Readable while places are woken.
    waker: OwnedFd,
    is_running: AtomicBool,
    tasks: Mutex<HashMap<u64, Weak<dyn Task>>>,
    /// Places that are put off, the next one first.
    put_off: Mutex<VecDeque<(Instant, u64)>>,
    /// Places to call. Locked last of all locks.
    woken: Mutex<Vec<u64>>,
    /// Locked while the thread has a task.
    calling: Mutex<()>,
}

impl Place {
    /// A place of this task.
    ///
    /// # Errors
    /// The process cannot create another descriptor or thread.
    pub(crate) fn new(task: Weak<dyn Task>) -> Result<Self> {
        // Ascends across forks, so that a place of the parent is never one of the child's.
        static LAST: AtomicU64 = AtomicU64::new(0);
        let service = service()?;
        service.start()?;
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        service.tasks.lock().insert(number, task);
        Ok(Self {
            number,
            service,
            owner: ForkGuard::new(),
        })
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Calls the task once when the descriptor is readable.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub(crate) fn watch(&self, fd: impl AsFd) -> Result<()> {
        let data = epoll::EventData::new_u64(self.number);
        match epoll::add(&self.service.set, &fd, data, once()) {
            Err(Errno::EXIST) => epoll::modify(&self.service.set, &fd, data, once()),
            added => added,
        }
    }

    /// Calls the task once after [`DELAY`].
    pub(crate) fn put_off(&self) {
        let mut put_off = self.service.put_off.lock();
        put_off.push_back((Instant::now() + DELAY, self.number));
        if put_off.len() == 1 {
            self.service.run_timer(DELAY);
        }
    }

    /// Calls the task once, soon. Does not wait.
    pub(crate) fn wake(&self) {
        let mut woken = self.service.woken.lock();
        woken.push(self.number);
        if woken.len() == 1 {
            let _ = rustix::io::write(&self.service.waker, &1u64.to_ne_bytes());
        }
    }
}

/// A place is woken by the device of a stream.
impl Watcher for Place {
    fn changed(&self, _: c_int) {}

    fn touched(&self, _: c_int) {}

    fn reported(&self, _: c_int) {
        self.wake();
    }

    fn closed(&self, _: c_int) {}
}

impl Drop for Place {
    fn drop(&mut self) {
        // The descriptor leaves the set when it is closed. If a child process has it too, it may report once more.
        if self.owner.is_owner() {
            self.service.tasks.lock().remove(&self.number);
        }
    }
}

/// Waits until the thread has let go of the task that it calls. The caller holds no locks of tasks.
pub(crate) fn await_task() {
    if let Ok(service) = service() {
        drop(service.calling.lock());
    }
}

/// Once, because the task decides when it can do more.
fn once() -> epoll::EventFlags {
    epoll::EventFlags::IN | epoll::EventFlags::ONESHOT
}

/// Makes a descriptor, at a number that the program does not expect for its own.
///
/// # Errors
/// Those of `make`.
pub(crate) fn make_aside(make: impl FnMut() -> Result<OwnedFd>) -> Result<OwnedFd> {
    with_room(make).map(aside)
}

/// An eventfd, out of the way.
///
/// # Errors
/// No descriptor is left.
pub(crate) fn make_bell() -> Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    make_aside(|| eventfd(0, flags))
}

fn service() -> Result<&'static Service> {
    static SERVICE: ProcessCell<Service> = ProcessCell::new();
    SERVICE.get_or_try_make(|| {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = make_aside(|| timerfd_create(TimerfdClockId::Monotonic, flags))?;
        let waker = make_bell()?;
        let set = make_aside(|| epoll::create(epoll::CreateFlags::CLOEXEC))?;
        for (fd, place) in [(&timer, TIMER), (&waker, WAKER)] {
            let data = epoll::EventData::new_u64(place);
            epoll::add(&set, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(Service {
            set,
            timer,
            waker,
            is_running: AtomicBool::new(false),
            tasks: Mutex::default(),
            put_off: Mutex::default(),
            woken: Mutex::default(),
            calling: Mutex::default(),
        })
    })
}

impl Service {
    fn start(&'static self) -> Result<()> {
        if self.is_running.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let thread = std::thread::Builder::new().name("portolan-socket".into());
        match with_signals_blocked(|| thread.spawn(|| self.run())) {
            Ok(_) => Ok(()),
            Err(_) => {
                self.is_running.store(false, Ordering::Release);
                Err(Errno::AGAIN)
            }
        }
    }

    fn run(&self) {
        loop {
            let mut events = Vec::with_capacity(BATCH);
            let room = rustix::buffer::spare_capacity(&mut events);
            if epoll::wait(&self.set, room, None).is_err() {
                continue;
            }
            for event in events {
                match event.data.u64() {
                    TIMER => self.take_due().into_iter().for_each(|due| self.call(due)),
                    WAKER => self
                        .take_woken()
                        .into_iter()
                        .for_each(|woken| self.call(woken)),
                    place => self.call(place),
                }
            }
        }
    }

    fn call(&self, place: u64) {
        let _calling = self.calling.lock();
        let task = self.tasks.lock().get(&place).cloned();
        if let Some(task) = task.and_then(|task| task.upgrade()) {
            task.ready(place);
        }
    }

    /// The places whose time has passed. The timer runs until the next one's.
    fn take_due(&self) -> Vec<u64> {
        let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
        let now = Instant::now();
        let mut put_off = self.put_off.lock();
        let count = put_off.partition_point(|(due, _)| *due <= now);
        let due = put_off.drain(..count).map(|(_, place)| place).collect();
        if let Some((next, _)) = put_off.front() {
            self.run_timer(next.saturating_duration_since(now));
        }
        due
    }

    fn take_woken(&self) -> Vec<u64> {
        let mut woken = self.woken.lock();
        let _ = rustix::io::read(&self.waker, &mut [0u8; 8]);
        std::mem::take(&mut woken)
    }

    fn run_timer(&self, left: Duration) {
        let timespec = |time: Duration| Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: time.subsec_nanos().into(),
        };
        let once = Itimerspec {
            it_interval: timespec(Duration::ZERO),
            // Zero would stop it.
            it_value: timespec(left.max(Duration::from_nanos(1))),
        };
        // Fails only with wrong arguments (timerfd_create(2)).
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }
}
