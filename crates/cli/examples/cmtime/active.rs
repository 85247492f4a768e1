//! The connecting side. One thread starts a step for all connections and waits until it has ended; another
//! takes the events. cmtime divides its work and waits in the same way, so differences come from the library.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use portolan::cm::{CmId, Event, EventChannel};
use portolan::provider::cm::{ConnParam, EventType, IdNumber};
use portolan::provider::number_map::NumberMap;
use portolan::provider::traits::Provider;

use super::clock::{Clock, Step, Taken};
use super::{create_queue_pair, queue_pair_plan};

/// Time limit of a step for all connections together.
const STEP_TIME_MAX: Duration = Duration::from_secs(120);
/// Time limit for resolving an address or a route before a retry, and the number of retries: cmtime's defaults.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
const RETRIES: u32 = 2;
/// Number of polls for the end of a step between two readings of the clock. Without a vDSO clock each reading
/// is a system call.
const CLOCK_INTERVAL: u32 = 256;

/// The connections of a measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    pub(super) destination: SocketAddr,
    /// The address to bind to first, if given.
    pub(super) source: Option<IpAddr>,
    pub(super) connections: u32,
}

/// Takes every step for all connections at once. Returns the time of each step.
///
/// # Errors
///
/// If a step fails for a connection, or does not end in time.
pub(super) fn measure(provider: Arc<dyn Provider>, round: Round) -> Result<Vec<Taken>> {
    let events = EventChannel::open_on(provider)?;
    let clock = Clock::new(round.connections);
    let mut ids = Vec::with_capacity(round.connections as usize);
    clock.begin_all(Step::CreateId);
    for connection in 0..round.connections as usize {
        clock.begin(Step::CreateId, connection);
        ids.push(CmId::new(&events)?);
        clock.end(Step::CreateId, connection);
    }
    clock.end_all(Step::CreateId);
    let numbers = ids.iter().enumerate();
    let crew = Arc::new(Crew {
        numbers: numbers.map(|(at, id)| (id.number(), at)).collect(),
        retries_left: ids.iter().map(|_| AtomicU32::new(RETRIES)).collect(),
        ids,
        round,
        clock,
        has_failed: AtomicBool::new(false),
        failure: Mutex::default(),
        is_over: AtomicBool::new(false),
    });
    let taker = thread::spawn({
        let (crew, events) = (crew.clone(), events.clone());
        move || crew.take_events(&events)
    });
    let taken = crew.take_steps();
    crew.is_over.store(true, Ordering::Release);
    // Every resolution ends with an event, found or not. Without it, the thread waits until the process ends.
    let last = CmId::new(&events)?;
    if crew.resolve_address(&last).is_ok() {
        let _ = taker.join();
    }
    taken?;
    Ok(crew.clock.taken())
}

/// Connections that take their steps together.
struct Crew {
    ids: Vec<CmId>,
    numbers: NumberMap<IdNumber, usize>,
    /// Retries left in the current resolution step, by connection.
    retries_left: Vec<AtomicU32>,
    round: Round,
    clock: Clock,
    /// Checked before the lock of `failure` is taken.
    has_failed: AtomicBool,
    failure: Mutex<Option<anyhow::Error>>,
    is_over: AtomicBool,
}

impl Crew {
    fn take_steps(&self) -> Result<()> {
        if let Some(source) = self.round.source {
            let source = SocketAddr::new(source, 0);
            self.each(Step::Bind, |id| id.bind(source))?;
        }
        self.each_until_event(Step::ResolveAddress, |id| self.resolve_address(id))?;
        let retries = self.retries_left.iter();
        retries.for_each(|left| left.store(RETRIES, Ordering::Relaxed));
        self.each_until_event(Step::ResolveRoute, |id| id.resolve_route(RESOLVE_TIMEOUT))?;
        let mut plan = queue_pair_plan();
        self.each(Step::CreateQueuePair, |id| create_queue_pair(id, &mut plan))?;
        let param = ConnParam {
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: RETRIES as u8,
            ..ConnParam::default()
        };
        self.each_until_event(Step::Connect, |id| id.connect(&param))?;
        self.each_until_event(Step::Disconnect, |id| {
            id.disconnect()?;
            id.destroy_queue_pair()
        })?;
        self.each(Step::Destroy, |id| id.clone().destroy(STEP_TIME_MAX))
    }

