//! The queue of a channel: events in order, and a descriptor that is readable while there are events.

use portolan_threads::lock::Mutex;
use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use portolan_port_sharing::room;
use portolan_provider::cm::{CmEvent, IdNumber};
use portolan_provider::traits::Notify;
use portolan_provider::{Error, Result, Step};
use portolan_roce::io::{EventWaiter, LazyReadiness, Nudge, Readiness};
use portolan_wire::addr::Qpn;
use rustix::io::Errno;

/// The longest time that an event is held for a program that does not poll.
const HELD_MAX: Duration = Duration::from_millis(20);

/// Disconnects that wait for programs to poll at the same time. Others do not wait: when very many connections end at
/// once, to look at each again and again would delay all.
pub(super) const HELD_AT_ONCE_MAX: usize = 64;

/// The queued events of a channel, and the ids that they belong to.
///
/// The number of events is bounded by that of the ids: an id has a bounded number of events in its life, and of
/// events written by its owner at a time.
#[derive(Debug)]
pub(super) struct EventQueue {
    waiting: Mutex<Waiting>,
    /// Whether events are queued. Written under the lock, read without.
    has_events: AtomicBool,
    ids: Mutex<HashSet<IdNumber>>,
    ready: Ready,
    /// Wakes the thread that waits for the group.
    nudge: Arc<Nudge>,
}

/// The disconnect of an id, which its queue holds.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) id: IdNumber,
    /// The queue pair that may have completions.
    pub(super) qpn: Qpn,
    pub(super) queue: Arc<EventQueue>,
    pub(super) until: Instant,
}

impl Held {
    pub(super) fn new(id: IdNumber, qpn: Qpn, queue: &Arc<EventQueue>) -> Self {
        Self {
            id,
            qpn,
            queue: queue.clone(),
            until: Instant::now() + HELD_MAX,
        }
    }
}

/// What is called at each event of a queue.
pub(crate) trait Watcher: Send + Sync + std::fmt::Debug {
    /// An event was queued. The caller holds locks: this must neither wait nor call the provider.
    fn event(&self);
}

/// How the owner learns of events.
#[derive(Debug)]
enum Ready {
    /// By a descriptor. It blocks, unless the owner changes its flags. It is created at its first use: a thread that
    /// takes events by waiting for the group needs none.
    Descriptor(LazyReadiness),
    /// By a call. The queue never blocks.
    Call(Arc<dyn Notify>),
}

impl Ready {
    fn raise(&self) {
        match self {
            Self::Descriptor(ready) => ready.raise(),
            Self::Call(notify) => notify.notify(),
        }
    }

    fn lower(&self) {
        match self {
            Self::Descriptor(ready) => ready.lower(),
            // The owner resets its descriptor.
            Self::Call(_) => {}
        }
    }
}

/// The events, each with its ticket. Tickets ascend.
#[derive(Debug, Default)]
struct Waiting {
    next_ticket: u64,
    events: VecDeque<(u64, CmEvent)>,
    /// Events that wait for [`release`](EventQueue::release), and later ones of the same ids.
    held: Vec<CmEvent>,
    /// Ids whose queued disconnect may be held again when it is taken, and their queue pairs.
    refusable: Vec<(IdNumber, Qpn)>,
    /// The next event nudges a waiting thread.
    is_awaited: bool,
    watcher: Option<Arc<dyn Watcher>>,
}

impl Waiting {
    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }
}

impl EventQueue {
    pub(super) fn new(nudge: Arc<Nudge>) -> Result<Self> {
        let ready = LazyReadiness::new(false)
            .map_err(|errno| os_error("eventfd", Step::OpenChannel, errno))?;
        Ok(Self::with(Ready::Descriptor(ready), nudge))
    }

    /// A queue that calls when it gets its first event.
    pub(super) fn calling(notify: Arc<dyn Notify>, nudge: Arc<Nudge>) -> Self {
        Self::with(Ready::Call(notify), nudge)
    }

