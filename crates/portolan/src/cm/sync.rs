//! Synchronous ids: each call waits for the event that ends it (`rdma_create_id(3)` without a
//! channel).

use std::sync::Arc;
use std::time::Duration;

use portolan_provider::cm::{EventType, Service};
use portolan_provider::traits::Provider;
use portolan_provider::{Cause, Error, Result, Step};

use super::channel::EventChannel;
use super::event_data::EventData;
use super::id::{CmId, Synchronous};
use crate::deadline;

impl CmId {
    /// Creates a synchronous id with a private channel. Calls that start an operation wait for its
    /// end, at most for `timeout`, and return its error. [`CmId::last_event`] is the event that
    /// ended the last call.
    ///
    /// # Errors
    /// As for [`CmId::with_service`]; also errors of opening a channel.
    pub fn synchronous(
        provider: Arc<dyn Provider>,
        service: Service,
        timeout: Duration,
    ) -> Result<Self> {
        let id = Self::with_service(&EventChannel::open_on(provider)?, service)?;
        id.set_synchronous(Some(timeout));
        Ok(id)
    }

    /// Returns whether calls wait for their events.
    pub fn is_synchronous(&self) -> bool {
        self.shared.synchronous.lock().is_some()
    }

    /// The event that ended the last waiting call; for an id from [`CmId::next_request`], the
    /// request.
    pub fn last_event(&self) -> Option<EventData> {
        self.shared.synchronous.lock().as_ref()?.last.clone()
    }

    /// Moves an id to a private channel and makes it synchronous (`rdma_migrate_id(3)` without a
    /// channel). This call, which waits as [`CmId::migrate`] does, and each later one wait at most
    /// for `timeout`.
    ///
    /// # Errors
    /// `InvalidState` if it is already synchronous; otherwise as for [`CmId::migrate`].
    pub fn migrate_to_synchronous(&self, timeout: Duration) -> Result<()> {
        if self.is_synchronous() {
            let (expected, found) = ("an id with a channel of the user's", "a synchronous id");
            let cause = Cause::InvalidState { expected, found };
            return Err(self.explain(Error::new(Step::Event, cause)));
        }
        self.move_to(&EventChannel::open_on(self.provider())?)?;
        self.set_synchronous(Some(timeout));
        self.counts().wait_acknowledged(Step::Event, timeout)
    }

    pub(super) fn set_synchronous(&self, timeout: Option<Duration>) {
        let last = None;
        *self.shared.synchronous.lock() =
            timeout.map(|timeout| Box::new(Synchronous { timeout, last }));
    }

    pub(super) fn set_last_event(&self, event: EventData) {
        if let Some(synchronous) = &mut *self.shared.synchronous.lock() {
            synchronous.last = Some(event);
        }
    }

    /// The time limit of calls; `None` if the id is not synchronous.
    pub(super) fn waits_for(&self) -> Option<Duration> {
        Some(self.shared.synchronous.lock().as_ref()?.timeout)
    }

    /// Ends a call of a synchronous id: waits for one of the events `ends` and returns its error.
    pub(super) fn complete(&self, step: Step, ends: &[EventType]) -> Result<()> {
        let Some(timeout) = self.waits_for() else {
            return Ok(());
        };
        let deadline = deadline::after(timeout);
        loop {
            let event = self
                .event_channel()
                .next_event_within(deadline::left(deadline));
            let event = event.map_err(|mut error| {
                error.step = step;
                if let Cause::TimedOut { after_ms, .. } = &mut error.cause {
                    *after_ms = timeout.as_millis() as u64;
                }
                self.explain(error)
            })?;
            let is_removal = event.event_type() == EventType::DeviceRemoval;
            if !is_removal && !ends.contains(&event.event_type()) {
                // An unrelated event: the end of an earlier connection's time-wait, or an address
                // change.
                continue;
            }
            self.set_last_event(event.data().clone());
            let is_wanted_end = event.event_type() == EventType::Disconnected
                && step == Step::Disconnect
                && event.status() == 0;
            return match event.failure() {
                Some(mut error) if !is_wanted_end => {
                    error.step = step;
                    Err(error)
                }
                _ => Ok(()),
            };
        }
    }
}
