//! State that a client's handles share with its thread: the command queue and the thread's
//! lifecycle.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use portolan_threads::lock::{Condvar, Mutex, MutexGuard};
use portolan_threads::with_signals_blocked;

use super::lease::{LeaseNumber, LeaseOrder};
use super::{ClientConfig, Open};
use crate::engine::{Counters, Failure, Request};
use crate::port::Port;
use crate::query_coalescer::Outcome;
use crate::transport::{TransportError, Wake};

/// Maximum number of queries queued for the thread.
///
/// Other commands are not counted: each query causes at most one and each registration a few, and
/// none of them may be lost.
pub(super) const QUESTIONS_MAX: usize = 65_536;

pub(super) type Done = Box<dyn FnOnce(Outcome) + Send>;
pub(super) type Make = Box<dyn FnOnce(&Port) -> Result<Request, Failure> + Send>;

/// A caller's query, queued for the thread.
pub(super) struct Question {
    pub(super) number: u64,
    pub(super) make: Make,
    pub(super) deadline: Instant,
    pub(super) done: Done,
}

pub(super) enum Command {
    Ask(Question),
    Cancel(u64),
    /// Start renewing the lease of a registered service.
    Renew(LeaseOrder),
    /// Withdraw the service: its registration was dropped.
    Withdraw(LeaseNumber),
    /// Stop renewing the lease: its holder withdraws the service itself.
    Forget(LeaseNumber),
}

/// The state behind all clones of a client.
pub(crate) struct Handle {
    shared: Arc<Shared>,
    next: AtomicU64,
}

pub(super) struct Shared {
    pub(super) config: ClientConfig,
    pub(super) open: Box<Open>,
    /// What the thread does.
    run: fn(&Arc<Shared>),
    state: Mutex<ClientState>,
    changed: Condvar,
    counters: Mutex<Counters>,
    /// Id of the process that started the thread; zero before the first start.
    process: AtomicU32,
}

#[derive(Default)]
struct ClientState {
    commands: Commands,
    closing: bool,
    /// Interrupts the thread's wait in its transport.
    wake: Option<Arc<dyn Wake>>,
    running: Option<Running>,
}

/// Commands queued for the thread.
#[derive(Default)]
pub(super) struct Commands {
    /// Commands in order of arrival.
    queue: BTreeMap<u64, Command>,
    next: u64,
    /// Position of each query in the queue.
    questions: BTreeMap<u64, u64>,
    /// Whether the subnet may have changed since the thread last took commands.
    pub(super) subnet_changed: bool,
}

impl Commands {
    fn is_empty(&self) -> bool {
        self.queue.is_empty() && !self.subnet_changed
    }

    fn push(&mut self, command: Command) {
        if let Command::Ask(question) = &command {
            self.questions.insert(question.number, self.next);
        }
        self.queue.insert(self.next, command);
        self.next += 1;
    }

    /// Removes a query from the queue.
    fn remove_question(&mut self, number: u64) -> Option<Command> {
        let at = self.questions.remove(&number)?;
        self.queue.remove(&at)
    }

    pub(super) fn into_commands(self) -> impl Iterator<Item = Command> {
        self.queue.into_values()
    }
}

struct Running {
    thread: ThreadId,
    join: JoinHandle<()>,
}

impl Handle {
    pub(super) fn new(config: ClientConfig, open: Box<Open>, run: fn(&Arc<Shared>)) -> Self {
        let shared = Shared {
            config,
            open,
            run,
            state: Mutex::default(),
            changed: Condvar::new(),
            counters: Mutex::default(),
            process: AtomicU32::new(0),
        };
        Self {
            shared: Arc::new(shared),
            next: AtomicU64::new(0),
        }
    }

    pub(super) fn draw_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn is_own_thread(&self) -> bool {
        if self.shared.is_elsewhere() {
            return false;
        }
        let state = self.shared.lock();
        let here = std::thread::current().id();
        state
            .running
            .as_ref()
            .is_some_and(|running| running.thread == here)
    }

    pub(super) fn counters(&self) -> Counters {
        *self.shared.counters()
    }

    /// Queues a command and starts the thread if it is not running.
    pub(super) fn submit(&self, command: Command) {
        if self.shared.is_elsewhere() {
            if let Command::Ask(question) = command {
                (question.done)(Err(elsewhere()));
            }
            return;
        }
        let mut state = self.shared.lock();
        let refused = self.shared.start(&mut state).and_then(|()| {
            let is_full = state.commands.questions.len() >= QUESTIONS_MAX;
            if !(is_full && matches!(command, Command::Ask(_))) {
                return Ok(());
            }
            Err(Failure::LimitReached {
                what: "queries queued for the client's thread",
                limit: QUESTIONS_MAX as u64,
            })
        });
        if let Err(failure) = refused {
            drop(state);
            if let Command::Ask(question) = command {
                (question.done)(Err(failure));
            }
            return;
        }
        self.shared.push(state, command);
    }

