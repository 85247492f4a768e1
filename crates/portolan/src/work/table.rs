//! The posted work of one queue pair, and its completion queue.

use portolan_threads::lock::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use portolan_provider::traits::{CompChannel, Cq, Pd, Qp};
use portolan_provider::verbs::{
    RecvWr, SendData, SendFlags, SendOp, SendWr, WcStatus, WorkCompletion,
};
use portolan_provider::{Cause, Error, Result, Step};
use slab::Slab;

use super::item::Item;
use super::keepalive::{Keepalive, PROBE, Silence};
use super::objects::{Depths, Objects};
use super::outcome::Failed;
use super::pieces::Gather;
use super::shared_receives::Pool;
use super::slot::{Abandoned, Kind, MORE, Owner, Slot};
use crate::bell::{Bell, make_bell};
use crate::connection::Transport;
use crate::deadline;
use crate::sys::Buffer;

/// The posted work of one queue pair.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) qp: Arc<dyn Qp>,
    pub(crate) cq: Arc<dyn Cq>,
    pub(crate) channel: Arc<dyn CompChannel>,
    /// The protection domain of the queue pair.
    pub(crate) pd: Arc<dyn Pd>,
    pub(super) depths: Depths,
    pub(super) keeps_alive: bool,
    pub(crate) transport: Transport,
    /// The receives, if they are not the queue pair's own.
    pub(crate) pool: Option<Arc<Pool>>,
    pub(super) state: Mutex<TableState>,
    /// Held from taking completions until they are recorded: otherwise messages that two threads take could be
    /// recorded in the other order, and a thread that finds no completion could miss one that another has taken.
    pub(super) collecting: Mutex<()>,
    /// Whether [`TableState::broken`] is known, for waits to look without the lock.
    pub(super) has_broken: AtomicBool,
    turned: Condvar,
    /// Readable if completions were dispatched while the driver slept; see [`Work::fall_asleep`].
    /// Created at the first sleep: most connections of a busy server never sleep.
    roused: OnceLock<OwnedFd>,
}

#[derive(Debug, Default)]
pub(super) struct TableState {
    pub(super) slots: Slab<Slot>,
    /// Completed receives of the ring, oldest first.
    pub(super) arrived: VecDeque<usize>,
    /// Work whose waiter was cancelled, oldest first: posted or completed.
    pub(super) abandoned: VecDeque<Abandoned>,
    /// Current number of posted work requests, by kind.
    posted: [u32; 3],
    /// Whether a thread or task drives the completion queue.
    driving: bool,
    /// Whether the driver sleeps on descriptors.
    asleep: bool,
    /// Number of threads that wait for the driver.
    waiters: u32,
    /// Number of dispatches of completions; waiters compare it.
    pub(super) turns: u64,
    /// Tasks that wait for the next dispatch, which wakes them all.
    pub(super) wakers: Slab<Waker>,
    /// Waiters that have a descriptor of their own.
    pub(super) bells: Slab<Arc<Bell>>,
    /// The first completion error, after which the queue pair is in error.
    pub(super) broken: Option<WcStatus>,
    /// That was a message longer than a receive of the connection's own.
    pub(super) is_own_receive_short: bool,
    pub(super) silence: Option<Silence>,
    /// Whether the queue pair continues after a message that was longer than its receive (UC).
    pub(super) survives_long: bool,
    /// Receives that took no message, to be posted again: too short for it, or shared and flushed.
    pub(super) unused: Vec<Gather>,
}

/// A number of dispatches at some time; see [`Work::turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn(pub(super) u64);

impl Work {
    pub(crate) fn new(
        objects: Objects,
        depths: Depths,
        keepalive: Option<Keepalive>,
        transport: Transport,
        pool: Option<Arc<Pool>>,
    ) -> Self {
        let silence = keepalive.map(|settings| Silence::new(settings, Instant::now()));
        let Objects {
            qp,
            cq,
            channel,
            pd,
        } = objects;
        Self {
            qp,
            cq,
            channel,
            pd,
            depths,
            keeps_alive: silence.is_some(),
            transport,
            pool,
            state: Mutex::new(TableState {
                silence,
                survives_long: transport == Transport::Uc,
                ..TableState::default()
            }),
            collecting: Mutex::new(()),
            has_broken: AtomicBool::new(false),
            turned: Condvar::new(),
            roused: OnceLock::new(),
        }
    }

