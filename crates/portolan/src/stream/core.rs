//! The state of a stream, shared by its handles: who drives it, who waits, and how it ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use portolan_port_sharing::room::{self, with_room};
use portolan_provider::cm::{EventType, IdAddresses};
use portolan_provider::verbs::{WcStatus, WorkCompletion};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_rsocket::{Close, Endpoint, Phase, Signalling};
use portolan_threads::lock::{Condvar, Mutex, MutexGuard};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;

use super::check_peer;
use super::error::io_error;
use super::options::StreamOptions;
use super::queues::{BATCH, Queues, Reaped};
use crate::cm::{CmId, EventChannel};
use crate::connection::{Spin, ends_connection};
use crate::deadline;

/// What a caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Data, or the end of the peer's direction.
    Read = 0,
    /// Room for data.
    Write = 1,
}

/// How long a caller waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Not at all.
    No,
    /// Until this moment; without end for `None`.
    Until(Option<Instant>),
}

/// A stream's queues, id and state.
pub(crate) struct Core {
    state: Mutex<State>,
    /// Someone advanced the stream while others waited.
    advanced: Condvar,
    queues: Queues,
    pub(crate) id: CmId,
    events: EventChannel,
    pub(crate) addresses: IdAddresses,
    device: String,
    spin: Spin,
    pub(crate) nonblocking: AtomicBool,
    pub(crate) keepalive: Mutex<Option<Duration>>,
    /// Wakes the thread that sleeps for all.
    rouser: OnceLock<OwnedFd>,
    /// For event loops of the program.
    readiness: Readiness,
}

/// The descriptor for event loops.
#[derive(Debug)]
struct Readiness {
    /// Readable while there are completions or events, or the bell rings.
    all: OwnedFd,
    /// Rings if another caller has advanced what an event loop waits for.
    bell: OwnedFd,
}

struct State {
    endpoint: Endpoint,
    /// The peer has confirmed the connection. Until then nothing is posted, because its queue pair may not be ready.
    is_established: bool,
    /// Why the stream failed.
    failure: Option<Error>,
    /// The connection manager has reported the end.
    is_hung_up: bool,
    /// A thread sleeps for all that wait.
    is_driven: bool,
    /// Threads that wait for that one.
    waiters: u32,
    /// What an event loop found not ready, by direction.
    wanted: [bool; 2],
    is_ringing: bool,
    /// Tasks that wait, by direction.
    wakers: [Option<Waker>; 2],
    /// Read and write timeouts.
    timeouts: [Option<Duration>; 2],
    /// When the last keepalive was sent.
    last_message: Instant,
}

impl Core {
    /// Creates the queues of an id that is bound to a device.
    pub(crate) fn new(id: CmId, events: EventChannel, options: &StreamOptions) -> Result<Self> {
        let device = id.device()?;
        let queues = Queues::new(&id, &device, options)?;
        let readiness = Readiness::of([queues.channel.as_fd(), events.as_fd()])?;
        let endpoint = Endpoint::new(queues.config, queues.local_memory());
        Ok(Self {
            state: Mutex::new(State {
                endpoint,
                is_established: false,
                failure: None,
                is_hung_up: false,
                is_driven: false,
                waiters: 0,
                wanted: [false; 2],
                is_ringing: false,
                wakers: [None, None],
                timeouts: [None; 2],
                last_message: Instant::now(),
            }),
            advanced: Condvar::new(),
            queues,
            addresses: id.addresses()?,
            id,
            events,
            device: device.name().to_owned(),
            spin: Spin::new(),
            nonblocking: AtomicBool::new(false),
            keepalive: Mutex::new(options.keepalive),
            rouser: OnceLock::new(),
            readiness,
        })
    }

    /// What to tell the peer when connecting.
    pub(crate) fn conn_data(&self) -> Vec<u8> {
        self.state.lock().endpoint.conn_data().encode().to_vec()
    }

    /// The peer's private data came.
    ///
    /// # Errors
    /// The peer does not speak the protocol.
    pub(crate) fn connected(&self, private_data: &[u8], is_established: bool) -> Result<()> {
        let peer = check_peer(private_data).map_err(|error| self.explain(error))?;
        let mut state = self.state.lock();
        state.endpoint.connected(peer);
        state.is_established |= is_established;
        self.settle(&mut state);
        Ok(())
    }

    pub(crate) fn is_iwarp(&self) -> bool {
        self.queues.config.signalling == Signalling::Sends
    }

