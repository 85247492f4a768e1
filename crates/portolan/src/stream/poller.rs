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

use super::core::{Core, Found, Shared};

/// How long it polls after a task began to wait. Longer than an answer takes that the peer computes at once, even if each end
/// hands it from thread to thread on processors that sleep.
const POLLS_FOR: Duration = Duration::from_micros(300);

/// The polling task. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Poller {
    waits: Arc<Notify>,
    task: AbortHandle,
}

impl Poller {
    /// Starts it.
    pub(super) fn start(runtime: &Handle, core: &Shared) -> Self {
        let waits = Arc::new(Notify::new());
        let polling = poll_while_tasks_wait(Arc::downgrade(core), waits.clone());
        let task = runtime.spawn(polling).abort_handle();
        Self { waits, task }
    }

    /// A task waits.
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
        let mut looks = Looks {
            core: &core,
            must_rest: false,
        };
        while looks.find_nothing() && spin.goes_on(&mut polling) {
            std::thread::yield_now();
            yield_now().await;
        }
    }
}

/// Looks at the device, in a row. Ends them when it is dropped, also if the task is aborted.
struct Looks<'a> {
    core: &'a Weak<Core>,
    /// Nobody rings for what arrives.
    must_rest: bool,
}

impl Looks<'_> {
    /// Looks once. Returns whether to look again.
    fn find_nothing(&mut self) -> bool {
        let found = self.core.upgrade().map(|core| core.look_for_tasks());
        match found {
            Some(Found::Nothing) => self.must_rest = true,
            // The task comes, and looks itself or rests.
            Some(Found::ForTasks) => self.must_rest = false,
            Some(Found::NoTasks) | None => {}
        }
        found == Some(Found::Nothing)
    }
}

impl Drop for Looks<'_> {
    fn drop(&mut self) {
        if self.must_rest
            && let Some(core) = self.core.upgrade()
        {
            core.rest_after_looks();
        }
    }
}
