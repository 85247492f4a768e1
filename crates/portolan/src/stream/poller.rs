//! Polls the device while tasks wait for a stream, in a task of its own.
//!
//! The kernel's wake-ups, one at each end, take most of the time of a short request and its answer. A waiting task does not
//! poll itself, because others would wait for it. So a second task of the same runtime polls, and lets all tasks and
//! threads that are ready run after each look.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ::tokio::runtime::Handle;
use ::tokio::sync::Notify;
use ::tokio::task::{AbortHandle, yield_now};
use portolan_threads::spin::Spin;

use super::core::{Core, Shared};

/// How long it polls after a task began to wait. Longer than an answer takes that the peer computes at once, even if each end
/// hands it from thread to thread on processors that sleep.
const POLLS_FOR: Duration = Duration::from_micros(500);

/// The polling task. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Poller {
    waits: Arc<Notify>,
    task: AbortHandle,
}

impl Poller {
    /// Starts it on the current runtime. `None` outside of any.
    pub(super) fn start(core: &Shared) -> Option<Self> {
        let waits = Arc::new(Notify::new());
        let polling = poll_while_tasks_wait(Arc::downgrade(core), waits.clone());
        let task = Handle::try_current().ok()?.spawn(polling).abort_handle();
        Some(Self { waits, task })
    }

    /// A task is about to wait.
    pub(super) fn task_waits(&self) {
        self.waits.notify_one();
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn poll_while_tasks_wait(core: Weak<Core>, waits: Arc<Notify>) {
    let spin = Spin::lasting(POLLS_FOR);
    loop {
        waits.notified().await;
        let mut polling = spin.start();
        if !spin.goes_on(&mut polling) {
            continue;
        }
        loop {
            let Some(stream) = core.upgrade() else { return };
            if !stream.look_for_tasks() {
                break;
            }
            if !spin.goes_on(&mut polling) {
                stream.rest_for_tasks();
                break;
            }
            drop(stream);
            std::thread::yield_now();
            yield_now().await;
        }
    }
}
