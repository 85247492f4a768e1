//! poll(2) and select(2) on sets that contain streams.

#![allow(unsafe_code, reason = "sets of the program, and calls of libc")]

use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{
    FD_SETSIZE, POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, c_short, fd_set, pollfd, sigset_t,
};
use portolan_abi_layout::guard::Result;
use portolan_port_sharing::room;
use rustix::io::Errno;

use portolan::stream::SocketSleep;

use crate::descriptors::lookup;
use crate::epoll::{INSTANCES, Set, known, note_poll};
use crate::farewell::Farewell;
use crate::look::{Next, look};
use crate::socket::{Attending, Kind, SOCKETS, Socket};
use crate::wait::{Waits, ask_kernel, readable};

/// Maximum sleep for events that no descriptor signals: deadlines of connects.
const SLEEP: Duration = Duration::from_millis(100);
/// Size of the largest set whose streams are polled before a sleep.
const LOOKS_MAX: usize = 16;
/// Maximum number of entries that no limit of open files excludes.
const ENTRIES_MIN: usize = 64;
/// Maximum sleep if the kernel does not take all descriptors.
const REST: Duration = Duration::from_millis(10);

/// A descriptor's object.
enum Object {
    Kernel,
    Stream(Arc<Socket>),
    Set(Arc<Set>),
}

fn object(fd: c_int) -> Object {
    if let Some(socket) = lookup(fd) {
        return Object::Stream(socket);
    }
    known(fd).map_or(Object::Kernel, Object::Set)
}

/// Whether no descriptor concerns this library, so that the kernel's poll(2) suffices.
pub(crate) fn is_kernels(fds: &[pollfd]) -> bool {
    !fds.iter().any(|fd| SOCKETS.has(fd.fd) || note_poll(fd.fd))
}

