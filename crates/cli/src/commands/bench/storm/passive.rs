//! The accepting side: accepts hundreds of connections and echoes messages, in one thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::EventType;
use portolan::provider::traits::Provider;
use serde_json::{Value, json};

use super::queue_pairs::QueuePairs;
use crate::commands::bench::memory::resident_bytes;

/// Maximum number of waiting requests. Further ones are dropped and repeated by their senders.
const BACKLOG: i32 = 1024;
/// Time limit without any event.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long to wait for events between polls for messages.
const EVENT_WAIT: Duration = Duration::from_millis(1);

/// Listens, reports the addresses, accepts `connections` connections, reports their memory use, and echoes messages until
/// all have ended.
pub(in crate::commands::bench) fn serve(
    provider: &Arc<dyn Provider>,
    connections: u32,
    tell: impl Fn(Value) -> Result<()>,
) -> Result<Value> {
    let events = EventChannel::open_on(provider.clone())?;
    let first = listen(&events, "127.0.0.1:0")?;
    // Not every machine has this address.
    let second = listen(&events, "[::1]:0").ok();
    let listeners: Vec<&CmId> = [&first].into_iter().chain(&second).collect();
    let local = listeners.iter().map(|listener| address_of(listener));
    let local = local.collect::<Result<Vec<_>>>()?;
    let mut served = Served {
        queue_pairs: None,
        ids: Vec::new(),
        resident_before: 0,
        connections,
        established: 0,
        ended: 0,
        echoed: 0,
    };
    tell(json!({ "listening": local }))?;
    let mut deadline = Instant::now() + SILENCE_MAX;
    while served.ended < connections {
        if served.take_events(&events, &tell)? | served.send_back()? {
            deadline = Instant::now() + SILENCE_MAX;
        }
        ensure!(
            Instant::now() < deadline,
            "{} of {connections} connections arrived, {} ended, then nothing",
            served.established,
            served.ended
        );
    }
    Ok(json!({ "ended": served.ended, "echoed": served.echoed }))
}

fn listen(events: &EventChannel, address: &str) -> Result<CmId> {
    let listener = CmId::new(events)?;
    listener.bind(address.parse()?)?;
    listener.listen(BACKLOG)?;
    Ok(listener)
}

fn address_of(listener: &CmId) -> Result<String> {
    let local = listener.addresses()?.local.and_then(|local| local.inet());
    Ok(local.context("the listener has no address")?.to_string())
}

struct Served {
    /// Created for the device of the first request, because a loopback listener has none.
    queue_pairs: Option<QueuePairs>,
    ids: Vec<CmId>,
    resident_before: u64,
    connections: u32,
    established: u32,
    ended: u32,
    echoed: u64,
}

impl Served {
    /// Handles all pending events, or waits briefly for one; returns whether there were any.
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

    /// The queue pairs, created with the first request. Their shared part does not count as memory of connections.
    fn queue_pairs_for(&mut self, request: &CmId) -> Result<&mut QueuePairs> {
        if self.queue_pairs.is_none() {
            self.queue_pairs = Some(QueuePairs::new(&request.device()?, self.connections)?);
            self.resident_before = resident_bytes()?;
        }
        self.queue_pairs.as_mut().context("they were just created")
    }

    /// Echoes the messages that have arrived; returns whether there were any.
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