    /// Posts a send. Pass the returned key to [`Work::taken`].
    pub(crate) fn post_send(&self, item: Item) -> std::result::Result<usize, Failed> {
        if item.is_long() {
            return self.post_as_one(vec![item]);
        }
        let Item {
            op,
            gather: pieces,
            length,
            flags,
        } = item;
        let limit = self.depths.gather as usize;
        let sges = match pieces.sges(&self.pd, 0..length, limit) {
            Ok(sges) => sges,
            Err(error) => return Err(pieces.failed(error)),
        };
        let data = SendData::Sges(sges.as_slice());
        let flags = flags | SendFlags::SIGNALED | SendFlags::SOLICITED;
        self.post(Kind::Send, pieces, length, |wr_id| {
            self.qp.post_send(&SendWr {
                wr_id,
                op,
                data,
                flags,
                ud: None,
                srq: None,
            })
        })
    }

    /// Posts a send of bytes that are copied at once. Pass the returned key to [`Work::taken`].
    pub(crate) fn post_inline(
        &self,
        op: SendOp,
        bytes: &[u8],
        flags: SendFlags,
    ) -> std::result::Result<usize, Failed> {
        let nothing = Gather::from(Vec::<u8>::new());
        let limit = self.depths.inline as usize;
        if bytes.len() > limit {
            let (what, expected) = ("inline data", format_args!("at most {limit} bytes"));
            let error = Error::invalid(Step::PostSend, what, expected, bytes.len());
            return Err(nothing.failed(error));
        }
        let flags = flags | SendFlags::SIGNALED | SendFlags::SOLICITED;
        self.post(Kind::Send, nothing, bytes.len(), |wr_id| {
            self.qp.post_send(&SendWr {
                wr_id,
                op,
                data: SendData::Inline(bytes),
                flags,
                ud: None,
                srq: None,
            })
        })
    }

    /// Reserves slots for sends. Returns whether there are enough.
    pub(super) fn claim_sends(&self, count: usize) -> bool {
        let mut state = self.state.lock();
        let posted = state.posted(Kind::Send);
        let total = u32::try_from(count)
            .ok()
            .and_then(|count| posted.checked_add(count));
        match total.filter(|total| *total <= self.depths.sends) {
            Some(total) => {
                *posted = total;
                true
            }
            None => false,
        }
    }

    /// Inserts sends whose slots are reserved. Returns their keys.
    pub(super) fn insert_sends(&self, sends: impl Iterator<Item = Slot>) -> Vec<usize> {
        let mut state = self.state.lock();
        sends.map(|slot| state.slots.insert(slot)).collect()
    }

    /// Removes sends that were not posted.
    pub(super) fn remove_sends(&self, keys: &[usize]) -> Vec<Gather> {
        let mut state = self.state.lock();
        let mut remove = |key: &usize| {
            let slot = state.slots.remove(*key);
            *state.posted(slot.kind) -= slot.requests;
            slot.pieces
        };
        keys.iter().map(&mut remove).collect()
    }

    /// Posts a receive into the whole `buffer`.
    pub(crate) fn post_receive(
        &self,
        buffer: Buffer,
        ring: bool,
    ) -> std::result::Result<usize, Failed> {
        let kind = if ring { Kind::Ring } else { Kind::Receive };
        let pieces = Gather::from(buffer);
        let checked = pieces.check_writable(kind.step());
        let sges = checked.and_then(|()| pieces.sges(&self.pd, 0..pieces.len(), 1));
        let sges = match sges {
            Ok(sges) => sges,
            Err(mut error) => {
                error.step = kind.step();
                return Err(pieces.failed(error));
            }
        };
        let sges = sges.as_slice();
        self.post(kind, pieces, 0, |wr_id| {
            self.qp.post_recv(&RecvWr { wr_id, sges })
        })
    }

    fn post(
        &self,
        kind: Kind,
        pieces: Gather,
        length: usize,
        post: impl FnOnce(u64) -> Result<()>,
    ) -> std::result::Result<usize, Failed> {
        let key = {
            let mut state = self.state.lock();
            let (limit, what) = self.depths.of(kind);
            let posted = state.posted(kind);
            if *posted >= limit {
                let cause = Cause::LimitReached {
                    what,
                    limit: u64::from(limit),
                };
                return Err(pieces.failed(Error::new(kind.step(), cause)));
            }
            *posted += 1;
            state.slots.insert(Slot::new(pieces, kind, 1, length))
        };
        // Post after unlocking: other completions may be collected meanwhile.
        match post(key as u64) {
            Ok(()) => Ok(key),
            Err(error) => {
                let mut state = self.state.lock();
                *state.posted(kind) -= 1;
                Err(state.slots.remove(key).pieces.failed(error))
            }
        }
    }

