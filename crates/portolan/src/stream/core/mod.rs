//! The state of a stream, which its handles share: drivers, waiters, and the end of the stream.

mod locked;
mod own_wait;
mod progress;
mod readiness;
mod ready;
mod signal;
#[cfg(feature = "tokio")]
mod tasks;
mod wait;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use portolan_provider::cm::IdAddresses;
use portolan_provider::traits::Notify;
use portolan_provider::{Error, Result};
use portolan_rsocket::{Close, Endpoint, Phase, Signalling};
use portolan_threads::lock::{Condvar, Mutex};
use portolan_threads::spin::Spin;

use locked::Locked;
pub use own_wait::{Descriptors, SocketSleep};
use readiness::Readiness;
use ready::Waits;
pub use ready::{Direction, Ready};
pub(crate) use signal::Signal;
#[cfg(feature = "tokio")]
pub(super) use tasks::Found;

use super::check_peer;
use super::error::io_error;
use super::options::StreamOptions;
use super::queues::{Drive, Queues};
use crate::cm::{CmId, EventChannel};
use crate::deadline;

/// What the private data of an accepting peer should be.
const PEER_OF_CONNECT: &str = "that of an rsocket (portolan::StreamListener, rsocket(7))";

/// How long a caller waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Not at all. The descriptor then signals when to try again.
    No,
    /// Not at all, and the descriptor signals nothing: the caller tries again, or prepares a wait.
    Glance,
    /// As [`Wait::Glance`], and without driving the device: what was prepared for a wait stays prepared.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "tasks only"))]
    Look,
    /// Until this time; forever for `None`.
    Until(Option<Instant>),
}

/// A stream's queues, id and state.
pub(crate) struct Core {
    state: Mutex<State>,
    /// Another caller has advanced the stream.
    advanced: Condvar,
    queues: Queues,
    pub(crate) id: CmId,
    events: EventChannel,
    pub(crate) addresses: IdAddresses,
    device: String,
    spin: Spin,
    pub(crate) nonblocking: AtomicBool,
    pub(crate) keepalive: Mutex<Option<Duration>>,
    /// For waiting threads and event loops of the program.
    readiness: Readiness,
    /// See [`Core::on_found`].
    on_found: OnceLock<Box<OnFound>>,
}

/// The function of [`Core::on_found`].
type OnFound = dyn Fn(Ready) + Send + Sync;

struct State {
    endpoint: Endpoint,
    /// The peer has confirmed the connection. Nothing is posted before, because its queue pair may not be ready.
    is_established: bool,
    /// Why the stream failed.
    failure: Option<Error>,
    /// The connection manager has reported the end.
    is_hung_up: bool,
    /// A thread sleeps for all waiters.
    is_driven: bool,
    /// Number of threads that wait for the sleeping one.
    waiters: u32,
    /// The directions that an event loop found not ready.
    wanted: [bool; 2],
    /// The waits by the descriptor.
    waits: Waits,
    is_ringing: bool,
    /// The directions for which a notification is requested, since the last completion and the last drive.
    is_prepared: [bool; 2],
    /// The peer or this side broke the connection: the reason is in a completion of what was sent.
    has_flushed_receives: bool,
    /// This side has written since it last read, so an answer may arrive soon.
    expects_answer: bool,
    /// Tasks that wait, by direction.
    wakers: [Option<Waker>; 2],
    /// Those of them whose direction has become ready. They are called without the lock.
    woken: [Option<Waker>; 2],
    /// Read and write timeouts.
    timeouts: [Option<Duration>; 2],
    /// The time of the last keepalive.
    last_message: Instant,
}

impl State {
    /// Whether all sent data has reached the peer or never will.
    fn is_flushed(&self) -> bool {
        let is_broken = self.endpoint.phase() == Phase::Failed || self.is_hung_up;
        is_broken || self.endpoint.is_flushed() && self.is_established
    }

    /// Whether the connection broke, or ended before the peer had all data of this side. Only for a stream that is not
    /// open any more.
    fn has_lost(&self) -> bool {
        match self.endpoint.phase() {
            Phase::Failed => true,
            Phase::Disconnected => self.endpoint.has_unconfirmed_data(),
            _ => false,
        }
    }

    /// Whether the peer has not been told of a shutdown, because the connection is not established or the peer takes no
    /// messages.
    fn has_control_waiting(&self) -> bool {
        self.endpoint.phase() != Phase::Failed && self.endpoint.has_control_waiting()
    }
}

