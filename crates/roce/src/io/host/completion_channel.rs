//! Completion channels as completion queues know them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use portolan_port_sharing::room;
use portolan_provider::{Error, Result, Step};
use portolan_threads::lock::{Mutex, MutexGuard};

use crate::io::host::Host;
use crate::io::net::readiness::LazyReadiness;
use crate::io::polling::attendance::this_thread;

/// A completion channel.
///
/// Its descriptor is created at its first use, because many programs only poll.
///
/// The queue is as long as the number of completion queues on the channel, because a completion queue has at most one
/// event here. The thread that takes the event polls that completion queue; for what it leaves there is another event.
#[derive(Debug)]
pub(crate) struct ChannelCore {
    ready: LazyReadiness,
    events: Mutex<Events>,
    /// No two threads have been seen to wait here at the same time.
    has_one_thread: AtomicBool,
}

#[derive(Debug, Default)]
struct Events {
    queue: VecDeque<ChannelEvent>,
    /// The descriptor is readable.
    is_raised: bool,
    /// A thread drives the device, and then takes an event itself. Meanwhile, events wake no other thread.
    is_quiet: bool,
    sleeper: Option<Sleeper>,
}

#[derive(Debug)]
struct ChannelEvent {
    cq: Weak<dyn EventSource>,
    cookie: u64,
}

/// A completion queue that has events.
pub(crate) trait EventSource: Send + Sync + std::fmt::Debug {
    /// A thread of the program has taken the event from the channel.
    fn event_taken(&self);
}

impl ChannelEvent {
    /// A thread takes it. The caller does not hold the channel's lock, which completion queues take under theirs.
    fn taken(self) -> u64 {
        if let Some(cq) = self.cq.upgrade() {
            cq.event_taken();
        }
        self.cookie
    }
}

/// A thread that sleeps until the waiter's bell rings.
#[derive(Debug)]
struct Sleeper {
    thread: usize,
    host: Arc<Host>,
    is_rung: bool,
}

impl ChannelCore {
    pub(crate) fn new() -> Result<Self> {
        let ready = LazyReadiness::new(true).map_err(|errno| os_error("eventfd", errno))?;
        Ok(Self {
            ready,
            events: Mutex::default(),
            has_one_thread: AtomicBool::new(true),
        })
    }

    /// Takes the oldest event and returns its cookie.
    pub(crate) fn take(&self) -> Option<u64> {
        let mut events = self.lock();
        let event = events.queue.pop_front();
        self.show(&mut events);
        drop(events);
        event.map(ChannelEvent::taken)
    }

    /// As [`take`](Self::take), after `drive`. Events that it queues wake no other thread, unless they stay.
    pub(crate) fn take_after(&self, drive: impl FnOnce()) -> Option<u64> {
        let quiet = Quiet::begin(self);
        drive();
        // Under one lock: no other thread may go to sleep between the two.
        let mut events = self.lock();
        let event = events.queue.pop_front();
        quiet.end(&mut events);
        drop(events);
        event.map(ChannelEvent::taken)
    }

    /// Queues the event of completion queue `cq`.
    pub(crate) fn notify(&self, cq: Weak<dyn EventSource>, cookie: u64) {
        let mut events = self.lock();
        if events.queue.iter().any(|event| event.cq.ptr_eq(&cq)) {
            return;
        }
        events.queue.push_back(ChannelEvent { cq, cookie });
        self.show(&mut events);
    }

    /// Removes the event of a destroyed completion queue.
    pub(crate) fn forget(&self, cq: &Weak<dyn EventSource>) {
        let mut events = self.lock();
        events.queue.retain(|event| !event.cq.ptr_eq(cq));
        self.show(&mut events);
    }

    /// Makes the descriptor readable exactly while an event is queued, unless the channel is quiet. Wakes the sleeper
    /// if there is one.
    fn show(&self, events: &mut Events) {
        if events.is_quiet {
            return;
        }
        let is_due = !events.queue.is_empty();
        if events.is_raised != is_due {
            events.is_raised = is_due;
            match is_due {
                true => self.ready.raise(),
                false => self.ready.lower(),
            }
        }
        if is_due
            && let Some(sleeper) = &mut events.sleeper
            && !sleeper.is_rung
        {
            sleeper.is_rung = true;
            sleeper.host.wake_waiter();
        }
    }

    /// The calling thread is about to sleep until the bell of the host's waiter rings. Returns false if another thread
    /// does, or if an event is queued.
    pub(crate) fn begin_sleep(&self, host: &Arc<Host>) -> bool {
        let mut events = self.lock();
        // One that does not rest was woken, or has left its call without a word.
        if events.sleeper.is_some() && host.progress.ring_waiter().rests() {
            // The one that arms a queue need not be the one that sleeps at the bell.
            self.has_one_thread.store(false, Ordering::Relaxed);
            return false;
        }
        let is_free = events.queue.is_empty();
        if is_free {
            events.sleeper = Some(Sleeper {
                thread: this_thread(),
                host: Arc::clone(host),
                is_rung: false,
            });
        }
        is_free
    }

    /// The channel is destroyed: wakes the sleeper, so that it is not in the way of the next one.
    pub(crate) fn wake_sleeper(&self) {
        if let Some(sleeper) = self.lock().sleeper.take() {
            sleeper.host.wake_waiter();
        }
    }

    /// The calling thread sleeps no more. Returns whether it did.
    pub(crate) fn end_sleep(&self) -> bool {
        let mine = |sleeper: &mut Sleeper| sleeper.thread == this_thread();
        self.lock().sleeper.take_if(mine).is_some()
    }

