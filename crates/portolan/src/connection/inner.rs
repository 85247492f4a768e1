//! The state of a connection, shared by its handle, its transfers and its messages.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use portolan_provider::cm::{EventType, IdAddresses};
use portolan_provider::traits::Qp;
use portolan_provider::verbs::WcStatus;
use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::spin::Spin;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::options::Options;
use super::transport::Transport;
use crate::cm::{CmId, Event, EventChannel, NewQueuePair, QueuePairOwner};
use crate::deadline;
use crate::domain::Domain;
use crate::sys::Buffer;
use crate::work::{Objects, Turn, Watched, Work};

/// How long a peer that finds no posted receive waits: 0.64 ms (IBTA 9.7.5.2.8). Dropped messages
/// repost the connection's own receives quickly; the standard's code 0 would mean 655 ms.
const MIN_RNR_TIMER: u8 = 12;

/// How long to wait for the event that explains flushed work. It usually arrives within a millisecond.
const REASON_LIMIT: Duration = Duration::from_millis(500);

pub(crate) struct Inner {
    pub(crate) id: CmId,
    pub(crate) events: EventChannel,
    pub(crate) domain: Option<Domain>,
    pub(crate) work: Work,
    pub(crate) addresses: IdAddresses,
    device: String,
    spin: Spin,
    receive_depth: u32,
    receive_size: usize,
    /// Number of messages that the program holds, and its maximum.
    held: AtomicU32,
    held_max: u32,
    has_told_held: AtomicBool,
    /// When work was first seen flushed although neither side had ended the connection.
    flushed: OnceLock<Instant>,
    /// This side has ended the connection.
    closing: AtomicBool,
    /// Both sides know that the connection has ended, or this one can no longer learn that the peer does.
    disconnected: AtomicBool,
    /// The connection ended because the peer's process died.
    peer_died: AtomicBool,
    /// The connection ended because the device was removed.
    device_removed: AtomicBool,
    /// How long the peer was silent, in milliseconds, if that ended the connection; otherwise 0.
    silent_ms: AtomicU64,
}

impl Inner {
    /// Creates the queues and the queue pair of an id that is bound to a device, and posts its
    /// receives.
    pub(super) fn new(id: CmId, events: EventChannel, options: &Options) -> Result<Arc<Self>> {
        let device = id.device()?;
        let limits = device.attr()?;
        let transport = Transport::of(id.service());
        let init = options.qp_init(transport)?;
        let pd = match &options.domain {
            Some(domain) => domain.pd(&device)?,
            None => crate::device::shared_pd(&device)?,
        };
        let pool = options.shared_receives.as_ref();
        let pool = pool.map(|shared| shared.pool(&pd)).transpose()?;
        let channel = device.create_comp_channel()?;
        // All messages of a shared receive queue may belong to one connection.
        let receives = pool
            .as_ref()
            .map_or(init.cap.max_recv_wr, |pool| pool.depth());
        let cqe = init.cap.max_send_wr.saturating_add(receives);
        if cqe > limits.max_cqe {
            let what = "send_depth, receive_depth and posted_receives together";
            let expected = format!("at most {}, as {} allows", limits.max_cqe, device.name());
            return Err(Error::invalid(Step::CreateCq, what, expected, cqe));
        }
        let cq = device.create_cq(cqe, Some(&channel), 0)?;
        let new = NewQueuePair {
            pd: &pd,
            send_cq: &cq,
            recv_cq: &cq,
            srq: pool.as_ref().map(|pool| pool.srq()),
            init,
        };
        let qp = id.create_private_queue_pair(&new);
        let qp = qp.map_err(|error| options.explain_limit(error))?;
        id.set_min_rnr_timer(MIN_RNR_TIMER)?;
        let inner = Self {
            addresses: id.addresses()?,
            work: Work::new(
                Objects {
                    qp,
                    cq,
                    channel,
                    pd,
                },
                options.depths(),
                options.keepalive,
                transport,
                pool,
            ),
            device: device.name().to_owned(),
            receive_depth: options.receive_depth,
            receive_size: match &options.shared_receives {
                Some(shared) => shared.size(),
                None => options.receive_size,
            },
            held: AtomicU32::new(0),
            held_max: options.held_messages,
            has_told_held: AtomicBool::new(false),
            flushed: OnceLock::new(),
            spin: Spin::default(),
            closing: AtomicBool::new(false),
            disconnected: AtomicBool::new(false),
            peer_died: AtomicBool::new(false),
            device_removed: AtomicBool::new(false),
            silent_ms: AtomicU64::new(0),
            id,
            events,
            domain: options.domain.clone(),
        };
        let own = if inner.work.pool.is_some() {
            0
        } else {
            options.receive_depth
        };
        for _ in 0..own {
            let buffer = Buffer::new(&inner.work.pd, options.receive_size)?;
            inner.work.post_receive(buffer, true)?;
        }
        let inner = Arc::new(inner);
        let owner = Arc::downgrade(&inner);
        inner.id.set_queue_pair_owner(owner);
        Ok(inner)
    }

