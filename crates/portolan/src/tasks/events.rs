//! The low layer for tasks: event channels and completion queues.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::tokio::io::unix::AsyncFd;
use futures_core::Stream;
use portolan_provider::cm::EventType;
use portolan_provider::traits::CompChannel;
use portolan_provider::verbs::WorkCompletion;
use portolan_provider::{Error, Result, Step};

use super::runtime::{self, Watched, runtime_error, watch};
use crate::cm::{Completions, Event, EventChannel};

/// An [`EventChannel`] for tokio tasks.
///
/// As a `futures_core::Stream` it yields the same events and never ends. If a task polls it that way, only that task is woken.
///
/// ```
/// use portolan::cm::{CmId, EventChannel};
/// use portolan::provider::cm::EventType;
/// use portolan::tasks::AsyncEventChannel;
/// use std::time::Duration;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let events = AsyncEventChannel::new(EventChannel::open()?)?;
/// let id = CmId::new(events.get_ref())?;
/// id.resolve_addr(None, "127.0.0.1:7471".parse().unwrap(), Duration::from_secs(2))?;
/// let event = events.expect(EventType::AddrResolved).await?;
/// assert_eq!(event.id().number(), id.number());
/// # Ok::<(), portolan::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct AsyncEventChannel {
    events: AsyncFd<Watched<EventChannel>>,
}

impl AsyncEventChannel {
    /// Registers a channel with the current runtime.
    ///
    /// # Errors
    /// There is no runtime (`InvalidState`), or it cannot watch the channel's descriptor.
    pub fn new(events: EventChannel) -> Result<Self> {
        let events = watch(events, Step::OpenChannel)?;
        Ok(Self { events })
    }

    /// The underlying channel, for new ids.
    pub fn get_ref(&self) -> &EventChannel {
        &self.events.get_ref().0
    }

    /// Waits for the next event. Several tasks may wait; each event goes to one of them.
    ///
    /// # Errors
    /// The channel failed.
    pub async fn next(&self) -> Result<Event> {
        runtime::ready(&self.events, EventChannel::try_next_event).await
    }

    /// Waits for the next event, which must have this type.
    ///
    /// # Errors
    /// The event reports a failure; `InvalidArgument` if it has another type; the channel failed.
    pub async fn expect(&self, expected: EventType) -> Result<Event> {
        let event = self.next().await?;
        if event.event_type() == expected {
            return Ok(event);
        }
        let found = event.event_type();
        let other = || Error::invalid(Step::Event, "event", expected, found);
        Err(event.failure().unwrap_or_else(other))
    }
}

impl Stream for AsyncEventChannel {
    type Item = Result<Event>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.get_ref().try_next_event().transpose() {
                return Poll::Ready(Some(event));
            }
            let mut guard = match ready!(self.events.poll_read_ready(context)) {
                Ok(guard) => guard,
                Err(error) => return Poll::Ready(Some(Err(runtime_error(error)))),
            };
            // Check again before readiness is cleared, so that no event is missed.
            if let Some(event) = self.get_ref().try_next_event().transpose() {
                return Poll::Ready(Some(event));
            }
            guard.clear_ready();
        }
    }
}

/// A completion queue with its channel for tokio tasks.
///
/// The channel serves this queue alone. A [`QueuePairPlan`](crate::cm::QueuePairPlan) without completion queues makes such
/// queues.
///
/// ```
/// # use portolan::cm::{CmId, ConnParam, EventChannel, EventType};
/// use portolan::cm::{QpCap, QpInit, QpType, QueuePairPlan};
/// use portolan::provider::verbs::{RecvWr, WcStatus, WorkCompletion};
/// # use portolan::tasks::AsyncEventChannel;
/// use portolan::tasks::AsyncCompletions;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let patience = std::time::Duration::from_secs(10);
/// # let listener = portolan::Listener::bind("127.0.0.1:0")?;
/// # let address = listener.local_addr()?;
/// # let server = std::thread::spawn(move || -> portolan::Result<()> {
/// #     let connection = listener.accept()?.accept()?;
/// #     connection.send(b"".to_vec())?.wait()?;
/// #     connection.wait_disconnected(patience)
/// # });
/// # let events = AsyncEventChannel::new(EventChannel::open()?)?;
/// # let id = CmId::new(events.get_ref())?;
/// # id.resolve_addr(None, address, patience)?;
/// # events.expect(EventType::AddrResolved).await?;
/// # id.resolve_route(patience)?;
/// # events.expect(EventType::RouteResolved).await?;
/// // The route of `id` is resolved.
/// let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, ..QpCap::default() };
/// let init = QpInit { qp_type: QpType::Rc, cap, sq_sig_all: true };
/// let plan = QueuePairPlan { pd: None, send_cq: None, recv_cq: None, srq: None, init };
/// let qp = id.create_planned_queue_pair(&plan)?;
/// let received = id.recv_completions().expect("those of the queue pair");
/// let received = AsyncCompletions::new(received)?;
/// // Messages without data need no memory.
/// qp.post_recv(&RecvWr { wr_id: 7, sges: &[] })?;
/// # id.connect(&ConnParam { retry_count: 7, rnr_retry_count: 7, ..ConnParam::default() })?;
/// # events.expect(EventType::Established).await?;
///
/// let mut batch = [WorkCompletion::EMPTY; 4];
/// let count = received.poll(&mut batch).await?;
/// assert_eq!((count, batch[0].wr_id, batch[0].status), (1, 7, WcStatus::Success));
/// # id.disconnect()?;
/// # server.join().unwrap()?;
/// # Ok::<(), portolan::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct AsyncCompletions {
    completions: Completions,
    channel: AsyncFd<Watched<Arc<dyn CompChannel>>>,
}

impl AsyncCompletions {
    /// Registers the queue's channel with the current runtime.
    ///
    /// # Errors
    /// `InvalidArgument` if the queue has no channel; there is no runtime (`InvalidState`), or it cannot watch the
    /// channel's descriptor.
    pub fn new(completions: Completions) -> Result<Self> {
        let missing = || {
            let (what, expected) = ("completion queue", "one with a channel");
            Error::invalid(Step::PollCq, what, expected, "one without")
        };
        let channel = completions.channel.clone().ok_or_else(missing)?;
        let channel = watch(channel, Step::PollCq)?;
        Ok(Self {
            completions,
            channel,
        })
    }

    /// The underlying queue.
    pub fn get_ref(&self) -> &Completions {
        &self.completions
    }

    /// Waits for completions and takes up to as many as fit, oldest first. Returns their number, which is not 0.
    ///
    /// # Errors
    /// `InvalidArgument` if nothing fits; the queue failed.
    pub async fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        if out.is_empty() {
            let (what, expected) = ("room for completions", "1 or more");
            return Err(Error::invalid(Step::PollCq, what, expected, 0));
        }
        let cq = &self.completions.cq;
        loop {
            let taken = cq.poll(out)?;
            if taken > 0 {
                return Ok(taken);
            }
            cq.arm(false)?;
            let taken = cq.poll(out)?;
            if taken > 0 {
                return Ok(taken);
            }
            let mut guard = self.channel.readable().await.map_err(runtime_error)?;
            while self.channel.get_ref().0.take_event()?.is_some() {}
            guard.clear_ready();
        }
    }
}