    fn resolve_address(&self, id: &CmId) -> portolan::Result<()> {
        id.resolve_addr(None, self.round.destination, RESOLVE_TIMEOUT)
    }

    /// Takes a step that ends when its call returns.
    fn each(&self, step: Step, mut take: impl FnMut(&CmId) -> portolan::Result<()>) -> Result<()> {
        self.clock.begin_all(step);
        for (connection, id) in self.ids.iter().enumerate() {
            self.clock.begin(step, connection);
            take(id)?;
            self.clock.end(step, connection);
        }
        self.clock.end_all(step);
        Ok(())
    }

    /// Takes a step that ends with an event.
    fn each_until_event(
        &self,
        step: Step,
        take: impl Fn(&CmId) -> portolan::Result<()>,
    ) -> Result<()> {
        self.clock.begin_all(step);
        for (connection, id) in self.ids.iter().enumerate() {
            self.clock.begin(step, connection);
            take(id)?;
        }
        let (deadline, mut looks) = (Instant::now() + STEP_TIME_MAX, 0_u32);
        while self.clock.ended(step) < self.round.connections {
            if self.has_failed.load(Ordering::Acquire) {
                let failure = self.failure.lock();
                let failure = failure.unwrap_or_else(PoisonError::into_inner).take();
                return Err(failure.context("cannot take events")?);
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(CLOCK_INTERVAL) && Instant::now() >= deadline {
                let (name, ended) = (step.name(), self.clock.ended(step));
                let all = self.round.connections;
                bail!("{name}: {ended} of {all} connections within {STEP_TIME_MAX:?}");
            }
            thread::yield_now();
        }
        self.clock.end_all(step);
        Ok(())
    }

    /// Takes events until everything is done or something fails. Like cmtime it waits without a time limit.
    fn take_events(&self, events: &EventChannel) {
        loop {
            let taken = events.next_event().map_err(Into::into);
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            if let Err(error) = taken.and_then(|event| self.take(&event)) {
                let failure = self.failure.lock();
                *failure.unwrap_or_else(PoisonError::into_inner) = Some(error);
                self.has_failed.store(true, Ordering::Release);
                return;
            }
        }
    }

    fn take(&self, event: &Event) -> Result<()> {
        let number = self.numbers.get(&event.id().number());
        let connection = *number.context("an event of an unknown id")?;
        let step = match event.event_type() {
            EventType::AddrResolved => Step::ResolveAddress,
            EventType::RouteResolved => Step::ResolveRoute,
            EventType::Established => Step::Connect,
            EventType::Disconnected => Step::Disconnect,
            // Late packets can no longer arrive.
            EventType::TimewaitExit => return Ok(()),
            EventType::AddrError if self.may_retry(connection) => {
                return Ok(self.resolve_address(event.id())?);
            }
            EventType::RouteError if self.may_retry(connection) => {
                return Ok(event.id().resolve_route(RESOLVE_TIMEOUT)?);
            }
            other => {
                let unexpected = || anyhow!("unexpected event {other}");
                return Err(event.failure().map_or_else(unexpected, Into::into));
            }
        };
        if !self.clock.end(step, connection) {
            let name = step.name();
            bail!(
                "{} of connection {connection}, whose {name} is not in progress",
                event.event_type()
            );
        }
        Ok(())
    }

    fn may_retry(&self, connection: usize) -> bool {
        let left = self.retries_left.get(connection);
        let take = |left: &AtomicU32| {
            let less = |left: u32| left.checked_sub(1);
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
                .is_ok()
        };
        left.is_some_and(take)
    }
}