impl Core {
    /// Creates the queues of an id that is bound to a device.
    pub(crate) fn new(
        id: CmId,
        events: EventChannel,
        signal: Arc<Signal>,
        options: &StreamOptions,
    ) -> Result<Self> {
        let device = id.device()?;
        let (queues, channel) = Queues::new(&id, &device, options, &signal)?;
        let readiness = match channel {
            None => Readiness::called(signal),
            Some(channel) => Readiness::of(channel, events.descriptor()?)?,
        };
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
                waits: Waits::default(),
                is_ringing: false,
                is_prepared: [false; 2],
                has_flushed_receives: false,
                expects_answer: false,
                wakers: [None, None],
                woken: [None, None],
                timeouts: [None; 2],
                last_message: Instant::now(),
            }),
            advanced: Condvar::new(),
            queues,
            addresses: id.addresses()?,
            id,
            events,
            device: device.name().to_owned(),
            spin: Spin::default(),
            nonblocking: AtomicBool::new(false),
            keepalive: Mutex::new(options.keepalive),
            readiness,
            on_found: OnceLock::new(),
        })
    }

    fn lock(&self) -> Locked<'_> {
        Locked::new(&self.state)
    }

    /// Replaces an event channel that has a descriptor, if the device calls.
    pub(crate) fn release_descriptor(&mut self) -> Result<()> {
        let Readiness::Called { signal, .. } = &self.readiness else {
            return Ok(());
        };
        let signal: Arc<dyn Notify> = signal.clone();
        if let Some(events) = EventChannel::open_calling(self.events.provider().clone(), &signal)? {
            self.id.move_to(&events)?;
            self.events = events;
            // An event may have moved, too.
            signal.notify();
        }
        Ok(())
    }

    /// The private data to send when connecting.
    pub(crate) fn conn_data(&self) -> Vec<u8> {
        self.lock().endpoint.conn_data().encode().to_vec()
    }

    /// Handles the peer's private data.
    ///
    /// # Errors
    /// The peer does not speak the protocol.
    pub(crate) fn connected(&self, private_data: &[u8], is_established: bool) -> Result<()> {
        let peer =
            check_peer(private_data, PEER_OF_CONNECT).map_err(|error| self.explain(error))?;
        let mut state = self.lock();
        state.endpoint.connected(peer);
        state.is_established |= is_established;
        self.settle(&mut state);
        Ok(())
    }

    /// Whether the peer has confirmed the connection, also if the stream has ended since.
    pub(crate) fn is_established(&self) -> bool {
        self.lock().is_established
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

    /// Reads the data that has arrived. Returns 0 at the end of the peer's direction.
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
                // After the peer's end everything has arrived, whatever happens to the connection.
                true if state.endpoint.phase() == Phase::Failed
                    && !state.endpoint.has_peer_ended() =>
                {
                    Some(Err(self.broken(state)))
                }
                true => Some(Ok(0)),
            };
        }
        let mut length = 0;
        // What two buffers have, while a larger one replaces the first. After a short read, programs take the stream for empty.
        while length < into.len() {
            let pieces = state.endpoint.peek(length as u32, into.len() - length);
            if pieces.length() == 0 {
                break;
            }
            let end = length + pieces.length() as usize;
            self.queues.scatter(pieces, &mut into[length..end]);
            length = end;
        }
        state.expects_answer = false;
        if !peeks {
            // No more than is unread, which has 32 bits.
            state.endpoint.consume(length as u32);
            self.settle(state);
        }
        Some(Ok(length))
    }

    /// Writes as much data as there is room for.
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
        state.expects_answer |= written > 0;
        (written > 0).then_some(Ok(written))
    }

    /// Writes to the peer's memory mapped at `offset`. Returns `None` if nothing is mapped there.
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

    /// Calls `work` with the endpoint, and posts the resulting requests.
    pub(crate) fn with_endpoint<T>(&self, act: impl FnOnce(&mut Endpoint) -> T) -> T {
        let mut state = self.lock();
        let done = act(&mut state.endpoint);
        self.settle(&mut state);
        done
    }

    /// Ends a direction and wakes its waiters.
    pub(crate) fn close(&self, which: Close) {
        let mut state = self.lock();
        self.advance(&mut state, true);
        state.endpoint.close(which);
        self.settle(&mut state);
        self.announce(&mut state);
        if state.is_driven {
            self.readiness.rouse();
        }
    }

    /// Whether the peer has not been told of a shutdown.
    pub(crate) fn has_control_waiting(&self) -> bool {
        self.lock().has_control_waiting()
    }

    /// Whether all sent data has reached the peer or never will.
    pub(crate) fn is_flushed(&self) -> bool {
        let mut state = self.lock();
        self.advance(&mut state, true);
        state.is_flushed()
    }

    /// Waits until all sent data has reached the peer, the stream is broken, or the deadline passes.
    pub(crate) fn flush(&self, wait: Wait) -> io::Result<()> {
        self.wait_until(Direction::Write, wait, |state| {
            state.is_flushed().then_some(())
        })
    }

    /// After [`Core::flush`]: whether the stream broke, or data is lost.
    pub(crate) fn has_lost(&self) -> bool {
        let mut state = self.lock();
        self.advance(&mut state, true);
        state.has_lost()
    }

    /// Disconnects. Data that is not flushed is lost.
    pub(crate) fn disconnect(&self) {
        let is_over = {
            let mut state = self.lock();
            std::mem::replace(&mut state.is_hung_up, true)
        };
        if !is_over {
            // Fails if the peer disconnected first.
            let _ = self.id.disconnect();
        }
    }

    /// Which directions are ready. A broken stream is ready in both, and calls report the reason.
    pub(crate) fn ready(&self) -> Ready {
        let mut state = self.lock();
        self.advance(&mut state, true);
        Ready::of(&state)
    }

    /// As [`Core::prepare_wait`], for a thread that waits by the descriptor. While several do, none may reset the
    /// descriptor before the others have seen it.
    pub(crate) fn begin_wait(&self, directions: [bool; 2]) -> Ready {
        let mut state = self.lock();
        let ready = self.prepare(&mut state, directions);
        state.waits.begin(directions, ready);
        ready
    }

    /// Ends what [`Core::begin_wait`] began, which returned `seen`.
    pub(crate) fn end_wait(&self, directions: [bool; 2], seen: Ready) {
        self.lock().waits.end(directions, seen);
    }

    /// Prepares the descriptor of [`Core::readiness`] for a wait for these directions. Returns which of them are
    /// ready already.
    pub(crate) fn prepare_wait(&self, directions: [bool; 2]) -> Ready {
        self.prepare(&mut self.lock(), directions)
    }

    fn prepare(&self, state: &mut State, directions: [bool; 2]) -> Ready {
        // What its caller wanted before, it now looks for itself.
        state.wanted = [false; 2];
        state.waits.forget_wanted();
        self.advance(state, false);
        state.wanted = directions;
        self.rest(state, directions[Direction::Write as usize]);
        self.check(state);
        let ready = Ready::of(state);
        state.waits.want(ready);
        ready
    }

    /// The stream has no owner any more. What it waited for may be ready, and would end each wait for the flush at once.
    pub(crate) fn forget_owner(&self) {
        let mut state = self.lock();
        state.wanted = [false; 2];
        state.waits.forget_wanted();
    }

    /// As [`Core::is_flushed`], and prepares the descriptor for a wait until it is so.
    pub(crate) fn prepare_flush(&self) -> bool {
        let mut state = self.lock();
        self.rest(&mut state, true);
        self.check(&mut state);
        state.is_flushed()
    }

    /// As [`Core::prepare_wait`], for a caller that drives the device itself, until [`Core::stop_driving`]. `None` if the
    /// device does not call.
    ///
    /// If a direction is ready, the call for the next change is requested only with `arms`.
    pub(crate) fn glance(&self, directions: [bool; 2], arms: bool) -> Option<Ready> {
        let Readiness::Called { signal, .. } = &self.readiness else {
            return None;
        };
        let mut state = self.lock();
        state.wanted = [false; 2];
        state.waits.forget_wanted();
        let is_called = !state.is_driven && signal.lower();
        if is_called {
            // A thread that waits by the descriptor may not have seen it yet.
            self.announce(&mut state);
        }
        // Without a call since the last look there are no events.
        let any = self.collect(&mut state, Drive::No);
        let has_events = is_called || state.is_driven;
        self.handled(&mut state, any, has_events);
        let [read, write] = directions;
        let found = Ready::of(&state);
        // The call may have been for such a thread, and there is no next one until it is requested.
        let arms = arms || is_called && state.waits.has_threads();
        if !arms && (read && found.readable || write && found.writable) {
            return Some(found);
        }
        self.arm(&mut state, write, true);
        let any = self.collect(&mut state, Drive::No);
        self.handled(&mut state, any, has_events);
        state.wanted = directions;
        let ready = Ready::of(&state);
        state.waits.want(ready);
        Some(ready)
    }

    /// Drives the device for all streams of the process.
    pub(crate) fn drive(&self) {
        self.queues.receives_cq.drive();
    }

    /// A caller of [`Core::drive`] is about to sleep.
    pub(crate) fn stop_driving(&self) {
        // Fails if the device is gone, and then nothing arrives.
        let _ = self.queues.receives_cq.arm(false);
    }

    /// Calls when the stream may have become ready. Returns false if the device does not call.
    pub(crate) fn set_call(&self, call: Box<dyn Fn() + Send + Sync>) -> bool {
        match &self.readiness {
            Readiness::Called { signal, .. } => signal.set_call(call),
            Readiness::Watched { .. } => return false,
        }
        true
    }

    /// Calls `call` whenever a call on this stream has found that it has advanced, with what is ready then. The first
    /// function is kept.
    pub(crate) fn on_found(&self, call: impl Fn(Ready) + Send + Sync + 'static) {
        self.on_found.get_or_init(|| Box::new(call));
    }

    /// Returns and clears the error that ended the stream.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        let mut state = self.lock();
        self.advance(&mut state, true);
        state.failure.take().map(io_error)
    }

    pub(crate) fn timeout(&self, direction: Direction) -> Option<Duration> {
        self.lock().timeouts[direction as usize]
    }

    pub(crate) fn set_timeout(&self, direction: Direction, timeout: Option<Duration>) {
        self.lock().timeouts[direction as usize] = timeout;
    }

    /// How long the stream's own calls wait.
    pub(crate) fn wait(&self, direction: Direction) -> Wait {
        match self.nonblocking.load(Ordering::Relaxed) {
            true => Wait::No,
            false => Wait::Until(self.timeout(direction).map(deadline::after)),
        }
    }

    /// The reason why nothing can be sent or received.
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

fn is_past(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
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

/// One state, shared by all handles.
pub(crate) type Shared = Arc<Core>;
