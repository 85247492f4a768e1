//! `repoll_create`, `repoll_ctl` and `repoll_wait`: wait for a set of descriptors.
//!
//! An instance is a kernel epoll(7) instance that watches each socket's descriptor. Each wait checks the sockets that
//! were ready again, because events are level-triggered. It checks other sockets only when their descriptors are
//! readable. So the cost of a wait depends on the number of ready sockets, and an idle instance costs nothing.
//!
//! Other calls on a socket, and other instances, may take what its descriptor signals, or finish its connect. They tell the
//! instances ([`watchers`](super::watchers)).

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, c_short};
use portolan_threads::lock::{Mutex, RwLock};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use super::poll::{Patience, look, tell_instances, watched};
use super::table::look_up;
use super::watchers::Watcher;
use crate::fork::Known;
use crate::guard::Result;
use crate::verbs::rdma_cm;

/// Marks the instance's own bell in the kernel's events.
const BELL: u64 = u64::MAX;
/// Kernel events per system call.
const BATCH: usize = 64;

static INSTANCES: Known<RwLock<HashMap<c_int, Arc<Instance>>>> = Known::new();

struct Instance {
    kernel: OwnedFd,
    set: Mutex<Set>,
    watcher: Arc<Watcher>,
}

#[derive(Default)]
struct Set {
    interests: HashMap<c_int, Interest>,
    /// Sockets to check: those that were ready, and new ones.
    hot: VecDeque<c_int>,
    /// Events of other descriptors that the last wait had no room for, and that the kernel reports once.
    left: VecDeque<(c_int, u32)>,
    /// The last wait had room for sockets only. The next one asks the kernel first.
    is_kernels_turn: bool,
}

/// A program's interest in a descriptor.
#[derive(Clone, Copy)]
struct Interest {
    events: u32,
    data: u64,
    /// For a socket, the descriptor that the kernel watches.
    watched: Option<RawFd>,
    is_hot: bool,
}

/// An event for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) events: u32,
    pub(crate) data: u64,
}

/// `repoll_create`: returns the instance's descriptor.
///
/// # Errors
/// Those of epoll_create1(2) and of loading libibverbs.
pub(crate) fn create(flags: c_int) -> Result<c_int> {
    let mut wanted = epoll::CreateFlags::empty();
    wanted.set(epoll::CreateFlags::CLOEXEC, flags & libc::O_CLOEXEC != 0);
    let kernel = epoll::create(wanted)?;
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    epoll::add(
        &kernel,
        &bell,
        epoll::EventData::new_u64(BELL),
        epoll::EventFlags::IN,
    )?;
    // The tables of objects depend on it.
    rdma_cm()?;
    let number = kernel.as_raw_fd();
    let instance = Instance {
        kernel,
        set: Mutex::default(),
        watcher: Watcher::new(bell),
    };
    INSTANCES.get().write().insert(number, Arc::new(instance));
    Ok(number)
}

fn find(number: c_int) -> Result<Arc<Instance>> {
    INSTANCES
        .get()
        .read()
        .get(&number)
        .cloned()
        .ok_or(Errno::BADF)
}

/// `rclose` of an instance. Returns whether `number` was one.
pub(super) fn close(number: c_int) -> bool {
    INSTANCES.get().write().remove(&number).is_some()
}

/// A socket is closed: removes it from all instances.
pub(super) fn forget(number: c_int) {
    let instances: Vec<_> = INSTANCES.get().read().values().cloned().collect();
    for instance in instances {
        // This instance may not have it.
        let _ = instance.remove(number);
    }
}

/// `repoll_ctl`.
///
/// # Errors
/// `EEXIST`, `ENOENT`, `EINVAL` as for epoll_ctl(2); `EFAULT` without a required event.
pub(crate) fn control(
    number: c_int,
    operation: c_int,
    fd: c_int,
    event: Option<Event>,
) -> Result<()> {
    let instance = find(number)?;
    match operation {
        libc::EPOLL_CTL_ADD => instance.add(fd, event.ok_or(Errno::FAULT)?)?,
        libc::EPOLL_CTL_MOD => instance.change(fd, event.ok_or(Errno::FAULT)?)?,
        libc::EPOLL_CTL_DEL => instance.remove(fd)?,
        _ => return Err(Errno::INVAL),
    }
    instance.watcher.ring();
    Ok(())
}

