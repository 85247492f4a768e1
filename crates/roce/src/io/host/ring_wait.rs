//! Waiting for the rings in a thread of the program ([`RingWaiter`](crate::io::polling::ring_waiter::RingWaiter)).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use portolan_provider::Step;
use portolan_provider::traits::DeviceWait;

use crate::io::host::Host;
use crate::io::host::drive::Answer;
use crate::io::net::shm::links::Links;
use crate::io::polling::clock::as_nanos;

/// Packets between two waits that are much traffic: the program probably waits again before the next packet.
const BULK_PACKETS: u64 = 16;
/// How long it does so after that.
const BULK_LASTS: Duration = Duration::from_millis(2);

/// Until it is given up, its owner waits for the rings.
#[derive(Debug)]
pub(crate) struct RingWait {
    host: Arc<Host>,
    is_given_up: AtomicBool,
    /// Number of packets that the process had received and sent when its owner began to wait for the sockets.
    packets: AtomicU64,
    /// Until when it is expected to wait again soon, nanoseconds.
    bulk_until_ns: AtomicU64,
}

/// How a thread sleeps.
#[derive(Debug)]
pub(crate) enum Rest<'a> {
    /// Until this descriptor is readable.
    AtBell(BorrowedFd<'a>),
    /// Until the progress thread wakes it.
    Elsewhere,
    /// Not at all: something has arrived.
    Busy,
}

impl RingWait {
    /// `None` if somebody else waits, or if this stack has no rings.
    pub(crate) fn begin(host: &Arc<Host>) -> Option<Self> {
        let begins = host.links.is_some() && host.progress.ring_waiter().take();
        begins.then(|| Self {
            host: Arc::clone(host),
            is_given_up: AtomicBool::new(false),
            packets: AtomicU64::new(0),
            bulk_until_ns: AtomicU64::new(0),
        })
    }

    /// As [`rest`](DeviceWait::rest), in a call that the program makes for each event.
    pub(crate) fn rest_in_call(&self) -> Rest<'_> {
        if self.host.copying.any() {
            return self.rest_elsewhere();
        }
        if !self.rest() {
            return Rest::Busy;
        }
        // The progress thread may have taken over meanwhile.
        match self.host.progress.ring_waiter().expect() {
            true => Rest::AtBell(self.as_fd()),
            false => self.rest_elsewhere(),
        }
    }

    /// Leaves everything to the progress thread.
    pub(crate) fn rest_elsewhere(&self) -> Rest<'_> {
        if self.host.progress.ring_waiter().take_over() {
            self.links().head_page().asleep().end_waiter();
        }
        self.host.settle_deferred();
        self.host.poller_leaves();
        Rest::Elsewhere
    }

    fn links(&self) -> &Links {
        match &self.host.links {
            Some(links) => links,
            None => unreachable!("a stack without links has no waiter"),
        }
    }

    /// Whether this process may use it: a forked child may not.
    fn is_owner(&self) -> bool {
        self.host.entry.check(Step::PollCq).is_ok()
    }

    fn waits(&self) -> bool {
        !self.is_given_up.load(Ordering::Relaxed)
    }
}