    fn with(ready: Ready, nudge: Arc<Nudge>) -> Self {
        Self {
            waiting: Mutex::default(),
            has_events: AtomicBool::new(false),
            ids: Mutex::default(),
            ready,
            nudge,
        }
    }

    /// Queues an event. Returns a ticket to take it back with.
    pub(super) fn push(&self, event: CmEvent) -> u64 {
        let mut waiting = self.waiting.lock();
        if waiting.held.iter().any(|held| held.id == event.id) {
            waiting.held.push(event);
            return waiting.ticket();
        }
        self.append(&mut waiting, event)
    }

    fn append(&self, waiting: &mut Waiting, event: CmEvent) -> u64 {
        let ticket = waiting.ticket();
        waiting.events.push_back((ticket, event));
        if waiting.events.len() == 1 {
            self.has_events.store(true, Ordering::Release);
            self.ready.raise();
        }
        if let Some(watcher) = &waiting.watcher {
            watcher.event();
        }
        if std::mem::take(&mut waiting.is_awaited) {
            self.nudge.give();
        }
        ticket
    }

    /// Keeps an event, and later ones of its id, until that id is released.
    pub(super) fn hold(&self, event: CmEvent) {
        self.waiting.lock().held.push(event);
    }

    /// Queues the events of an id that are held, and stores that the first of them may be held again.
    pub(super) fn release_refusable(&self, id: IdNumber, qpn: Qpn) {
        let mut waiting = self.waiting.lock();
        let is_held = waiting.held.iter().any(|held| held.id == id);
        if is_held && waiting.refusable.len() < HELD_AT_ONCE_MAX {
            waiting.refusable.push((id, qpn));
        }
        drop(waiting);
        self.release(id);
    }

    /// The queue pair of a disconnect that was just taken and may be held again, once.
    pub(super) fn take_refusable(&self, id: IdNumber) -> Option<Qpn> {
        let mut waiting = self.waiting.lock();
        let place = waiting.refusable.iter().position(|(of, _)| *of == id)?;
        Some(waiting.refusable.swap_remove(place).1)
    }

    /// Holds an event that was taken, and the queued ones of its id.
    pub(super) fn hold_again(&self, event: CmEvent) {
        let mut waiting = self.waiting.lock();
        // Under the same lock, so that no later event of the id is queued meanwhile.
        let later = self.extract_from(&mut waiting, |later| later.id == event.id);
        waiting.held.push(event);
        waiting.held.extend(later);
    }

    /// Queues the events of an id that are held, if any.
    pub(super) fn release(&self, id: IdNumber) {
        let mut waiting = self.waiting.lock();
        if waiting.held.is_empty() {
            return;
        }
        let of_id: Vec<CmEvent> = waiting.held.extract_if(.., |held| held.id == id).collect();
        for event in of_id {
            self.append(&mut waiting, event);
        }
    }

    /// Calls `watcher` at each event from now on, and now if there is one. `None` ends that.
    pub(super) fn watch(&self, watcher: Option<Arc<dyn Watcher>>) {
        let mut waiting = self.waiting.lock();
        if let Some(watcher) = watcher.as_ref().filter(|_| !waiting.events.is_empty()) {
            watcher.event();
        }
        waiting.watcher = watcher;
    }

    /// Removes an event, unless it was taken before.
    pub(super) fn take_back(&self, ticket: u64) {
        let mut waiting = self.waiting.lock();
        let place = waiting.events.binary_search_by_key(&ticket, |(at, _)| *at);
        let taken = place.ok().and_then(|index| waiting.events.remove(index));
        if taken.is_some() && waiting.events.is_empty() {
            self.note_empty();
        }
    }

    /// Waits until an event is queued, like the kernel's GET_EVENT. Another thread may take it first.
    pub(super) fn sleep(&self) -> Result<()> {
        self.descriptor()?;
        let woken = match &self.ready {
            Ready::Descriptor(ready) => ready.made().map_or(Ok(()), Readiness::wait),
            Ready::Call(_) => Ok(()),
        };
        woken.map_err(|errno| os_error("recv", Step::Event, errno))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.lock().events.is_empty()
    }