/// `ppoll`. Returns the number of descriptors with events.
///
/// # Errors
/// As for ppoll(2).
///
/// # Safety
/// The mask is null or valid.
pub(crate) unsafe fn poll(
    fds: &mut [pollfd],
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Result<c_int> {
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    // Of entries for the kernel, as of the program's.
    let limit = match fds.len() {
        ..=ENTRIES_MIN => usize::MAX,
        _ => room::open_files().map_or(usize::MAX, |limit| limit as usize),
    };
    if fds.len() > limit {
        return Err(Errno::INVAL);
    }
    let mut is_found = look_briefly(fds, until);
    // One entry for each of the program's that the kernel serves, at these places, and then the streams' own descriptors.
    let mut kernels: Vec<pollfd> = Vec::with_capacity(2 * fds.len());
    let mut places: Vec<usize> = Vec::with_capacity(fds.len());
    let mut own_fds: Vec<pollfd> = Vec::with_capacity(fds.len());
    // Other threads may wait for the other direction of a stream.
    let mut waits: Vec<Waits> = Vec::new();
    let mut attending: Vec<Attending> = Vec::new();
    loop {
        kernels.clear();
        places.clear();
        waits.clear();
        attending.clear();
        let mut farewell = None;
        let mut is_restless = false;
        let mut most = None;
        for (place, fd) in fds.iter_mut().enumerate() {
            let mut kernel = *fd;
            match object(fd.fd) {
                Object::Stream(socket) if is_found && socket.stream().is_some() => kernel.fd = -1,
                Object::Kernel => fd.revents = 0,
                Object::Stream(socket) => {
                    // It may be connected after this: then look again soon.
                    is_restless |= socket.kind() == Kind::Connecting;
                    if !is_found && socket.stream().is_some() {
                        farewell.get_or_insert_with(Farewell::hear);
                    }
                    let next = Next::Descriptor(&mut waits);
                    fd.revents = look(&socket, fd.fd, fd.events, next).events;
                    match socket.stream() {
                        Some(stream) => {
                            let descriptors = stream.descriptors();
                            own_fds.extend(descriptors.all().map(readable));
                            most = descriptors.at_most(most);
                            kernel.fd = -1;
                        }
                        None => {
                            if socket.kind() == Kind::Connecting {
                                attending.push(Attending::begin(&socket));
                            }
                            let watch = socket.watch();
                            if !watch.kernel && socket.kind() != Kind::Plain {
                                kernel.fd = -1;
                            }
                            let own = watch.own.map(|fd| pollfd {
                                fd,
                                events: POLLIN,
                                revents: 0,
                            });
                            own_fds.extend(own);
                        }
                    }
                }
                Object::Set(set) => {
                    let is_ready = fd.events & POLLIN != 0 && set.has_ready();
                    fd.revents = if is_ready { POLLIN } else { 0 };
                }
            }
            if kernel.fd >= 0 {
                kernels.push(kernel);
                places.push(place);
            }
        }
        kernels.append(&mut own_fds);
        kernels.extend(
            farewell
                .iter()
                .filter_map(Farewell::descriptor)
                .map(readable),
        );
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = farewell
            .as_ref()
            .map_or(left, |farewell| farewell.at_most(left));
        let left = [left, most].into_iter().flatten().min();
        let mut sleep = match count(fds) {
            // A stream that was ready has been handed over.
            0 if is_found => Some(Duration::ZERO),
            0 if is_restless => Some(left.map_or(SLEEP, |left| left.min(SLEEP))),
            0 => left,
            _ => Some(Duration::ZERO),
        };
        if count(fds) > 0 && kernels.is_empty() {
            return Ok(count(fds));
        }
        let sleeps = sleep.is_none_or(|sleep| !sleep.is_zero());
        let at_sockets = sleeps.then(|| waits.iter().find_map(Waits::sleep_at_sockets));
        let sockets = at_sockets.iter().flatten().flat_map(SocketSleep::sockets);
        kernels.extend(sockets.map(readable));
        if kernels.len() > limit {
            kernels.truncate(limit);
            sleep = Some(sleep.map_or(REST, |sleep| sleep.min(REST)));
        }
        // SAFETY: the caller's promise.
        let asked = unsafe { ask_kernel(&mut kernels, sleep, mask) };
        drop(at_sockets);
        match asked {
            Err(_) if count(fds) > 0 => return Ok(count(fds)),
            asked => asked?,
        }
        for (place, kernel) in places.iter().zip(&kernels) {
            fds[*place].revents |= kernel.revents;
        }
        is_found = false;
        let found = count(fds);
        let is_over = until.is_some_and(|until| Instant::now() >= until);
        if found > 0 || is_over {
            return Ok(found);
        }
    }
}

/// The number of descriptors with events.
fn count(fds: &[pollfd]) -> c_int {
    fds.iter().filter(|fd| fd.revents != 0).count() as c_int
}

/// Looks at the connected streams of a small set, for a short time if none is ready. Returns whether one is.
fn look_briefly(fds: &mut [pollfd], until: Option<Instant>) -> bool {
    if fds.len() > LOOKS_MAX {
        return false;
    }
    let sockets = fds.iter().map(|fd| lookup(fd.fd));
    let streams = sockets.map(|socket| socket.filter(|socket| socket.stream().is_some()));
    let streams: Vec<_> = streams.collect();
    let Some(first) = streams.iter().flatten().next() else {
        return false;
    };
    let mut polling = None;
    loop {
        let mut is_found = false;
        for (fd, socket) in fds.iter_mut().zip(&streams) {
            fd.revents = match socket {
                Some(socket) => look(socket, fd.fd, fd.events, Next::Nothing).events,
                None => 0,
            };
            is_found |= fd.revents != 0;
        }
        let polling = polling.get_or_insert_with(|| first.spin().start());
        let is_over = until.is_some_and(|until| Instant::now() >= until);
        if is_found || is_over || !first.spin().goes_on(polling) {
            return is_found;
        }
        std::hint::spin_loop();
    }
}

/// The sets of select(2), and the number of bits in each.
#[derive(Clone, Copy)]
pub(crate) struct Sets {
    pub(crate) count: c_int,
    pub(crate) sets: [*mut fd_set; 3],
}

impl Sets {
    /// Whether a set contains a number. Works beyond `FD_SETSIZE`, because programs may allocate larger sets.
    ///
    /// # Safety
    /// Each set is null or has `count` bits.
    unsafe fn has(self, set: usize, number: c_int) -> bool {
        let bits = self.sets[set].cast::<u64>();
        // SAFETY: the caller's promise. glibc's words are 64-bit longs.
        !bits.is_null() && unsafe { *bits.add(number as usize / 64) >> (number % 64) & 1 != 0 }
    }

    /// # Safety
    /// As for [`Sets::has`], and the set is not null.
    unsafe fn keep(self, set: usize, number: c_int, is_kept: bool) {
        let bits = self.sets[set].cast::<u64>();
        let bit = 1u64 << (number % 64);
        // SAFETY: the caller's promise.
        unsafe {
            let word = bits.add(number as usize / 64);
            *word = if is_kept { *word | bit } else { *word & !bit };
        }
    }

    /// Whether no number in the sets concerns this library, so that the kernel's select(2) suffices.
    ///
    /// # Safety
    /// As for [`Sets::has`].
    pub(crate) unsafe fn is_kernels(self) -> bool {
        let last = self.count as usize - 1;
        let sockets = SOCKETS.numbers(0, last);
        !sockets.chain(INSTANCES.numbers(0, last)).any(|number| {
            // SAFETY: the caller's promise.
            (0..3).any(|set| unsafe { self.has(set, number) })
                && (SOCKETS.has(number) || note_poll(number))
        })
    }

    /// The sets up to the process's highest descriptor, as Linux reads them: a program may name more
    /// bits than its sets have, for example as many as it may have descriptors (`core_sys_select`).
    pub(crate) fn up_to_descriptors(self) -> Self {
        if self.count <= FD_SETSIZE as c_int {
            return self;
        }
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let size = status
            .lines()
            .find_map(|line| line.strip_prefix("FDSize:")?.trim().parse().ok());
        Self {
            count: self.count.min(size.unwrap_or(FD_SETSIZE as c_int)),
            ..self
        }
    }
}

/// `pselect`. Returns the number of bits that are set.
///
/// # Errors
/// As for pselect(2).
///
/// # Safety
/// Each set is null or has `count` bits; the mask is null or valid.
pub(crate) unsafe fn select(
    sets: Sets,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Result<c_int> {
    /// The events to poll for each set, and the events that keep a number in the set.
    const ASKED: [c_short; 3] = [POLLIN, POLLOUT, POLLPRI];
    const FOUND: [c_short; 3] = [POLLIN | POLLHUP | POLLERR, POLLOUT | POLLERR, POLLPRI];
    let sets = sets.up_to_descriptors();
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut fds = Vec::new();
    let mut numbers = Vec::new();
    for number in 0..sets.count {
        // SAFETY: the caller's promise.
        let wanted = [0, 1, 2].map(|set| unsafe { sets.has(set, number) });
        if wanted.contains(&true) {
            let asked = wanted.iter().zip(ASKED);
            let events = asked.filter(|(is_wanted, _)| **is_wanted);
            fds.push(pollfd {
                fd: number,
                events: events.fold(0, |events, (_, event)| events | event),
                revents: 0,
            });
            numbers.push(number);
        }
    }
    // SAFETY: the caller's promise.
    let is_in = |set, number, revents: c_short| unsafe {
        revents & FOUND[set] != 0 && sets.has(set, number)
    };
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // SAFETY: the caller's promise.
        let found = unsafe { poll(&mut fds, left, mask) }?;
        if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
            return Err(Errno::BADF);
        }
        let mut is_over = found == 0;
        for (fd, number) in fds.iter_mut().zip(&numbers) {
            match (0..FOUND.len()).any(|set| is_in(set, *number, fd.revents)) {
                true => is_over = true,
                // poll(2) reports its end, which no set asks for.
                false if fd.revents != 0 => fd.fd = -1,
                false => {}
            }
        }
        if is_over {
            break;
        }
    }
    let mut bits = 0;
    for (fd, number) in fds.iter().zip(numbers) {
        for set in 0..FOUND.len() {
            // SAFETY: the caller's promise.
            unsafe {
                if sets.has(set, number) {
                    let is_kept = is_in(set, number, fd.revents);
                    sets.keep(set, number, is_kept);
                    bits += c_int::from(is_kept);
                }
            }
        }
    }
    Ok(bits)
}
