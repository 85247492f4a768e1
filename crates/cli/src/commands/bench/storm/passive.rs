//! The side that is connected to: accepts by the hundreds and sends messages back, in one thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::EventType;
use portolan::provider::traits::Provider;
use serde_json::{Value, json};

use super::queue_pairs::QueuePairs;
use crate::commands::bench::memory::resident_bytes;

/// Requests that may wait to be accepted. More that come are dropped, and come again.
const BACKLOG: i32 = 1024;
/// How long nothing may happen.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long it is waited for events between looks at the messages.
const EVENT_WAIT: Duration = Duration::from_millis(1);

/// Listens, reports where, accepts so many connections, reports that it holds them and how much memory
/// each takes, and sends messages back until all of them have ended.
pub(in crate::commands::bench) fn serve(
    provider: &Arc<dyn Provider>,
    connections: u32,
    tell: impl Fn(Value) -> Result<()>,
) -> Result<Value> {
    let events = EventChannel::open_on(provider.clone())?;
    let listener = CmId::new(&events)?;
    listener.bind("127.0.0.1:0".parse()?)?;
    listener.listen(BACKLOG)?;
    let local = listener.addresses()?.local.and_then(|local| local.inet());
    let local = local.context("the listener has no address")?;
    let mut served = Served {
        queue_pairs: None,
        ids: Vec::new(),
        resident_before: 0,
        connections,
        established: 0,
        ended: 0,
        echoed: 0,
    };
    tell(json!({ "listening": local.to_string() }))?;
    let mut deadline = Instant::now() + SILENCE_MAX;
    while served.ended < connections {
        if served.take_events(&events, &tell)? | served.send_back()? {
            deadline = Instant::now() + SILENCE_MAX;
        }
        ensure!(
            Instant::now() < deadline,
            "{} of {connections} connections came, {} ended, then nothing",
            served.established,
            served.ended
        );
    }
    Ok(json!({ "ended": served.ended, "echoed": served.echoed }))
}

struct Served {
    /// Made for the device of the first request: a listener at a loopback address has none.
    queue_pairs: Option<QueuePairs>,
    ids: Vec<CmId>,
    resident_before: u64,
    connections: u32,
    established: u32,
    ended: u32,
    echoed: u64,
}

impl Served {
    /// Takes all events there are, or waits a little for one; whether there was any.
    fn take_events(
        &mut self,
        events: &EventChannel,
        tell: &impl Fn(Value) -> Result<()>,
    ) -> Result<bool> {
        let mut next = match events.next_event_within(EVENT_WAIT) {
            Ok(event) => Some(event),
            Err(error) if matches!(error.cause, portolan::Cause::TimedOut { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let any = next.is_some();
        while let Some(event) = next {
            match event.event_type() {
                EventType::ConnectRequest => {
                    self.queue_pairs_for(event.id())?.enter(event.id())?;
                    event.id().accept(&QueuePairs::conn_param())?;
                    self.ids.push(event.id().clone());
                }
                EventType::Established => {
                    self.established += 1;
                    if self.established == self.connections {
                        let grown = resident_bytes()?.saturating_sub(self.resident_before);
                        let each = grown / u64::from(self.connections);
                        tell(json!({ "bytes_per_connection": each }))?;
                    }
                }
                EventType::Disconnected => {
                    event.id().disconnect()?;
                    self.ended += 1;
                }
                EventType::TimewaitExit => {}
                other => match event.failure() {
                    Some(error) => return Err(error.into()),
                    None => bail!("{other} was not expected"),
                },
            }
            next = events.try_next_event()?;
        }
        Ok(any)
    }

    /// The queue pairs, made with the first request. What it takes for itself does not count as memory of connections.
    fn queue_pairs_for(&mut self, request: &CmId) -> Result<&mut QueuePairs> {
        if self.queue_pairs.is_none() {
            self.queue_pairs = Some(QueuePairs::new(&request.device()?, self.connections)?);
            self.resident_before = resident_bytes()?;
        }
        self.queue_pairs.as_mut().context("they were just made")
    }

    /// Sends back the messages that have come; whether there were any.
    fn send_back(&mut self) -> Result<bool> {
        let Some(queue_pairs) = &mut self.queue_pairs else {
            return Ok(false);
        };
        let arrived = queue_pairs.arrivals()?;
        for &number in &arrived {
            let message = queue_pairs.message(number);
            queue_pairs.receive(number)?;
            queue_pairs.send(number, &message)?;
            self.echoed += 1;
        }
        Ok(!arrived.is_empty())
    }
}
