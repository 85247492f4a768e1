//! One thread per process does what the kernel does for TCP while the program is busy elsewhere: it accepts the
//! connections of listeners, and advances the connects that the program does not wait for.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portolan_threads::fork::ForkGuard;
use portolan_threads::lock::Mutex;
use portolan_threads::{ProcessCell, with_signals_blocked};
use rustix::event::epoll;
use rustix::io::{Errno, Result};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

const BATCH: usize = 64;

/// How long a task that is put off waits.
const DELAY: Duration = Duration::from_millis(10);
/// The place of the timer.
const TIMER: u64 = u64::MAX;

/// What the thread works on.
pub(crate) trait Task: Send + Sync {
    /// The descriptor that was watched at this place is readable, or the time has passed. Neither calls again by itself.
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
    is_running: AtomicBool,
    tasks: Mutex<HashMap<u64, Weak<dyn Task>>>,
    /// Places that are put off, the next one first.
    put_off: Mutex<VecDeque<(Instant, u64)>>,
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
        epoll::add(&self.service.set, fd, data, once())
    }

    /// As [`Place::watch`] with the same descriptor as before.
    pub(crate) fn watch_again(&self, fd: impl AsFd) {
        let data = epoll::EventData::new_u64(self.number);
        let _ = epoll::modify(&self.service.set, fd, data, once());
    }

    /// Calls the task once after [`DELAY`].
    pub(crate) fn put_off(&self) {
        let mut put_off = self.service.put_off.lock();
        put_off.push_back((Instant::now() + DELAY, self.number));
        if put_off.len() == 1 {
            self.service.run_timer(DELAY);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The descriptor leaves the set when it is closed. If a child process has it too, it may report once more.
        if self.owner.is_owner() {
            self.service.tasks.lock().remove(&self.number);
        }
    }
}

/// Once, because a full backlog must not wake the thread again until there is room.
fn once() -> epoll::EventFlags {
    epoll::EventFlags::IN | epoll::EventFlags::ONESHOT
}

fn service() -> Result<&'static Service> {
    static SERVICE: ProcessCell<Service> = ProcessCell::new();
    SERVICE.get_or_try_make(|| {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(TIMER);
        epoll::add(&set, &timer, data, epoll::EventFlags::IN)?;
        Ok(Service {
            set,
            timer,
            is_running: AtomicBool::new(false),
            tasks: Mutex::default(),
            put_off: Mutex::default(),
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
                    place => self.call(place),
                }
            }
        }
    }

    fn call(&self, place: u64) {
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