/// `repoll_wait`: at least one event, or none when the time is over.
///
/// # Errors
/// `EINVAL` if there is no room; `EINTR`.
pub(crate) fn wait(number: c_int, most: c_int, timeout_ms: c_int) -> Result<Vec<Event>> {
    let most = usize::try_from(most)
        .ok()
        .filter(|most| *most > 0)
        .ok_or(Errno::INVAL)?;
    let instance = find(number)?;
    let patience = Patience::new(timeout_ms);
    loop {
        let mut found = instance.begin(most)?;
        instance.look_at_hot(most, &mut found);
        let is_last = !found.is_empty() || patience.is_over();
        let sleep_ms = if is_last || patience.looks() {
            0
        } else {
            patience.sleep_ms()
        };
        instance.ask_kernel(sleep_ms, most, &mut found)?;
        if found.is_empty() && !is_last {
            continue;
        }
        if found.is_empty() {
            instance.look_at_hot(most, &mut found);
        }
        return Ok(found);
    }
}

impl Instance {
    fn add(&self, fd: c_int, event: Event) -> Result<()> {
        let mut set = self.set.lock();
        // The kernel knows whether another descriptor is still the one that was added.
        let known = set.interests.get(&fd);
        if known.is_some_and(|known| known.watched.is_some()) {
            return Err(Errno::EXIST);
        }
        let watched = look_up(fd).map(|socket| watched(&socket));
        let flags = match watched {
            Some(_) => epoll::EventFlags::IN,
            None => epoll::EventFlags::from_bits_retain(event.events),
        };
        let data = epoll::EventData::new_u64(fd as u64);
        epoll::add(&self.kernel, borrowed(watched.unwrap_or(fd)), data, flags)?;
        let is_hot = watched.is_some();
        let interest = Interest {
            events: event.events,
            data: event.data,
            watched,
            is_hot,
        };
        set.interests.insert(fd, interest);
        set.left.retain(|(left, _)| *left != fd);
        if is_hot {
            set.hot.push_back(fd);
        }
        Ok(())
    }

    fn change(&self, fd: c_int, event: Event) -> Result<()> {
        let mut set = self.set.lock();
        let set = &mut *set;
        let interest = set.interests.get_mut(&fd).ok_or(Errno::NOENT)?;
        if interest.watched.is_none() {
            let data = epoll::EventData::new_u64(fd as u64);
            let flags = epoll::EventFlags::from_bits_retain(event.events);
            epoll::modify(&self.kernel, borrowed(fd), data, flags)?;
        } else if !interest.is_hot {
            interest.is_hot = true;
            set.hot.push_back(fd);
        }
        (interest.events, interest.data) = (event.events, event.data);
        Ok(())
    }

    fn remove(&self, fd: c_int) -> Result<()> {
        let mut set = self.set.lock();
        let interest = set.interests.remove(&fd).ok_or(Errno::NOENT)?;
        set.hot.retain(|hot| *hot != fd);
        set.left.retain(|(left, _)| *left != fd);
        self.watcher.forget(fd);
        let removed = epoll::delete(&self.kernel, borrowed(interest.watched.unwrap_or(fd)));
        // The kernel has already removed a closed descriptor.
        match removed {
            Err(Errno::BADF | Errno::NOENT) => Ok(()),
            removed => removed,
        }
    }

    /// The events that the last wait has left, and the kernel's if it is its turn.
    fn begin(&self, most: usize) -> Result<Vec<Event>> {
        let mut found = Vec::new();
        let mut set = self.set.lock();
        while found.len() < most
            && let Some((fd, events)) = set.left.pop_front()
        {
            if let Some(Interest { data, .. }) = set.interests.get(&fd).copied() {
                found.push(Event { events, data });
            }
        }
        let is_kernels_turn = std::mem::take(&mut set.is_kernels_turn);
        drop(set);
        if is_kernels_turn {
            self.ask_kernel(0, most, &mut found)?;
        }
        Ok(found)
    }