    /// Takes the buffers and the result of the work `key`, if it has completed. The result's length is that of the
    /// whole operation.
    pub(crate) fn taken(&self, key: usize) -> Option<(Gather, WorkCompletion, usize)> {
        let mut state = self.state.lock();
        let done = state.slots.get(key)?.done?;
        let slot = state.slots.remove(key);
        let length = match slot.kind {
            Kind::Send => slot.length,
            Kind::Ring | Kind::Receive => done.byte_len as usize,
        };
        Some((slot.pieces, done, length))
    }

    /// Whether the work `key` has completed.
    pub(crate) fn is_done(&self, key: usize) -> bool {
        let state = self.state.lock();
        let slot = state.slots.get(key);
        slot.is_none_or(|slot| slot.done.is_some())
    }

    /// Whether the work `key` has completed because the queue pair was flushed.
    pub(crate) fn is_flushed(&self, key: usize) -> bool {
        let state = self.state.lock();
        let done = state.slots.get(key).and_then(|slot| slot.done);
        done.is_some_and(|done| done.status == WcStatus::WrFlushErr)
    }

    /// Takes the ring's oldest message.
    pub(crate) fn arrival(&self) -> Option<(Buffer, WorkCompletion)> {
        let mut state = self.state.lock();
        let key = state.arrived.pop_front()?;
        let slot = state.slots.remove(key);
        let (buffer, _) = slot.pieces.split();
        slot.done.map(|done| (buffer, done))
    }

    /// Whether the program holds all of the connection's own receives, so that the peer's next message would wait.
    pub(crate) fn holds_all(&self) -> bool {
        let state = self.state.lock();
        state.posted[Kind::Ring as usize] == 0 && state.arrived.is_empty()
    }

    /// The completion error that broke the queue pair.
    pub(crate) fn broken(&self) -> Option<WcStatus> {
        let has_broken = self.has_broken.load(Ordering::Acquire);
        has_broken.then(|| self.state.lock().broken)?
    }

    /// Whether a message longer than a receive of the connection's own broke the queue pair.
    pub(crate) fn is_own_receive_short(&self) -> bool {
        self.state.lock().is_own_receive_short
    }

    /// The number of dispatches so far. While it is unchanged, no work has completed.
    pub(crate) fn turn(&self) -> Turn {
        Turn(self.state.lock().turns)
    }

    /// Wakes all waiters to check again, after something other than a completion.
    pub(crate) fn nudge(&self) {
        let wakers = self.wake_all(&mut self.state.lock());
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn wake_all(&self, state: &mut TableState) -> Vec<Waker> {
        state.turns += 1;
        self.notify_waiters(state);
        if std::mem::replace(&mut state.asleep, false)
            && let Some(roused) = self.roused.get()
        {
            // The write fails only if the counter would exceed 2^64 - 2; it is 0 here.
            let _ = rustix::io::write(roused, &1u64.to_ne_bytes());
        }
        for (_, bell) in &state.bells {
            bell.ring();
        }
        state.wakers.drain().collect()
    }

    /// Registers a bell that each dispatch rings. Returns its index.
    pub(crate) fn add_bell(&self, bell: &Arc<Bell>) -> usize {
        self.state.lock().bells.insert(Arc::clone(bell))
    }

    pub(crate) fn remove_bell(&self, place: usize) {
        self.state.lock().bells.try_remove(place);
    }

    /// Becomes the driver of the completion queue. Returns `false` after another driver's dispatch,
    /// or at the deadline.
    pub(crate) fn drive_or_wait(&self, turn: Turn, deadline: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        while state.driving && state.turns == turn.0 {
            let left = deadline.map(deadline::left);
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            state.waiters += 1;
            state = self.wait_turned(state, left);
            state.waiters -= 1;
        }
        // A dispatch meanwhile may have completed the caller's work: it must check before it
        // sleeps.
        state.turns == turn.0 && !std::mem::replace(&mut state.driving, true)
    }

    /// Announces that the driver is about to sleep on descriptors, including the returned one.
    /// Another thread that dispatches completions makes it readable, because the driver may wait
    /// for one of them. Returns `None` if there were dispatches since `turn`.
    pub(crate) fn fall_asleep(&self, turn: Turn) -> Result<Option<BorrowedFd<'_>>> {
        let roused = match self.roused.get() {
            Some(roused) => roused,
            None => {
                let made = make_bell(Step::Transfer)?;
                self.roused.get_or_init(|| made)
            }
        };
        let mut state = self.state.lock();
        state.asleep = state.turns == turn.0;
        Ok(state.asleep.then(|| roused.as_fd()))
    }

