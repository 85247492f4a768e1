//! A transport in memory for tests: the code under test sends and receives at one end, and the test
//! plays the administrator at the other.

#![allow(dead_code, reason = "each test program uses a part of this module")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_sa::Port;
use portolan_sa::transport::{Mad, MadAddress, Received, Transport, TransportError, Wake};
use portolan_threads::lock::{Condvar, Mutex, MutexGuard};

/// Maximum number of queued datagrams per direction. Further ones are dropped, as by a full receive
/// queue.
pub(crate) const QUEUED_MAX: usize = 4096;

/// Creates a transport and the script that controls its other end.
pub(crate) fn pair(port: Port) -> (ScriptedTransport, Script) {
    let shared = Arc::new(Shared::new(port));
    (ScriptedTransport(shared.clone()), Script(shared))
}

/// The transport for the code under test.
#[derive(Debug)]
pub(crate) struct ScriptedTransport(Arc<Shared>);

/// The other end: observes sent datagrams and injects received ones.
#[derive(Clone, Debug)]
pub(crate) struct Script(Arc<Shared>);

/// A sent datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    /// The destination.
    pub(crate) to: MadAddress,
    /// The datagram.
    pub(crate) mad: Box<Mad>,
    /// How long to wait for the answer; zero if none is expected.
    pub(crate) answer_within: Duration,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<ScriptState>,
    changed: Condvar,
}

#[derive(Debug)]
struct ScriptState {
    port: Port,
    gone: bool,
    woken: bool,
    /// The errno of all sends while this is set.
    refusal: Option<i32>,
    sent: VecDeque<Sent>,
    received: VecDeque<Received>,
}

impl Shared {
    fn new(port: Port) -> Self {
        let state = ScriptState {
            port,
            gone: false,
            woken: false,
            refusal: None,
            sent: VecDeque::new(),
            received: VecDeque::new(),
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ScriptState> {
        self.state.lock()
    }

    /// Waits until `take` returns a value, at most for `wait`.
    fn wait_for<T>(
        &self,
        wait: Duration,
        mut take: impl FnMut(&mut ScriptState) -> Option<T>,
    ) -> Option<T> {
        let until = Instant::now() + wait;
        let mut state = self.lock();
        loop {
            if let Some(taken) = take(&mut state) {
                return Some(taken);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.0;
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut ScriptState) -> T) -> T {
        let changed = change(&mut self.lock());
        self.changed.notify_all();
        changed
    }
}

impl ScriptState {
    fn gone(&self) -> TransportError {
        TransportError::Gone {
            device: self.port.device.clone(),
            port_num: self.port.port_num,
            why: "the script removed it".into(),
        }
    }
}

impl Transport for ScriptedTransport {
    fn port(&mut self) -> Result<Port, TransportError> {
        let state = self.0.lock();
        match state.gone {
            true => Err(state.gone()),
            false => Ok(state.port.clone()),
        }
    }

    fn send(
        &mut self,
        to: &MadAddress,
        mad: &Mad,
        answer_within: Duration,
    ) -> Result<(), TransportError> {
        self.0.change(|state| {
            if state.gone {
                return Err(state.gone());
            }
            if let Some(errno) = state.refusal {
                let call = "send (scripted)";
                return Err(TransportError::Os { call, errno });
            }
            if state.sent.len() < QUEUED_MAX {
                state.sent.push_back(Sent {
                    to: *to,
                    mad: Box::new(*mad),
                    answer_within,
                });
            }
            Ok(())
        })
    }

    fn receive(&mut self, wait: Duration) -> Result<Option<Received>, TransportError> {
        let outcome = self.0.wait_for(wait, |state| {
            if let Some(received) = state.received.pop_front() {
                return Some(Ok(Some(received)));
            }
            if state.gone {
                return Some(Err(state.gone()));
            }
            std::mem::take(&mut state.woken).then_some(Ok(None))
        });
        outcome.unwrap_or(Ok(None))
    }

    fn wake(&self) -> Option<Arc<dyn Wake>> {
        Some(self.0.clone())
    }
}

impl Wake for Shared {
    fn wake(&self) {
        self.change(|state| state.woken = true);
    }
}

impl Script {
    /// Returns the next sent datagram; waits for it at most for `wait`.
    pub(crate) fn sent(&self, wait: Duration) -> Option<Sent> {
        self.0.wait_for(wait, |state| state.sent.pop_front())
    }

    /// Delivers a datagram to the transport.
    pub(crate) fn say(&self, from: MadAddress, mad: &Mad) {
        let mad = Box::new(*mad);
        self.push(Received::Mad { from, mad });
    }

    /// Reports that the datagram with this transaction id could not be delivered or was not
    /// answered.
    pub(crate) fn fail(&self, tid: u64, errno: i32) {
        self.push(Received::SendFailed { tid, errno });
    }

    /// Fails all following sends with `errno`; `None` lets them succeed.
    pub(crate) fn refuse(&self, errno: Option<i32>) {
        self.0.change(|state| state.refusal = errno);
    }

    /// Changes the port's attributes.
    pub(crate) fn change_port(&self, change: impl FnOnce(&mut Port)) {
        self.0.change(|state| change(&mut state.port));
    }

    /// Removes the port.
    pub(crate) fn remove_port(&self) {
        self.0.change(|state| state.gone = true);
    }

    fn push(&self, received: Received) {
        self.0.change(|state| {
            if state.received.len() < QUEUED_MAX {
                state.received.push_back(received);
            }
        });
    }
}