impl DeviceWait for RingWait {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.links().waiter_bell().as_fd()
    }

    fn drive(&self) {
        if !self.is_owner() {
            return;
        }
        if self.waits() && self.host.progress.ring_waiter().rise() {
            self.links().waiter_bell().reset();
        }
        self.host.drive_briefly();
        if !self.waits() {
            // It was given up meanwhile. Another owner may rest, and this caller need not come again.
            self.host.poller_leaves();
        }
    }

    fn has_more(&self) -> bool {
        // A hint. If another thread holds the lock, it reads what has arrived. `rest` looks again before the thread sleeps.
        let receiver = self.host.receiver.try_lock();
        self.is_owner()
            && self.waits()
            && receiver.is_some_and(|receiver| receiver.has_more_before_sleep())
    }

    fn rest(&self) -> bool {
        if !self.is_owner() {
            return true;
        }
        let host = &self.host;
        host.settle_deferred();
        if host.progress.needs_sockets() || !self.waits() {
            // Nobody rings for what arrives by a socket.
            host.poller_leaves();
            return true;
        }
        host.progress.ring_waiter().rest();
        self.links().head_page().asleep().announce_waiter();
        match host.receiver.try_lock() {
            Some(receiver) => !receiver.has_more_before_sleep(),
            None => {
                // The thread that reads may not see a record that was written before the announcement, and nobody rings
                // for that. It needs the processor to end.
                std::thread::yield_now();
                false
            }
        }
    }

    fn take_sockets(&self) -> bool {
        let (host, progress) = (&self.host, &self.host.progress);
        if !self.is_owner() || !self.waits() || !progress.needs_sockets() {
            return false;
        }
        let now = host.clock.now();
        // Each packet that another thread reads would wake this one.
        let is_alone = !progress.is_polled(now) && host.receiver.try_lock().is_some();
        let takes = is_alone && progress.sleeper_takes(host.sources(), now);
        if takes {
            self.packets
                .store(host.monitor.packets(), Ordering::Relaxed);
        }
        takes
    }

    fn socket(&self, number: usize) -> Option<BorrowedFd<'_>> {
        self.host.group.sockets().get(number).map(AsFd::as_fd)
    }

    fn return_sockets(&self) {
        if !self.is_owner() {
            return;
        }
        let host = &self.host;
        let now = host.clock.now();
        let bulk_until_ns = self.bulk_until_ns.load(Ordering::Relaxed);
        let answer = match as_nanos(now) < bulk_until_ns {
            true => Answer::AfterTheOwner(now),
            // The progress thread sleeps, and would be woken to answer.
            false => Answer::Now,
        };
        let has_read = host.drive_awake(now, answer);
        let before = self.packets.load(Ordering::Relaxed);
        let packets = host.monitor.packets().saturating_sub(before);
        let bulk_until_ns = match packets >= BULK_PACKETS {
            true => as_nanos(now + BULK_LASTS),
            false => bulk_until_ns,
        };
        self.bulk_until_ns.store(bulk_until_ns, Ordering::Relaxed);
        let comes_back = has_read && self.waits() && as_nanos(now) < bulk_until_ns;
        host.progress
            .sleeper_returns(host.sources(), comes_back.then_some(now));
        if !comes_back {
            host.poller_leaves();
        }
        if !has_read {
            // The thread that reads needs the processor to end.
            std::thread::yield_now();
        }
    }

    fn give_up(&self) -> bool {
        if !self.is_owner() {
            return false;
        }
        if self.is_given_up.swap(true, Ordering::AcqRel) {
            return true;
        }
        self.host.progress.ring_waiter().release();
        self.links().head_page().asleep().end_waiter();
        self.host.progress.sleeper_is_gone(self.host.sources());
        self.host.poller_leaves();
        true
    }
}

impl Drop for RingWait {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Host {
    /// Makes the writers wake a waiter that rests. Returns whether there is one. The progress thread checks whether it
    /// comes.
    pub(crate) fn is_left_to_waiter(&self) -> bool {
        match &self.links {
            Some(links)
                if self.progress.ring_waiter().rests() && !self.progress.needs_sockets() =>
            {
                links.head_page().asleep().announce_waiter();
                true
            }
            _ => false,
        }
    }

    /// Whether the progress thread, woken for the rings, leaves them to a waiter, which was woken too.
    pub(crate) fn leaves_rings_to_waiter(&self, links: &Links) -> bool {
        let leaves = self.progress.ring_waiter().rests()
            && links.head_page().asleep().sleepers().waiter
            && !self.progress.needs_sockets();
        if leaves {
            self.progress.poller_is_here(self.clock.now().into());
        }
        leaves
    }

    /// Rings the bell of this process's waiter.
    pub(crate) fn wake_waiter(&self) {
        if let Some(links) = &self.links {
            links.waiter_bell().ring();
        }
    }

    /// The waiter did not come, and the progress thread has read the rings.
    pub(crate) fn waiter_is_away(&self) {
        let Some(links) = &self.links else { return };
        let waiter = self.progress.ring_waiter();
        if waiter.take_over() {
            links.head_page().asleep().end_waiter();
            links.waiter_bell().reset_all();
            self.progress
                .poller_leaves(self.sources(), self.clock.now());
            // It may sleep, or be about to, and one of the rings may have been for what it sleeps for.
            links.waiter_bell().ring();
        }
    }
}