    /// Waits until `ready` returns a value, driving the completion queue meanwhile.
    ///
    /// # Errors
    /// `TimedOut` at the deadline; errors of the channels.
    pub(crate) fn wait_until<T>(
        &self,
        deadline: Option<Instant>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let started = Instant::now();
        loop {
            let watch = self.watch_peer();
            let turn = self.work.turn();
            if let Some(found) = ready() {
                return Ok(found);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                // Handle what is already available without waiting.
                self.take_events()?;
                self.work.collect()?;
                if let Some(found) = ready() {
                    return Ok(found);
                }
                let after_ms = started.elapsed().as_millis() as u64;
                let cause = Cause::TimedOut {
                    after_ms,
                    retries: 0,
                };
                return Err(self.explain(Error::new(Step::Transfer, cause)));
            }
            let look = [deadline, watch, self.reason_due()];
            let look = look.into_iter().flatten().min();
            if self.work.drive_or_wait(turn, look) {
                let driven = self.drive(turn, look);
                self.work.stop_driving();
                driven?;
            }
        }
    }

    /// Handles completions and events. Sleeps until there are some, another thread has handled some
    /// since `turn`, or the deadline passes.
    fn drive(&self, turn: Turn, deadline: Option<Instant>) -> Result<()> {
        let mut polling = self.spin.start();
        loop {
            if self.work.collect()? > 0 {
                return Ok(());
            }
            if !self.spin.goes_on(&mut polling) {
                break;
            }
            std::hint::spin_loop();
        }
        self.work.cq.arm(false)?;
        if self.work.collect()? > 0 || self.take_events()? {
            return Ok(());
        }
        let Some(roused) = self.work.fall_asleep(turn)? else {
            return Ok(());
        };
        let slept = self.sleep(roused, deadline);
        self.work.wake_up(roused);
        slept?;
        while self.work.channel.take_event()?.is_some() {}
        self.take_events()?;
        self.work.collect().map(|_| ())
    }

