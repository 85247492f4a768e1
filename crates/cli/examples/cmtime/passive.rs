//! The listening side. As in cmtime, one thread takes events, one accepts, one ends connections.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use portolan::Cause;
use portolan::cm::{CmId, EventChannel, QueuePairPlan, RESOURCES_MAX};
use portolan::provider::cm::{ConnParam, EventType, IdNumber};
use portolan::provider::number_map::NumberMap;
use portolan::provider::traits::Provider;

use super::{complain, create_queue_pair, queue_pair_plan};

/// How long an id's taken events may stay unacknowledged.
const DESTROY_TIME_MAX: Duration = Duration::from_secs(20);
/// Length of the queue of requests: the provider's maximum.
const BACKLOG: i32 = 0;

/// A listener that accepts every connection and ends it when its peer does.
pub(super) struct Server {
    events: EventChannel,
    listener: CmId,
}

impl Server {
    /// Starts to listen.
    ///
    /// # Errors
    ///
    /// If the address cannot be listened on.
    pub(super) fn start(provider: Arc<dyn Provider>, at: SocketAddr) -> Result<Server> {
        let events = EventChannel::open_on(provider)?;
        let listener = CmId::new(&events)?;
        listener.bind(at)?;
        listener.listen(BACKLOG)?;
        Ok(Server { events, listener })
    }

    /// The address that it listens on.
    ///
    /// # Errors
    ///
    /// If the id is gone.
    pub(super) fn local_addr(&self) -> Result<SocketAddr> {
        let local = self.listener.addresses()?.local;
        local
            .and_then(|local| local.inet())
            .context("the listener has no address")
    }

    /// Serves until the process ends.
    ///
    /// # Errors
    ///
    /// If the channel fails. A failed connection is only reported.
    pub(super) fn run(&self) -> Result<()> {
        let (requests, requested) = channel();
        let (ends, ended) = channel();
        let held = Held::default();
        let held = &held;
        thread::scope(|scope| {
            scope.spawn(move || accept(requested, held));
            scope.spawn(move || end(ended));
            // The threads end with their senders.
            let (requests, ends) = (requests, ends);
            loop {
                let event = self.events.next_event()?;
                let id = event.id();
                match event.event_type() {
                    EventType::ConnectRequest => {
                        held.put(id.clone());
                        requests.send(id.clone())?;
                    }
                    EventType::Disconnected => {
                        if let Some(id) = held.take(id.number()) {
                            ends.send(id)?;
                        }
                    }
                    EventType::Established | EventType::TimewaitExit => {}
                    other => {
                        held.take(id.number());
                        match event.failure() {
                            Some(error) => complain(&error),
                            None => complain(&format_args!("unexpected event {other}")),
                        }
                    }
                }
            }
        })
    }
}

/// The ids of connections. Dropping an id destroys it.
#[derive(Default)]
struct Held(Mutex<NumberMap<IdNumber, CmId>>);

impl Held {
    fn put(&self, id: CmId) {
        self.ids().insert(id.number(), id);
    }

    fn take(&self, number: IdNumber) -> Option<CmId> {
        self.ids().remove(&number)
    }

    fn ids(&self) -> MutexGuard<'_, NumberMap<IdNumber, CmId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn accept(requested: Receiver<CmId>, held: &Held) {
    let mut plan = queue_pair_plan();
    let param = ConnParam {
        responder_resources: RESOURCES_MAX,
        initiator_depth: RESOURCES_MAX,
        retry_count: 7,
        rnr_retry_count: 7,
        ..ConnParam::default()
    };
    for id in requested {
        if let Err(error) = accept_one(&id, &mut plan, &param) {
            complain(&error);
            // Fails if the peer has given up meanwhile.
            let _ = id.reject(&[]);
            // No event will report the end of this id.
            held.take(id.number());
        }
    }
}

fn accept_one(id: &CmId, plan: &mut QueuePairPlan, param: &ConnParam) -> portolan::Result<()> {
    create_queue_pair(id, plan)?;
    id.accept(param)
}

fn end(ended: Receiver<CmId>) {
    for id in ended {
        if let Err(error) = end_one(id) {
            complain(&error);
        }
    }
}

fn end_one(id: CmId) -> portolan::Result<()> {
    match id.disconnect() {
        // Both sides have disconnected at the same time.
        Err(error) if matches!(error.cause, Cause::InvalidState { .. }) => {}
        disconnected => disconnected?,
    }
    id.destroy_queue_pair()?;
    id.destroy(DESTROY_TIME_MAX)
}
