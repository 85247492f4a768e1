//! Event channels: they deliver the events of a set of ids.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use portolan_provider::cm::{CmEvent, EventType};
use portolan_provider::traits::{Attendance, Notify, Provider};
use portolan_provider::{Cause, Error, Result, Step};

use super::event::Event;
use super::id::{ChannelIds, CmId, IdShared};
use crate::deadline;
use crate::software::Watcher;

/// A channel of connection-manager events (`struct rdma_event_channel`).
///
/// Several threads may take events from one channel; each event goes to one of them. Clones refer
/// to the same channel.
///
/// ```
/// use portolan::cm::EventChannel;
/// use std::os::fd::AsFd;
///
/// let channel = EventChannel::open()?;
/// // For an event loop: it is readable while an event is queued.
/// let descriptor = channel.as_fd();
/// assert!(channel.try_next_event()?.is_none());
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct EventChannel {
    pub(super) shared: Arc<ChannelIds>,
}

impl EventChannel {
    /// Opens a channel on the process's provider (`rdma_create_event_channel(3)`).
    ///
    /// # Errors
    /// Those of [`crate::provider::default_provider`].
    pub fn open() -> Result<Self> {
        Self::open_on(crate::provider::default_provider()?)
    }

    /// Opens a channel on a provider.
    ///
    /// # Errors
    /// The provider failed to open one.
    pub fn open_on(provider: Arc<dyn Provider>) -> Result<Self> {
        let channel = provider.open_channel()?;
        let shared = Arc::new(ChannelIds::new(provider, channel));
        Ok(Self { shared })
    }

    /// Opens a channel that calls when events arrive, if the provider has such channels.
    pub(crate) fn open_calling(
        provider: Arc<dyn Provider>,
        notify: &Arc<dyn Notify>,
    ) -> Result<Option<Self>> {
        let channel = provider.open_calling_channel(notify)?;
        Ok(channel.map(|channel| {
            let shared = Arc::new(ChannelIds::new(provider, channel));
            Self { shared }
        }))
    }

    /// Takes the next event (`rdma_get_cm_event(3)`). Waits for it, unless the channel's descriptor
    /// is non-blocking (`O_NONBLOCK`, fcntl(2)).
    ///
    /// # Errors
    /// The channel failed; `WouldBlock` if it is non-blocking and no event is queued.
    pub fn next_event(&self) -> Result<Event> {
        loop {
            let raw = self.shared.channel.wait_event(None)?;
            if let Some(event) = self.deliver(raw) {
                return Ok(event);
            }
        }
    }

    /// Takes the next event; waits at most for `timeout`.
    ///
    /// # Errors
    /// `TimedOut` if none arrived in time.
    pub fn next_event_within(&self, timeout: Duration) -> Result<Event> {
        // Take a queued event without reading the clock.
        if let Some(event) = self.try_next_event()? {
            return Ok(event);
        }
        let deadline = deadline::after(timeout);
        loop {
            let left = deadline::left(deadline);
            let raw = self
                .shared
                .channel
                .wait_event(Some(left))
                .map_err(|error| {
                    let after_ms = timeout.as_millis() as u64;
                    match error.cause {
                        Cause::TimedOut { .. } => Error::new(
                            Step::Event,
                            Cause::TimedOut {
                                after_ms,
                                retries: 0,
                            },
                        ),
                        _ => error,
                    }
                })?;
            if let Some(event) = self.deliver(raw) {
                return Ok(event);
            }
        }
    }

    /// Takes the next event if one is queued.
    ///
    /// # Errors
    /// The channel failed.
    pub fn try_next_event(&self) -> Result<Option<Event>> {
        while self.shared.channel.may_have_event() {
            match self.shared.channel.take_event() {
                Ok(raw) => {
                    if let Some(event) = self.deliver(raw) {
                        return Ok(Some(event));
                    }
                }
                Err(error) if error.is_would_block() => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The calling thread will wait for an event within microseconds ([`CmChannel::attend`]).
    ///
    /// [`CmChannel::attend`]: portolan_provider::traits::CmChannel::attend
    pub(crate) fn attend(&self) -> Option<Box<dyn Attendance + '_>> {
        self.shared.channel.attend()
    }

    /// Calls `watcher` at each event, if the provider can: then nobody needs a descriptor. `None` ends that. Returns
    /// whether it can.
    pub(crate) fn watch(&self, watcher: Option<Arc<dyn Watcher>>) -> bool {
        crate::software::watch(&*self.shared.channel, watcher)
    }

    /// As [`AsFd::as_fd`], but fails if no descriptor is left.
    pub(crate) fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.shared.channel.descriptor()
    }

    /// The underlying provider.
    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.shared.provider
    }

    /// Does the library's part for an event (see the table in the provider's `cm` module) and wraps
    /// it. Returns `None` if its id is gone or the event is internal.
    fn deliver(&self, raw: CmEvent) -> Option<Event> {
        let owner = self.shared.find(raw.uid);
        match raw.event {
            EventType::ConnectRequest => self.deliver_request(raw, owner),
            EventType::MulticastJoin | EventType::MulticastError => {
                let id = CmId::from_shared(owner?);
                // The id may have left the group meanwhile.
                let membership = id.membership(raw.uid)?;
                Some(Event::of_group(id, membership, raw))
            }
            _ => Event::arrived(CmId::from_shared(owner?), raw),
        }
    }

    fn deliver_request(&self, raw: CmEvent, listener: Option<Arc<IdShared>>) -> Option<Event> {
        let Some(listener) = listener else {
            // The listener was destroyed after the request was queued: destroying the id informs
            // the peer.
            let _ = self.shared.channel.destroy_id(raw.id);
            return None;
        };
        let child = IdShared::child(&listener, &self.shared, raw.id);
        Some(Event::request(
            CmId::from_shared(child),
            CmId::from_shared(listener),
            raw,
        ))
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.channel.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use portolan_provider::cm::Service;
    use portolan_provider::verbs::QpType;
    use portolan_wire::addr::PortSpace;

    use super::*;
    use crate::software::own_group;

    /// Longer than it takes on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// As in two threads: the second migrates the id while the first takes its event.
    #[test]
    fn an_event_that_is_being_taken_is_delivered_although_its_id_migrates() {
        let provider = own_group::provider();
        let open = || EventChannel::open_on(provider.clone()).unwrap();
        let (from, to) = (open(), open());
        let service = Service {
            port_space: PortSpace::Tcp,
            qp_type: QpType::Rc,
        };
        let id = CmId::with_service(&from, service).unwrap();
        let destination = "127.0.0.1:7471".parse().unwrap();
        id.resolve_addr(None, destination, PATIENCE).unwrap();
        let raw = from.shared.channel.wait_event(Some(PATIENCE)).unwrap();
        id.migrate(&to, PATIENCE).unwrap();
        let event = from.deliver(raw).expect("the event that was taken");
        assert_eq!(event.id().number(), id.number());
        assert_eq!(event.event_type(), EventType::AddrResolved);
    }
}