    fn sleep(&self, roused: BorrowedFd<'_>, deadline: Option<Instant>) -> Result<()> {
        let completions = self.work.channel.descriptor()?;
        let events = self.events.descriptor()?;
        let mut fds = [
            PollFd::new(&completions, PollFlags::IN),
            PollFd::new(&events, PollFlags::IN),
            PollFd::new(&roused, PollFlags::IN),
        ];
        let left = deadline.map(|deadline| {
            let left = deadline::left(deadline);
            Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => {
                let cause = Cause::Os {
                    call: "poll",
                    errno: errno.raw_os_error(),
                };
                Err(self.explain(Error::new(Step::Transfer, cause)))
            }
        }
    }

    /// Handles the id's events; returns whether there was one.
    pub(crate) fn take_events(&self) -> Result<bool> {
        let mut any = false;
        while let Some(event) = self.events.try_next_event()? {
            any = true;
            if ends_connection(event.event_type()) {
                self.end_by(&event);
            }
        }
        Ok(any)
    }

    /// Ends the connection because of an event that ends it.
    pub(super) fn end_by(&self, event: &Event) {
        // A later event only confirms the end.
        if !self.is_disconnected() {
            self.note_reason(event);
        }
        self.disconnected.store(true, Ordering::Release);
        // Answers the peer's disconnect request. Fails harmlessly if both requests crossed.
        let _ = self.id.disconnect();
        self.work.nudge();
    }

    fn note_reason(&self, end: &Event) {
        match (end.event_type(), end.failure().map(|end| end.cause)) {
            (EventType::DeviceRemoval, _) => self.device_removed.store(true, Ordering::Relaxed),
            (_, Some(Cause::PeerDied)) => self.peer_died.store(true, Ordering::Relaxed),
            // The program disconnected by the id.
            (_, Some(Cause::Closed)) => self.closing.store(true, Ordering::Release),
            _ => {}
        }
    }

    /// Checks a silent peer if keepalives are enabled, and ends the connection if it stays silent.
    /// Returns when to check again.
    pub(crate) fn watch_peer(&self) -> Option<Instant> {
        let mut watched = self.work.watch_peer();
        if matches!(watched, Watched::Silent(_)) {
            // The answer may have arrived while the program did something else.
            let _ = self.work.collect();
            watched = self.work.watch_peer();
        }
        match watched {
            Watched::Not => None,
            Watched::Until(at) => self.how_ended().is_none().then_some(at),
            Watched::Silent(since) => {
                if self.how_ended().is_none() {
                    let silent_ms = since.as_millis() as u64;
                    self.silent_ms.store(silent_ms.max(1), Ordering::Relaxed);
                    self.disconnected.store(true, Ordering::Release);
                    // Flushes posted work, and informs the peer in case it is reachable again.
                    let _ = self.id.disconnect();
                    self.work.nudge();
                }
                None
            }
        }
    }

    /// Ends the connection from this side.
    pub(crate) fn disconnect(&self) -> Result<()> {
        if self.is_disconnected() {
            return Ok(());
        }
        // Set the flag first, so that waiters that see flushed work know the reason.
        self.closing.store(true, Ordering::Release);
        let ended = self.id.disconnect();
        self.work.nudge();
        ended.map_err(|error| self.explain(error))
    }

    /// Returns whether the peer has confirmed the end.
    pub(crate) fn is_disconnected(&self) -> bool {
        self.disconnected.load(Ordering::Acquire)
    }

    /// Posts another receive if the program holds all receives as messages, because otherwise the peer's next message
    /// waits. At the limit it logs a warning once, because neither side would see why the peer waits.
    pub(crate) fn replace_held(&self) {
        let held = self.held.fetch_add(1, Ordering::Relaxed) + 1;
        if self.work.pool.is_some() {
            return;
        }
        if held < self.receive_depth || !self.work.holds_all() || self.how_ended().is_some() {
            return;
        }
        if held < self.held_max {
            let fresh = Buffer::new(&self.work.pd, self.receive_size);
            // If this fails, the peer waits until a held message is dropped.
            let posted = fresh.map(|fresh| self.work.post_receive(fresh, true).is_ok());
            if posted == Ok(true) {
                return;
            }
        }
        // A connection with a single receive may be intended, so do not warn.
        if held > 1 && !self.has_told_held.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                peer = ?self.addresses.remote,
                "the program holds {held} messages, and the connection has no further receives (Options::held_messages): the \
                 peer's next message waits until one is dropped or taken out (Message::into_buffer)"
            );
        }
    }

    /// Counts a message that the program has dropped or taken out.
    pub(crate) fn note_given_back(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }

    /// Why the connection has ended; `None` while neither side has ended it.
    pub(crate) fn how_ended(&self) -> Option<Cause> {
        if self.closing.load(Ordering::Acquire) {
            return Some(Cause::Closed);
        }
        self.is_disconnected().then(|| {
            let after_ms = self.silent_ms.load(Ordering::Relaxed);
            match self.peer_died.load(Ordering::Relaxed) {
                _ if after_ms > 0 => Cause::PeerSilent { after_ms },
                true => Cause::PeerDied,
                _ if self.device_removed.load(Ordering::Relaxed) => Cause::DeviceRemoved,
                // The peer disconnects because its request failed.
                false => self.refused().unwrap_or(Cause::Disconnected),
            }
        })
    }

    /// The request of the peer that this side refused, as the cause of the connection's end.
    fn refused(&self) -> Option<Cause> {
        // The queue pair exists while this connection is referenced.
        let refusal = self.work.qp.refusal().ok()??;
        Some(Cause::PeerRequestRefused(refusal))
    }

    /// The cause of work that ended with `status`, other than success.
    pub(crate) fn work_cause(&self, status: WcStatus) -> Cause {
        let known = match status {
            WcStatus::WrFlushErr => self.how_ended().or_else(|| self.refused()),
            _ => None,
        };
        known.unwrap_or(Cause::WorkFailed(status))
    }

    /// The time until which to wait for the event that explains flushed work; `None` if there is nothing to wait for.
    ///
    /// An iWARP queue pair ends with its stream, and any queue pair with its device. Its work is flushed before the event
    /// of the peer's disconnect or the device's removal arrives.
    pub(crate) fn reason_due(&self) -> Option<Instant> {
        let is_unexplained = self.work.broken() == Some(WcStatus::WrFlushErr)
            && self.how_ended().is_none()
            && self.refused().is_none();
        let due = is_unexplained.then(|| *self.flushed.get_or_init(Instant::now) + REASON_LIMIT);
        due.filter(|due| Instant::now() < *due)
    }

    /// The error of a queue pair that broke or was disconnected; `None` while it works.
    pub(crate) fn ended(&self) -> Option<Error> {
        let cause = match self.how_ended() {
            Some(ended) => ended,
            None if self.reason_due().is_some() => return None,
            None => self.work_cause(self.work.broken()?),
        };
        let is_long = cause == Cause::WorkFailed(WcStatus::LocLenErr);
        let mut error = self.explain(Error::new(Step::Transfer, cause));
        let is_own = is_long && self.work.is_own_receive_short();
        error.context.receive_size = is_own.then_some(self.receive_size);
        Some(error)
    }

    /// Why this side's oldest message has not arrived, if the peer has no receive for it.
    pub(crate) fn send_delay(&self) -> Option<Error> {
        // The queue pair exists while this connection is referenced.
        let waited = self.work.qp.not_ready_for().ok()??;
        let for_ms = waited.as_millis() as u64;
        let cause = Cause::PeerNotReady { for_ms };
        Some(self.explain(Error::new(Step::Transfer, cause)))
    }

    /// Adds addresses and device to an error.
    pub(crate) fn explain(&self, error: Error) -> Error {
        error
            .between(self.addresses.local, self.addresses.remote)
            .on(&self.device, self.addresses.sgid)
    }

    pub(crate) fn queue_pair(&self) -> &Arc<dyn Qp> {
        &self.work.qp
    }
}