    /// Whether [`pop`](Self::pop) may find an event.
    pub(super) fn may_have_event(&self) -> bool {
        self.has_events.load(Ordering::Acquire)
    }

    /// No event is queued any more.
    fn note_empty(&self) {
        self.has_events.store(false, Ordering::Release);
        self.ready.lower();
    }

    pub(super) fn pop(&self) -> Option<CmEvent> {
        let mut waiting = self.waiting.lock();
        let (_, event) = waiting.events.pop_front()?;
        if waiting.events.is_empty() {
            self.note_empty();
        }
        Some(event)
    }

    /// Removes the events that `belongs` selects, and returns them in order.
    pub(super) fn extract(&self, belongs: impl Fn(&CmEvent) -> bool) -> Vec<CmEvent> {
        self.extract_from(&mut self.waiting.lock(), belongs)
    }

    fn extract_from(
        &self,
        waiting: &mut Waiting,
        belongs: impl Fn(&CmEvent) -> bool,
    ) -> Vec<CmEvent> {
        let held: Vec<CmEvent> = waiting.held.extract_if(.., |held| belongs(held)).collect();
        if !waiting.events.iter().any(|(_, event)| belongs(event)) {
            return held;
        }
        let mut out = Vec::new();
        let waiting_before = std::mem::take(&mut waiting.events);
        for (ticket, event) in waiting_before {
            match belongs(&event) {
                true => out.push(event),
                false => waiting.events.push_back((ticket, event)),
            }
        }
        if waiting.events.is_empty() {
            self.note_empty();
        }
        out.extend(held);
        out
    }

    /// Adds an id whose events go to this queue.
    pub(super) fn enroll(&self, id: IdNumber) {
        self.ids.lock().insert(id);
    }

    /// Removes an id.
    pub(super) fn remove(&self, id: IdNumber) {
        self.ids.lock().remove(&id);
        self.waiting.lock().refusable.retain(|(of, _)| *of != id);
    }

    /// The ids whose events go to this queue.
    pub(super) fn ids(&self) -> Vec<IdNumber> {
        self.ids.lock().iter().copied().collect()
    }

    /// Whether the owner set `O_NONBLOCK` on the descriptor.
    pub(super) fn is_nonblocking(&self) -> Result<bool> {
        let Ready::Descriptor(ready) = &self.ready else {
            return Ok(true);
        };
        // Without a descriptor, its flags are the initial ones.
        let Some(ready) = ready.made() else {
            return Ok(false);
        };
        let flags = rustix::fs::fcntl_getfl(ready);
        let flags = flags.map_err(|errno| os_error("fcntl", Step::Event, errno))?;
        Ok(flags.contains(rustix::fs::OFlags::NONBLOCK))
    }
}

impl EventWaiter for EventQueue {
    fn begin(&self) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.is_awaited = waiting.events.is_empty();
        waiting.is_awaited
    }

    fn end(&self) {
        self.waiting.lock().is_awaited = false;
    }

    fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        let ready = match &self.ready {
            Ready::Descriptor(ready) => ready,
            Ready::Call(notify) => return notify.descriptor(),
        };
        let waiting = self.waiting.lock();
        let descriptor = ready.descriptor(!waiting.events.is_empty());
        descriptor.map_err(|errno| os_error("socketpair", Step::Event, errno))
    }
}

impl AsFd for EventQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.ready {
            Ready::Descriptor(ready) => {
                let waiting = self.waiting.lock();
                ready.descriptor_or_stand_in(!waiting.events.is_empty())
            }
            Ready::Call(notify) => notify.as_fd(),
        }
    }
}

fn os_error(call: &'static str, step: Step, errno: Errno) -> Error {
    Error::new(step, room::cause(call, errno))
}