    /// Tells the thread that the subnet may have changed. Without a thread there is no cached state
    /// to drop.
    pub(super) fn subnet_changed(&self) {
        if self.shared.is_elsewhere() {
            return;
        }
        let mut state = self.shared.lock();
        if state.running.is_some() {
            state.commands.subnet_changed = true;
            self.shared.notify(state);
        }
    }

    pub(super) fn cancel(&self, number: u64) {
        if self.shared.is_elsewhere() {
            return;
        }
        let mut state = self.shared.lock();
        if state.running.is_some() {
            // The query may still be in the queue.
            if let Some(command) = state.commands.remove_question(number) {
                drop(state);
                drop(command);
                return;
            }
            self.shared.push(state, Command::Cancel(number));
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.shared.is_elsewhere() {
            return;
        }
        let mut state = self.shared.lock();
        state.closing = true;
        let (running, wake) = (state.running.take(), state.wake.clone());
        drop(state);
        self.shared.changed.notify_all();
        if let Some(wake) = wake {
            wake.wake();
        }
        if let Some(running) = running {
            // A callback may hold the last handle: the thread cannot join itself.
            if running.thread != std::thread::current().id() {
                // Joining fails only if the thread panicked, and the panic was already reported.
                let _ = running.join.join();
            }
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.shared.is_elsewhere() {
            return f.debug_struct("Handle").finish_non_exhaustive();
        }
        let state = self.shared.lock();
        f.debug_struct("Handle")
            .field("commands", &state.commands.queue.len())
            .field("running", &state.running.is_some())
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Returns whether this process is a fork of the one that runs the thread. A forked child has
    /// no thread, and must not take the locks, which the thread may have held at the fork.
    fn is_elsewhere(&self) -> bool {
        let process = self.process.load(Ordering::Relaxed);
        process != 0 && process != std::process::id()
    }

    fn lock(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock()
    }

    /// The thread's counters.
    pub(super) fn counters(&self) -> MutexGuard<'_, Counters> {
        self.counters.lock()
    }

    fn start(self: &Arc<Self>, state: &mut ClientState) -> Result<(), Failure> {
        if let Some(running) = &state.running
            && !running.join.is_finished()
        {
            return Ok(());
        }
        let shared = self.clone();
        let builder = std::thread::Builder::new().name("portolan-sa".into());
        let run = move || (shared.run)(&shared);
        let started = with_signals_blocked(|| builder.spawn(run));
        let join = started.map_err(|error| TransportError::Os {
            call: "start the client's thread",
            errno: error
                .raw_os_error()
                .unwrap_or(portolan_provider::error::errno::EAGAIN),
        })?;
        let thread = join.thread().id();
        state.running = Some(Running { thread, join });
        self.process.store(std::process::id(), Ordering::Relaxed);
        Ok(())
    }

    fn push(&self, mut state: MutexGuard<'_, ClientState>, command: Command) {
        state.commands.push(command);
        self.notify(state);
    }

    fn notify(&self, state: MutexGuard<'_, ClientState>) {
        let wake = state.wake.clone();
        drop(state);
        self.changed.notify_all();
        if let Some(wake) = wake {
            wake.wake();
        }
    }

    /// Sets what interrupts the thread's wait in its transport.
    pub(super) fn set_wake(&self, wake: Option<Arc<dyn Wake>>) {
        self.lock().wake = wake;
    }

    /// Takes all queued commands, and whether the last handle is gone.
    pub(super) fn take(&self) -> (Commands, bool) {
        let mut state = self.lock();
        (std::mem::take(&mut state.commands), state.closing)
    }

    /// Returns whether the queue has commands.
    pub(super) fn has_commands(&self) -> bool {
        let state = self.lock();
        !state.commands.is_empty() || state.closing
    }

    /// Waits for a command, at most until `until`.
    pub(super) fn wait(&self, until: Option<Instant>) {
        let mut state = self.lock();
        while state.commands.is_empty() && !state.closing {
            let left = until.map_or(Duration::MAX, |until| {
                until.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return;
            }
            state = if left == Duration::MAX {
                self.changed.wait(state)
            } else {
                let waited = self.changed.wait_timeout(state, left);
                waited.0
            };
        }
    }
}

fn elsewhere() -> Failure {
    Failure::Invalid {
        what: "the calling process",
        expected: "the one in which the client was first used",
        found: "a child of it (fork)".into(),
    }
}