    /// Checks each socket that may be ready once. Ready ones stay in the list.
    fn look_at_hot(&self, most: usize, found: &mut Vec<Event>) {
        let mut set = self.set.lock();
        let set = &mut *set;
        for fd in self.watcher.take() {
            if let Some(interest) = set.interests.get_mut(&fd).filter(|one| !one.is_hot) {
                interest.is_hot = true;
                set.hot.push_back(fd);
            }
        }
        for _ in 0..set.hot.len() {
            if found.len() >= most {
                break;
            }
            let Some(fd) = set.hot.pop_front() else { break };
            let Some(interest) = set.interests.get_mut(&fd) else {
                continue;
            };
            interest.is_hot = false;
            let Some(socket) = look_up(fd) else { continue };
            self.watcher.begin_look(fd, interest.events);
            // A connect that ends in this look tells the instance, which then looks again.
            tell_instances(&socket);
            let ready = look(&socket, (interest.events as c_short) & (POLLIN | POLLOUT));
            self.follow(fd, interest, watched(&socket));
            let always = (POLLERR | POLLHUP) as u32;
            let events = u32::from(ready.cast_unsigned()) & (interest.events | always);
            self.watcher.end_look(fd, events != 0);
            if events != 0 {
                interest.is_hot = true;
                set.hot.push_back(fd);
                found.push(Event {
                    events,
                    data: interest.data,
                });
            }
        }
        set.is_kernels_turn = found.len() >= most;
    }

    /// Watches the new descriptor of a socket that has connected.
    fn follow(&self, fd: c_int, interest: &mut Interest, watched: RawFd) {
        if interest.watched == Some(watched) {
            return;
        }
        if let Some(former) = interest.watched {
            let _ = epoll::delete(&self.kernel, borrowed(former));
        }
        let data = epoll::EventData::new_u64(fd as u64);
        let _ = epoll::add(&self.kernel, borrowed(watched), data, epoll::EventFlags::IN);
        interest.watched = Some(watched);
    }

    /// Takes the kernel's events. Events of sockets put them into the list to check; others go to the program.
    fn ask_kernel(&self, timeout_ms: c_int, most: usize, found: &mut Vec<Event>) -> Result<()> {
        let mut events = Vec::with_capacity(BATCH);
        let timeout = Timespec {
            tv_sec: (timeout_ms / 1000).into(),
            tv_nsec: (timeout_ms % 1000 * 1_000_000).into(),
        };
        epoll::wait(
            &self.kernel,
            rustix::buffer::spare_capacity(&mut events),
            Some(&timeout),
        )?;
        let mut set = self.set.lock();
        let set = &mut *set;
        for event in events {
            let (data, flags) = (event.data.u64(), event.flags);
            if data == BELL {
                let _ = rustix::io::read(&self.watcher.bell, &mut [0u8; 8]);
                continue;
            }
            let fd = data as c_int;
            let Some(interest) = set.interests.get_mut(&fd) else {
                continue;
            };
            if interest.watched.is_none() {
                let is_once = interest.events & (libc::EPOLLET | libc::EPOLLONESHOT) as u32 != 0;
                if found.len() < most {
                    found.push(Event {
                        events: flags.bits(),
                        data: interest.data,
                    });
                } else if is_once {
                    set.left.push_back((fd, flags.bits()));
                }
            } else if !interest.is_hot {
                interest.is_hot = true;
                set.hot.push_back(fd);
            }
        }
        Ok(())
    }
}

/// Borrows a descriptor that a table says is open. If it is not, the kernel refuses it.
#[allow(unsafe_code, reason = "descriptors of C programs are numbers")]
fn borrowed(fd: RawFd) -> BorrowedFd<'static> {
    // -1 cannot be borrowed. The kernel refuses `MAX` as well.
    let fd = if fd < 0 { RawFd::MAX } else { fd };
    // SAFETY: it is only passed to epoll_ctl(2), which checks it.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