    pub(crate) fn events(&self) -> &EventChannel {
        &self.events
    }

    pub(crate) fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Reads what has arrived; 0 at the end of the peer's direction.
    pub(crate) fn read(&self, into: &mut [u8], wait: Wait, peeks: bool) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        self.wait_until(Direction::Read, wait, |state| {
            self.take_data(state, into, peeks)
        })?
    }

    fn take_data(
        &self,
        state: &mut State,
        into: &mut [u8],
        peeks: bool,
    ) -> Option<io::Result<usize>> {
        if state.endpoint.unread_bytes() == 0 {
            return match state.endpoint.is_read_closed() {
                false => None,
                true if state.endpoint.phase() == Phase::Failed => Some(Err(self.broken(state))),
                true => Some(Ok(0)),
            };
        }
        let pieces = state.endpoint.peek(0, into.len());
        let length = pieces.length() as usize;
        self.queues.scatter(pieces, &mut into[..length]);
        if !peeks {
            state.endpoint.consume(pieces.length());
            self.settle(state);
        }
        Some(Ok(length))
    }

    /// Writes what there is room for.
    pub(crate) fn write(&self, data: &[u8], wait: Wait) -> io::Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        self.wait_until(Direction::Write, wait, |state| self.give_data(state, data))?
    }

    fn give_data(&self, state: &mut State, data: &[u8]) -> Option<io::Result<usize>> {
        if state.endpoint.is_write_closed() {
            return Some(Err(self.broken(state)));
        }
        if !state.is_established {
            return None;
        }
        let mut written = 0;
        while let Some((length, post)) = state.endpoint.next_write(data.len() - written) {
            let next = written + length as usize;
            self.post(state, &post, &data[written..next]);
            self.settle(state);
            written = next;
        }
        (written > 0).then_some(Ok(written))
    }

    /// Writes to what the peer has mapped at `offset`; `None` if nothing is mapped there.
    pub(crate) fn write_direct(
        &self,
        data: &[u8],
        offset: u64,
        wait: Wait,
    ) -> io::Result<Option<usize>> {
        if data.is_empty() {
            return Ok(Some(0));
        }
        self.wait_until(Direction::Write, wait, |state| {
            if state.endpoint.is_write_closed() {
                return Some(Err(self.broken(state)));
            }
            if !state.is_established {
                return None;
            }
            let mut written = 0;
            while written < data.len() {
                let (at, left) = (offset.wrapping_add(written as u64), &data[written..]);
                match state
                    .endpoint
                    .next_direct(left.len(), at, self.queues.table())
                {
                    None => break,
                    Some(None) if written == 0 => return Some(Ok(None)),
                    Some(None) => break,
                    Some(Some((length, post))) => {
                        self.post(state, &post, &left[..length as usize]);
                        self.settle(state);
                        written += length as usize;
                    }
                }
            }
            (written > 0).then_some(Ok(Some(written)))
        })?
    }

    /// Something with the endpoint; posts what follows from it.
    pub(crate) fn with_endpoint<T>(&self, act: impl FnOnce(&mut Endpoint) -> T) -> T {
        let mut state = self.state.lock();
        let done = act(&mut state.endpoint);
        self.settle(&mut state);
        done
    }

    /// Ends a direction. Threads that wait for it go on.
    pub(crate) fn close(&self, which: Close) {
        let mut state = self.state.lock();
        self.advance(&mut state, true);
        state.endpoint.close(which);
        self.settle(&mut state);
        self.announce(&mut state);
        if state.is_driven
            && let Some(rouser) = self.rouser.get()
        {
            ring(rouser);
        }
    }

    /// Whether everything sent has reached the peer, or never will.
    pub(crate) fn is_flushed(&self) -> bool {
        let mut state = self.state.lock();
        self.advance(&mut state, true);
        let is_broken = state.endpoint.phase() == Phase::Failed || state.is_hung_up;
        is_broken || state.endpoint.is_flushed() && state.is_established
    }

    /// Waits until everything sent has reached the peer, the stream broke, or the deadline passed.
    pub(crate) fn flush(&self, wait: Wait) -> io::Result<()> {
        self.wait_until(Direction::Write, wait, |state| {
            let is_broken = state.endpoint.phase() == Phase::Failed || state.is_hung_up;
            (is_broken || state.endpoint.is_flushed() && state.is_established).then_some(())
        })
    }

    /// Disconnects. What was not flushed is lost.
    pub(crate) fn disconnect(&self) {
        let is_over = {
            let mut state = self.state.lock();
            std::mem::replace(&mut state.is_hung_up, true)
        };
        if !is_over {
            // Fails if the peer was faster.
            let _ = self.id.disconnect();
        }
    }

    /// Whether data can be read and written now; a broken stream can be both, and the call reports why.
    pub(crate) fn ready(&self) -> Ready {
        let mut state = self.state.lock();
        self.advance(&mut state, true);
        Ready::of(&state)
    }

    /// Prepares the descriptor of [`Core::readiness`] for a wait for these directions; returns what is ready already.
    pub(crate) fn prepare_wait(&self, directions: [bool; 2]) -> Ready {
        let mut state = self.state.lock();
        state.wanted = directions;
        self.rest(&mut state);
        self.advance(&mut state, true);
        Ready::of(&state)
    }

    #[cfg(feature = "tokio")]
    /// As [`Core::ready`]; has a task woken when more may be.
    pub(crate) fn ready_or_wake(&self, direction: Direction, waker: &Waker) -> Ready {
        let mut state = self.state.lock();
        let place = &mut state.wakers[direction as usize];
        if !place.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *place = Some(waker.clone());
        }
        self.rest(&mut state);
        self.advance(&mut state, true);
        Ready::of(&state)
    }

    /// Reads and clears the error that ended the stream.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        let mut state = self.state.lock();
        self.advance(&mut state, true);
        state.failure.take().map(io_error)
    }

    pub(crate) fn timeout(&self, direction: Direction) -> Option<Duration> {
        self.state.lock().timeouts[direction as usize]
    }

    pub(crate) fn set_timeout(&self, direction: Direction, timeout: Option<Duration>) {
        self.state.lock().timeouts[direction as usize] = timeout;
    }

    /// How the stream's own calls wait.
    pub(crate) fn wait(&self, direction: Direction) -> Wait {
        match self.nonblocking.load(Ordering::Relaxed) {
            true => Wait::No,
            false => Wait::Until(self.timeout(direction).map(deadline::after)),
        }
    }

    /// Sends a keepalive if one is due; returns when to call again, `None` once the stream is over.
    pub(crate) fn keep_alive(&self, now: Instant) -> Option<Instant> {
        let interval = (*self.keepalive.lock())?;
        let mut state = self.state.lock();
        self.advance(&mut state, true);
        if matches!(state.endpoint.phase(), Phase::Disconnected | Phase::Failed) {
            return None;
        }
        let due = state.last_message + interval;
        if now < due {
            return Some(due);
        }
        state.last_message = now;
        if state.is_established
            && let Some(post) = state.endpoint.keepalive()
        {
            self.post(&mut state, &post, &[]);
        }
        Some(now + interval)
    }

    /// A descriptor that is readable while something may be ready that was not.
    pub(crate) fn readiness(&self) -> BorrowedFd<'_> {
        self.readiness.all.as_fd()
    }

    /// Waits until `ready` returns a value.
    fn wait_until<T>(
        &self,
        direction: Direction,
        wait: Wait,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> io::Result<T> {
        let mut state = self.state.lock();
        state.wanted[direction as usize] = false;
        let mut turns = None;
        loop {
            self.advance(&mut state, false);
            if let Some(found) = ready(&mut state) {
                if state.waiters > 0 {
                    self.advanced.notify_all();
                }
                return Ok(found);
            }
            let deadline = match wait {
                Wait::No => {
                    state.wanted[direction as usize] = true;
                    self.rest(&mut state);
                    if self.advance(&mut state, true) {
                        continue;
                    }
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Wait::Until(deadline) => deadline,
            };
            if state.is_driven {
                state = self.wait_for_driver(state, deadline);
                if is_past(deadline) && state.is_driven {
                    return ready(&mut state).ok_or_else(|| io::ErrorKind::WouldBlock.into());
                }
                continue;
            }
            if turns.get_or_insert_with(|| self.spin.start()).goes_on() {
                drop(state);
                std::hint::spin_loop();
                state = self.state.lock();
                continue;
            }
            state = self.sleep(state, deadline)?;
            if is_past(deadline) {
                self.advance(&mut state, true);
                return ready(&mut state).ok_or_else(|| io::ErrorKind::WouldBlock.into());
            }
        }
    }

    fn wait_for_driver<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        deadline: Option<Instant>,
    ) -> MutexGuard<'a, State> {
        state.waiters += 1;
        let mut state = match deadline {
            None => self.advanced.wait(state),
            Some(deadline) => {
                self.advanced
                    .wait_timeout(state, deadline::left(deadline))
                    .0
            }
        };
        state.waiters -= 1;
        state
    }

    /// Sleeps for all that wait, until something may have happened.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        deadline: Option<Instant>,
    ) -> io::Result<MutexGuard<'a, State>> {
        let rouser = match self.rouser.get() {
            Some(rouser) => rouser,
            None => {
                let made = make_bell().map_err(|error| io_error(self.explain(error)))?;
                self.rouser.get_or_init(|| made)
            }
        };
        self.rest(&mut state);
        if self.advance(&mut state, true) {
            return Ok(state);
        }
        state.is_driven = true;
        drop(state);
        let slept = self.poll(rouser, deadline);
        let mut state = self.state.lock();
        state.is_driven = false;
        silence(rouser);
        if state.waiters > 0 {
            self.advanced.notify_all();
        }
        slept.map(|()| state)
    }

    fn poll(&self, rouser: &OwnedFd, deadline: Option<Instant>) -> io::Result<()> {
        let completions: BorrowedFd<'_> = self.queues.channel.as_fd();
        let mut fds = [
            PollFd::new(&completions, PollFlags::IN),
            PollFd::new(&self.events, PollFlags::IN),
            PollFd::new(rouser, PollFlags::IN),
        ];
        let left = deadline.map(|at| Timespec::try_from(deadline::left(at)).unwrap_or_default());
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Takes the notifications that were given, and asks for the next, before a wait.
    fn rest(&self, state: &mut State) {
        // Whoever sleeps needs the notification to wake up.
        if !state.is_driven {
            while let Ok(Some(_)) = self.queues.channel.take_event() {}
        }
        if let Err(error) = self.queues.cq.arm(false) {
            self.fail(state, error);
        }
        if state.is_ringing {
            silence(&self.readiness.bell);
            state.is_ringing = false;
            // The other direction may be awaited, and ready still.
            self.announce(state);
        }
    }

    /// Handles completions, and events if asked to; returns whether there were any.
    fn advance(&self, state: &mut State, with_events: bool) -> bool {
        let mut any = self.collect(state);
        if with_events || state.failure.is_some() {
            any |= self.take_events(state);
        }
        if any {
            self.settle(state);
            self.announce(state);
        }
        any
    }

    fn collect(&self, state: &mut State) -> bool {
        let mut completions = [WorkCompletion::EMPTY; BATCH];
        let mut any = false;
        loop {
            let count = match self.queues.reap(&mut completions) {
                Ok(count) => count,
                Err(error) => {
                    self.fail(state, error);
                    return any;
                }
            };
            for completion in &completions[..count] {
                self.take_completion(state, completion);
            }
            any |= count > 0;
            if count < BATCH {
                return any;
            }
        }
    }

    fn take_completion(&self, state: &mut State, completion: &WorkCompletion) {
        let is_success = completion.status == WcStatus::Success;
        match self.queues.read(completion, is_success) {
            Reaped::Sent(id) => {
                state.endpoint.on_sent(id);
                if !is_success {
                    let cause = Cause::WorkFailed(completion.status);
                    self.fail(state, Error::new(Step::Transfer, cause));
                }
            }
            // The event or the failed work that follows says why.
            Reaped::Flushed => {}
            Reaped::Message { number, place } => {
                // A peer that sends has confirmed the connection.
                state.is_established = true;
                let taken = state.endpoint.on_message(number, self.queues.table());
                let taken = taken.map_err(|violation| {
                    let (what, expected) = ("message", "one of the rsocket protocol");
                    Error::invalid(Step::Transfer, what, expected, violation)
                });
                let posted = taken.and_then(|_| self.queues.post_receive(place));
                if let Err(error) = posted {
                    self.fail(state, error);
                }
            }
        }
    }

    fn take_events(&self, state: &mut State) -> bool {
        let mut any = false;
        loop {
            let event = match self.events.try_next_event() {
                Ok(Some(event)) => event,
                Ok(None) => return any,
                Err(error) => {
                    self.fail(state, error);
                    return any;
                }
            };
            any = true;
            if event.event_type() == EventType::Established {
                state.is_established = true;
            } else if ends_connection(event.event_type())
                || event.failure().is_some() && !state.is_established
            {
                // What the peer sent before it went.
                self.collect(state);
                let gone = || Error::new(Step::Transfer, Cause::Disconnected);
                let error = event.failure().unwrap_or_else(gone);
                self.fail(state, error);
                if !state.is_hung_up {
                    state.is_hung_up = true;
                    // Answers the peer's request.
                    let _ = self.id.disconnect();
                }
            }
        }
    }

    /// Notes the first reason of a failure. A stream that has ended in order does not fail any more.
    fn fail(&self, state: &mut State, error: Error) {
        state.endpoint.fail();
        if state.endpoint.phase() == Phase::Failed && state.failure.is_none() {
            state.failure = Some(self.explain(error));
        }
    }

    /// Posts what the endpoint wants posted.
    fn settle(&self, state: &mut State) {
        if !state.is_established {
            return;
        }
        while let Some(post) = state.endpoint.next_post() {
            self.post(state, &post, &[]);
        }
    }

    fn post(&self, state: &mut State, post: &portolan_rsocket::Post, data: &[u8]) {
        if let Err(error) = self.queues.post(post, data) {
            state.endpoint.on_sent(post.id);
            self.fail(state, error);
        }
    }

    /// Tells everyone who waits that the stream has advanced.
    fn announce(&self, state: &mut State) {
        if state.waiters > 0 {
            self.advanced.notify_all();
        }
        let ready = Ready::of(state);
        for direction in [Direction::Read, Direction::Write] {
            if ready.is(direction) {
                let waker = state.wakers[direction as usize].take();
                waker.into_iter().for_each(Waker::wake);
            }
            let is_awaited = state.wanted[direction as usize] && ready.is(direction);
            if is_awaited && !state.is_ringing {
                ring(&self.readiness.bell);
                state.is_ringing = true;
            }
        }
    }

    /// Why nothing can be sent or received.
    fn broken(&self, state: &State) -> io::Error {
        match (&state.failure, state.endpoint.phase()) {
            (Some(error), _) => {
                let error = error.clone();
                io::Error::new(io::ErrorKind::ConnectionReset, error)
            }
            (None, Phase::Failed) => io::ErrorKind::ConnectionReset.into(),
            _ => io::ErrorKind::BrokenPipe.into(),
        }
    }

    /// Adds addresses and device to an error.
    pub(crate) fn explain(&self, error: Error) -> Error {
        error
            .between(self.addresses.local, self.addresses.remote)
            .on(&self.device, self.addresses.sgid)
    }
}