    /// Announces that the driver is awake; `roused` is the descriptor from [`Work::fall_asleep`].
    pub(crate) fn wake_up(&self, roused: BorrowedFd<'_>) {
        let was_roused = !std::mem::replace(&mut self.state.lock().asleep, false);
        if was_roused {
            // It was written under the lock, so the read does not block.
            let _ = rustix::io::read(roused, &mut [0; 8]);
        }
    }

    /// Hands the role of driver to a waiter.
    pub(crate) fn stop_driving(&self) {
        let mut state = self.state.lock();
        state.driving = false;
        self.notify_waiters(&state);
    }

    fn wait_turned<'a>(
        &self,
        state: MutexGuard<'a, TableState>,
        left: Option<Duration>,
    ) -> MutexGuard<'a, TableState> {
        match left {
            None => self.turned.wait(state),
            Some(left) => self.turned.wait_timeout(state, left).0,
        }
    }

    /// Notifies waiters if there are any, because a notification costs a system call.
    fn notify_waiters(&self, state: &TableState) {
        if state.waiters > 0 {
            self.turned.notify_all();
        }
    }
}

impl TableState {
    /// Records a completion; returns the work if its transfer was dropped.
    pub(super) fn finish(&mut self, completion: &WorkCompletion) -> Option<Slot> {
        let failed = completion.status != WcStatus::Success;
        if completion.wr_id == PROBE {
            if let Some(silence) = &mut self.silence {
                silence.probe_completed();
            }
            self.note_failure(completion);
            return None;
        }
        if completion.wr_id & MORE != 0 {
            self.note_failure(completion);
            let key = usize::try_from(completion.wr_id & !MORE).ok()?;
            self.slots.get_mut(key)?.failed.get_or_insert(*completion);
            return None;
        }
        let key = usize::try_from(completion.wr_id).ok()?;
        // Each work request completes once; ignore a completion of other work.
        let slot = self.slots.get_mut(key).filter(|slot| slot.done.is_none())?;
        let (kind, requests) = (slot.kind, slot.requests);
        slot.done = Some(slot.failed.unwrap_or(*completion));
        let unwanted = slot.owner == Owner::Nobody || (kind == Kind::Ring && failed);
        *self.posted(kind) -= requests;
        let is_long = self.survives_long && completion.status == WcStatus::LocLenErr;
        if !is_long {
            self.note_failure(completion);
            self.is_own_receive_short |=
                kind == Kind::Ring && completion.status == WcStatus::LocLenErr;
        }
        if unwanted {
            let slot = self.slots.remove(key);
            if is_long && kind == Kind::Ring {
                self.unused.push(slot.pieces);
                return None;
            }
            return Some(slot);
        }
        if kind == Kind::Ring {
            self.arrived.push_back(key);
        }
        None
    }

    /// Stores the status that broke the queue pair: the first one other than flush errors.
    pub(super) fn note_failure(&mut self, completion: &WorkCompletion) {
        let failed = completion.status != WcStatus::Success;
        if failed && (self.broken.is_none() || self.broken == Some(WcStatus::WrFlushErr)) {
            self.broken = Some(completion.status);
        }
    }

    /// Returns whether sends are posted.
    pub(super) fn is_sending(&self) -> bool {
        self.posted[Kind::Send as usize] > 0
    }

    fn posted(&mut self, kind: Kind) -> &mut u32 {
        &mut self.posted[kind as usize]
    }
}

impl Depths {
    /// The maximum of abandoned work to keep: as much as can be posted.
    pub(super) fn abandoned(self) -> usize {
        self.sends.saturating_add(self.by_hand) as usize
    }

    fn of(self, kind: Kind) -> (u32, &'static str) {
        match kind {
            Kind::Send => (self.sends, "posted sends"),
            Kind::Ring => (self.ring, "receives of the connection's own"),
            Kind::Receive => (self.by_hand, "receives posted by hand"),
        }
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
