//! One thread per process does what the kernel does for TCP while the program is busy elsewhere: it accepts the
//! connections of listeners, and advances the connects that the program does not wait for.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use portolan_threads::fork::ForkGuard;
use portolan_threads::lock::Mutex;
use portolan_threads::{ProcessCell, with_signals_blocked};
use rustix::event::epoll;
use rustix::io::{Errno, Result};

const BATCH: usize = 64;

/// What the thread works on.
pub(crate) trait Task: Send + Sync {
    /// The descriptor that was watched at this place is readable. The thread watches it no more.
    fn ready(&self, place: u64);
}

/// A place in the thread's epoll set. Leaves the set on drop.
pub(crate) struct Place {
    number: u64,
    owner: ForkGuard,
}

struct Service {
    set: OwnedFd,
    is_running: AtomicBool,
    tasks: Mutex<HashMap<u64, Weak<dyn Task>>>,
}

impl Place {
    pub(crate) fn new() -> Self {
        // Ascends across forks, so that a place of the parent is never one of the child's.
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self {
            number: LAST.fetch_add(1, Ordering::Relaxed),
            owner: ForkGuard::new(),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Calls the task once when the descriptor is readable.
    ///
    /// # Errors
    /// The process cannot create another descriptor or thread.
    pub(crate) fn watch(&self, fd: impl AsFd, task: Weak<dyn Task>) -> Result<()> {
        let service = service()?;
        service.start()?;
        service.tasks.lock().insert(self.number, task);
        let data = epoll::EventData::new_u64(self.number);
        epoll::add(&service.set, fd, data, once())
    }

    /// Calls the task once more, as [`Place::watch`] with the same descriptor.
    pub(crate) fn watch_again(&self, fd: impl AsFd) {
        if let Ok(service) = service() {
            let data = epoll::EventData::new_u64(self.number);
            let _ = epoll::modify(&service.set, fd, data, once());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The descriptor leaves the set when it is closed. If a child process has it too, it may report once more.
        if self.owner.is_owner()
            && let Ok(service) = service()
        {
            service.tasks.lock().remove(&self.number);
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
        Ok(Service {
            set: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            is_running: AtomicBool::new(false),
            tasks: Mutex::default(),
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
                let place = event.data.u64();
                let task = self.tasks.lock().get(&place).cloned();
                if let Some(task) = task.and_then(|task| task.upgrade()) {
                    task.ready(place);
                }
            }
        }
    }
}