/// What can be done without waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Data, the end of the peer's direction, or an error can be read.
    pub readable: bool,
    /// Data can be written, or an error is reported.
    pub writable: bool,
    /// Both directions have ended, and everything was read.
    pub hung_up: bool,
    /// The stream broke.
    pub failed: bool,
}

impl Ready {
    fn of(state: &State) -> Self {
        let endpoint = &state.endpoint;
        let phase = endpoint.phase();
        Self {
            readable: endpoint.unread_bytes() > 0 || endpoint.is_read_closed(),
            writable: state.is_established && endpoint.can_send() || endpoint.is_write_closed(),
            hung_up: phase == Phase::Disconnected && endpoint.unread_bytes() == 0,
            failed: phase == Phase::Failed,
        }
    }

    /// Whether a direction is ready.
    pub fn is(self, direction: Direction) -> bool {
        match direction {
            Direction::Read => self.readable,
            Direction::Write => self.writable,
        }
    }
}

impl Readiness {
    fn of(sources: [BorrowedFd<'_>; 2]) -> Result<Self> {
        let failed = |errno| Error::new(Step::Event, room::cause("epoll", errno));
        let all = with_room(|| epoll::create(epoll::CreateFlags::CLOEXEC)).map_err(failed)?;
        let bell = make_bell()?;
        let data = epoll::EventData::new_u64(0);
        for fd in sources.into_iter().chain([bell.as_fd()]) {
            epoll::add(&all, fd, data, epoll::EventFlags::IN).map_err(failed)?;
        }
        Ok(Self { all, bell })
    }
}

fn make_bell() -> Result<OwnedFd> {
    with_room(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))
        .map_err(|errno| Error::new(Step::Event, room::cause("eventfd", errno)))
}

fn is_past(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

fn ring(bell: &OwnedFd) {
    // It cannot overflow: it is written at most once between reads, or rings already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

fn silence(bell: &OwnedFd) {
    // Empty if it does not ring.
    let _ = rustix::io::read(bell, &mut [0u8; 8]);
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("local", &self.addresses.local)
            .field("remote", &self.addresses.remote)
            .field("device", &self.device)
            .field("qp_num", &self.queues.qp.qpn())
            .finish_non_exhaustive()
    }
}

/// Shared by all handles.
pub(crate) type Shared = Arc<Core>;