    pub(crate) fn has_one_thread(&self) -> bool {
        self.has_one_thread.load(Ordering::Relaxed)
    }

    /// Its descriptor, readable while an event is queued. It is created at the first call.
    pub(crate) fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        let events = self.lock();
        let descriptor = self.ready.descriptor(events.is_raised);
        descriptor.map_err(|errno| os_error("socketpair", errno))
    }

    fn lock(&self) -> MutexGuard<'_, Events> {
        self.events.lock()
    }
}

/// While it exists, events wake nobody.
struct Quiet<'a>(&'a ChannelCore);

impl<'a> Quiet<'a> {
    fn begin(channel: &'a ChannelCore) -> Self {
        channel.lock().is_quiet = true;
        Self(channel)
    }
}

impl Quiet<'_> {
    fn end(self, events: &mut Events) {
        events.is_quiet = false;
        if let Some(sleeper) = &mut events.sleeper {
            // The thread that has driven the device may have taken the ring.
            sleeper.is_rung = false;
        }
        self.0.show(events);
        std::mem::forget(self);
    }
}

/// After a panic.
impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        let mut events = self.0.lock();
        events.is_quiet = false;
        self.0.show(&mut events);
    }
}

impl AsFd for ChannelCore {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let events = self.lock();
        self.ready.descriptor_or_stand_in(events.is_raised)
    }
}

fn os_error(call: &'static str, errno: rustix::io::Errno) -> Error {
    Error::new(Step::CreateCq, room::cause(call, errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Completion, CompletionQueue, Queue};
    use crate::io::host::completion_queue::{CqCore, CqEvent};
    use crate::io::net::counters::Cell;
    use portolan_provider::verbs::WorkCompletion;
    use rustix::event::{PollFd, PollFlags, poll};

    /// A channel, and completion queues on it, with these cookies.
    fn channel<const N: usize>(cookies: [u64; N]) -> (Arc<ChannelCore>, [Arc<CqCore>; N]) {
        let channel = Arc::new(ChannelCore::new().unwrap());
        let queue = |cookie| {
            let event = CqEvent::Queue(Arc::clone(&channel), cookie);
            CqCore::new(CompletionQueue::new(8, 8).unwrap(), Some(event), None)
        };
        let queues = cookies.map(queue);
        (channel, queues)
    }

    fn complete(queue: &CqCore) {
        let completion = Completion {
            queue: Queue::Send,
            wc: WorkCompletion::EMPTY,
            solicited: false,
        };
        let delivered = queue.deliver(&[completion], &Cell::default());
        assert!(delivered.is_ok());
    }

    /// Arms the queue, and completes something.
    fn notify(queue: &CqCore) {
        queue.arm(false);
        complete(queue);
    }

    fn readable(channel: &ChannelCore) -> bool {
        let mut fds = [PollFd::new(channel, PollFlags::IN)];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&now)).unwrap() == 1
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_events_wait() {
        let (channel, [one, two]) = channel([11, 22]);
        assert!(!readable(&channel));
        notify(&one);
        notify(&two);
        assert!(readable(&channel));
        assert_eq!(channel.take(), Some(11));
        assert!(readable(&channel));
        assert_eq!(channel.take(), Some(22));
        assert!(!readable(&channel));
        assert_eq!(channel.take(), None);
    }

    #[test]
    fn an_event_that_its_thread_takes_after_driving_wakes_no_other_one() {
        let (channel, [one, two]) = channel([11, 22]);
        assert!(!readable(&channel));
        let drive = || {
            notify(&one);
            assert!(!readable(&channel));
        };
        assert_eq!(channel.take_after(drive), Some(11));
        assert!(!readable(&channel));
        let drive = || {
            notify(&one);
            notify(&two);
        };
        assert_eq!(channel.take_after(drive), Some(11));
        assert!(readable(&channel), "another thread may take the other one");
        assert_eq!(channel.take_after(|| {}), Some(22));
        assert!(!readable(&channel));
    }

    #[test]
    fn a_queue_has_at_most_one_waiting_event_and_none_after_its_destruction() {
        let (channel, [one, two]) = channel([11, 22]);
        let mut out = [WorkCompletion::EMPTY];
        for _ in 0..1000 {
            notify(&one);
            one.poll(&mut out);
        }
        notify(&two);
        two.forget_event();
        assert_eq!(channel.take(), Some(11));
        assert_eq!(channel.take(), None);
        notify(&one);
        one.forget_event();
        assert!(!readable(&channel));
    }

    #[test]
    fn a_completion_that_is_queued_when_a_thread_takes_the_event_causes_no_other_one() {
        let (channel, [queue]) = channel([11]);
        let mut out = [WorkCompletion::EMPTY; 4];
        let take: [&dyn Fn() -> Option<u64>; 2] =
            [&|| channel.take(), &|| channel.take_after(|| {})];
        for take in take {
            notify(&queue);
            complete(&queue);
            assert_eq!(take(), Some(11));
            queue.arm(false);
            assert_eq!(queue.poll(&mut out).0, 2);
            assert_eq!(channel.take(), None);
            complete(&queue);
            assert_eq!(take(), Some(11));
            assert_eq!(queue.poll(&mut out).0, 1);
        }
    }

    #[test]
    fn completions_that_a_thread_leaves_after_it_took_the_event_cause_another_one() {
        let (channel, [queue]) = channel([11]);
        notify(&queue);
        complete(&queue);
        for _ in 0..2 {
            assert_eq!(channel.take(), Some(11));
            queue.arm(false);
            assert_eq!(queue.poll(&mut [WorkCompletion::EMPTY]).0, 1);
        }
        assert_eq!(channel.take(), None);
    }
}
