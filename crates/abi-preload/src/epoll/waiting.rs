//! Waits on sets.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libc::{epoll_event, sigset_t};
use portolan_abi_layout::guard::{Result, last_errno};
use rustix::io::Errno;

use super::{DEVICE, MARK, Set};
use crate::inside::asleep;
use crate::real;
use crate::socket::Kind;
use crate::wait::timespec_of;

/// Maximum sleep while a socket connects: no descriptor signals the connect's deadline.
const CONNECT_SLEEP: Duration = Duration::from_millis(100);
/// The shortest sleep that is rounded up to milliseconds.
const EXACT_MAX: Duration = Duration::from_millis(5);
/// Whether the system has no `epoll_pwait2`.
static LACKS_EXACT: AtomicBool = AtomicBool::new(false);

impl Set {
    fn connects(&self) -> bool {
        let interests = self.interests.lock();
        let mut hot = interests.hot.iter();
        hot.any(|number| {
            let socket = interests.by_number.get(number);
            let socket = socket.and_then(|interest| interest.socket.upgrade());
            socket.is_some_and(|socket| socket.kind() == Kind::Connecting)
        })
    }

    /// The rest of a wait that began when the set had no streams. The kernel has found `found` events.
    ///
    /// # Errors
    /// As for epoll_pwait(2).
    pub(crate) fn wait_on(
        &self,
        events: &mut [epoll_event],
        found: usize,
        until: Option<Instant>,
        mask: *const sigset_t,
    ) -> Result<usize> {
        let (kept, _) = without_marks(&mut events[..found]);
        if kept > 0 || found == 0 {
            return Ok(kept);
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        self.wait(events, left, mask)
    }

    /// `epoll_pwait`. Returns the number of events.
    ///
    /// # Errors
    /// As for epoll_pwait(2).
    pub(crate) fn wait(
        &self,
        events: &mut [epoll_event],
        timeout: Option<Duration>,
        mask: *const sigset_t,
    ) -> Result<usize> {
        if events.is_empty() {
            return Err(Errno::INVAL);
        }
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut found = 0;
        if self.is_kernels_turn.swap(false, Ordering::Relaxed) {
            // Neither kind of descriptor keeps the other from being reported.
            let half = events.len().div_ceil(2);
            found = self
                .ask_kernel(&mut events[..half], Some(Duration::ZERO), mask)?
                .0;
        }
        let waited = self.wait_for_more(events, found, until, mask);
        self.pass_on();
        waited
    }

    /// The rest of a wait that has found `found` events.
    fn wait_for_more(
        &self,
        events: &mut [epoll_event],
        mut found: usize,
        until: Option<Instant>,
        mask: *const sigset_t,
    ) -> Result<usize> {
        let mut turns = None;
        loop {
            let of_kernel = found;
            if found < events.len() {
                let until = match found {
                    0 => until,
                    _ => Some(Instant::now()),
                };
                found += self.collect_driving(&mut events[found..], &mut turns, until);
            }
            if of_kernel > 0 {
                // Asked again, the kernel would report the same descriptors twice in one call.
                return Ok(found);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let is_over = left.is_some_and(|left| left.is_zero());
            let mut sleep = match found {
                0 => left,
                _ => Some(Duration::ZERO),
            };
            if found == 0 && self.connects() {
                sleep = Some(sleep.map_or(CONNECT_SLEEP, |sleep| sleep.min(CONNECT_SLEEP)));
            }
            let mut is_marked = false;
            if found < events.len() {
                let room = &mut events[found..];
                self.sleepers.fetch_add(1, Ordering::SeqCst);
                if self.must_look.load(Ordering::SeqCst) {
                    // Told before this sleeper was known.
                    sleep = Some(Duration::ZERO);
                }
                let asked = self.ask_kernel(room, sleep, mask);
                self.sleepers.fetch_sub(1, Ordering::AcqRel);
                let (kept, has_marks) = match asked {
                    Ok(asked) => asked,
                    Err(_) if found > 0 => return Ok(found),
                    Err(errno) => return Err(errno),
                };
                found += kept;
                // After the device's mark alone, the next collection drives the device.
                is_marked = has_marks;
            } else {
                self.is_kernels_turn.store(true, Ordering::Relaxed);
            }
            is_marked |= self.must_look.load(Ordering::SeqCst);
            if found > 0 || is_over && !is_marked {
                return Ok(found);
            }
            if is_over {
                self.take_reports();
                return Ok(self.collect(events));
            }
        }
    }

    /// The kernel's events, and whether it has reported this library's descriptors, too.
    fn ask_kernel(
        &self,
        events: &mut [epoll_event],
        sleep: Option<Duration>,
        mask: *const sigset_t,
    ) -> Result<(usize, bool)> {
        self.in_first.fetch_add(1, Ordering::SeqCst);
        // Looked at by a thread that forks, after it has set this.
        if self.is_shared() {
            self.in_first.fetch_sub(1, Ordering::SeqCst);
            return self.ask_both(events, sleep, mask);
        }
        let found = kernel_wait(self.kernels.as_raw_fd(), events, sleep, mask);
        self.in_first.fetch_sub(1, Ordering::SeqCst);
        let found = found?;
        let (kept, has_streams) = without_marks(&mut events[..found]);
        if has_streams {
            self.drain();
        }
        Ok((kept, kept < found))
    }
}

/// The kernel's `epoll_pwait`, or `epoll_pwait2` for a short sleep.
pub(super) fn kernel_wait(
    set: c_int,
    events: &mut [epoll_event],
    sleep: Option<Duration>,
    mask: *const sigset_t,
) -> Result<usize> {
    let room = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
    let exact = sleep.filter(|sleep| *sleep < EXACT_MAX && !sleep.is_zero());
    if let Some(sleep) = exact
        && !LACKS_EXACT.load(Ordering::Relaxed)
    {
        let time = timespec_of(sleep);
        // SAFETY: as below; the time is a valid local variable.
        let found =
            asleep(|| unsafe { real::epoll_pwait2(set, events.as_mut_ptr(), room, &time, mask) });
        // Kernels before 5.11 do not have it, and filters of system calls may refuse it.
        if found >= 0 || ![Errno::NOSYS, Errno::PERM].contains(&last_errno()) {
            return usize::try_from(found).map_err(|_| last_errno());
        }
        LACKS_EXACT.store(true, Ordering::Relaxed);
    }
    // Round up: a wait must not end early.
    let timeout_ms = sleep.map_or(-1, |sleep| {
        c_int::try_from(sleep.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
    });
    // SAFETY: `room` is at most the number of events; the mask is the program's or null.
    let found =
        asleep(|| unsafe { real::epoll_pwait(set, events.as_mut_ptr(), room, timeout_ms, mask) });
    usize::try_from(found).map_err(|_| last_errno())
}

/// Moves the program's events to the front. Returns their number, and whether the second set was among the others.
pub(crate) fn without_marks(events: &mut [epoll_event]) -> (usize, bool) {
    let (mut kept, mut has_streams) = (0, false);
    for at in 0..events.len() {
        let data = events[at].u64;
        has_streams |= data == MARK;
        if data != MARK && data != DEVICE {
            events[kept] = events[at];
            kept += 1;
        }
    }
    (kept, has_streams)
}