/// Returns whether an event ends an established connection.
pub(crate) fn ends_connection(event: EventType) -> bool {
    match event {
        EventType::Disconnected
        | EventType::DeviceRemoval
        // The accepting peer gave up before it received this side's RTU.
        | EventType::Rejected
        // This event follows one of the others.
        | EventType::TimewaitExit => true,
        // An address change ends nothing: lost packets are retransmitted, or the work fails. The
        // remaining events belong to the handshake, which is over, or were written by the program.
        _ => false,
    }
}

impl QueuePairOwner for Inner {
    fn id_is_destroyed(&self) {
        if !self.is_disconnected() {
            self.closing.store(true, Ordering::Release);
        }
        // The peer's confirmation would arrive at the id.
        self.disconnected.store(true, Ordering::Release);
        self.work.nudge();
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner")
            .field("local", &self.addresses.local)
            .field("remote", &self.addresses.remote)
            .field("device", &self.device)
            .field("qp_num", &self.work.qp.qpn())
            .field("closing", &self.closing)
            .field("disconnected", &self.disconnected)
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.work.pool.is_some() {
            // Take the completions of shared receives, whose numbers are lost with the queue pair.
            self.id.fail_queue_pair();
            let _ = self.work.collect();
        }
        // Destroy the queue pair first, so that no posted buffer is in use when the table frees
        // them.
        let _ = self.work.qp.destroy();
        if self.work.pool.is_some() {
            self.work.return_shared();
        }
    }
}
