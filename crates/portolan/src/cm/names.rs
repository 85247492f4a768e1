//! Names looked up for an id: rdma_resolve_addrinfo(3) and rdma_query_addrinfo(3).

use std::sync::{Arc, Weak};
use std::time::Duration;

use portolan_addrinfo::background::{Outcome, start_addrinfo};
use portolan_addrinfo::names::pool::Pending;
use portolan_addrinfo::{AddrInfo, AddrInfoError, Flags, Hints};
use portolan_provider::cm::EventType;
use portolan_provider::{Cause, Error, Result, Step};

use super::id::{CmId, IdShared};
use crate::lock;
use crate::resolve::Machine;

/// How long a look-up may take whose caller does not say: as long as libc's resolver takes at most by
/// itself (resolv.conf(5): 3 servers, 2 attempts at each, 5 s each).
pub const RESOLVE_ADDRINFO_TIMEOUT: Duration = Duration::from_secs(30);

/// Where an id's look-up stands. Each has a number, which its event bears: the event of one that was
/// given up is nobody's.
#[derive(Debug, Default)]
pub(super) struct NameLookup {
    number: u64,
    stage: Stage,
}

#[derive(Debug, Default)]
enum Stage {
    /// None is under way.
    #[default]
    Idle,
    /// It is under way; dropping what is held ends it.
    Started(#[allow(dead_code, reason = "held for its drop")] Option<Pending>),
    /// It has ended, and its event waits to be taken.
    Ended(Outcome),
    /// Its event was taken, and its result waits to be.
    Ready(Vec<AddrInfo>),
    /// The id is destroyed.
    Closed,
}

impl CmId {
    /// Starts to find the addresses of a node, a service or hints (`rdma_resolve_addrinfo(3)`):
    /// `AddrinfoResolved`, after which [`CmId::query_addrinfo`] has them, or `AddrinfoError`, whose
    /// [`EventData::addrinfo_error`](super::EventData::addrinfo_error) says why not. Never blocks, not
    /// for DNS either, unless the id is synchronous: then it waits for the end. After
    /// [`RESOLVE_ADDRINFO_TIMEOUT`] the look-up has failed with `EAI_AGAIN`.
    ///
    /// # Errors
    /// It could not start, and no event comes: `InUse` (EBUSY) while one is under way or its result was
    /// not taken; `InvalidArgument` (EINVAL) for hints that contradict themselves, or nothing asked for;
    /// with [`Flags::SA`], EOPNOTSUPP if a node is given, EINVAL without a service or on an id that is
    /// bound to no device, and EOPNOTSUPP on one whose port is not InfiniBand's; `LimitReached` with too
    /// many look-ups in this process.
    pub fn resolve_addrinfo(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        hints: Option<&Hints>,
    ) -> Result<()> {
        self.resolve_addrinfo_within(node, service, hints, RESOLVE_ADDRINFO_TIMEOUT)
    }

    /// The same with another deadline.
    ///
    /// # Errors
    /// As for [`CmId::resolve_addrinfo`], and `InvalidArgument` for more than an hour.
    pub fn resolve_addrinfo_within(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        hints: Option<&Hints>,
        timeout: Duration,
    ) -> Result<()> {
        let number = self.begin_lookup()?;
        let started = self.start_lookup(number, node, service, hints, timeout);
        let pending = started.inspect_err(|_| self.abandon_lookup(number))?;
        self.hold_lookup(number, pending);
        let ends = [EventType::AddrinfoResolved, EventType::AddrinfoError];
        self.complete(Step::ResolveName, &ends)
            .inspect_err(|_| self.abandon_lookup(number))
    }

    /// Takes what was found (`rdma_query_addrinfo(3)`), once `AddrinfoResolved` was taken from the
    /// channel. After that the next look-up may start.
    ///
    /// # Errors
    /// `NoSuchObject` (ENOENT) when nothing was found, not yet, or it was taken already.
    pub fn query_addrinfo(&self) -> Result<Vec<AddrInfo>> {
        let mut lookup = lock(&self.shared.name_lookup);
        match std::mem::take(&mut lookup.stage) {
            Stage::Ready(found) => Ok(found),
            other => {
                lookup.stage = other;
                drop(lookup);
                let cause = Cause::NoSuchObject("the result of a name look-up");
                Err(self.explain(Error::new(Step::Query, cause)))
            }
        }
    }

    /// Claims the id's one look-up; its number.
    fn begin_lookup(&self) -> Result<u64> {
        let mut lookup = lock(&self.shared.name_lookup);
        let cause = match lookup.stage {
            Stage::Idle => {
                lookup.number += 1;
                lookup.stage = Stage::Started(None);
                return Ok(lookup.number);
            }
            Stage::Closed => Cause::NoSuchObject("the id"),
            _ => Cause::InUse {
                what: "id",
                by: "name look-up that is under way or not queried",
                count: 1,
            },
        };
        drop(lookup);
        Err(self.explain(Error::new(Step::ResolveName, cause)))
    }

    fn start_lookup(
        &self,
        number: u64,
        node: Option<&str>,
        service: Option<&str>,
        hints: Option<&Hints>,
        timeout: Duration,
    ) -> Result<Option<Pending>> {
        // Without it the end of the look-up could not be told.
        let can_be_told = self.channel().check_write_event(self.number());
        can_be_told.map_err(|mut error| {
            error.step = Step::ResolveName;
            self.explain(error)
        })?;
        if hints.is_some_and(|hints| hints.flags.contains(Flags::SA)) {
            self.check_administrator(node, service, hints)?;
        }
        let timeout = self.waits_for().map_or(timeout, |most| timeout.min(most));
        // The id may go while its name is looked up.
        let id = Arc::downgrade(&self.shared);
        let done = move |outcome| end_lookup(&id, number, outcome);
        start_addrinfo(
            Machine::on(self.provider()),
            node,
            service,
            hints,
            timeout,
            done,
        )
    }

    /// That the subnet administrator can be asked: the id must be bound to a port of InfiniBand.
    fn check_administrator(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        hints: Option<&Hints>,
    ) -> Result<()> {
        // What is wrong with the question itself comes first.
        portolan_addrinfo::Plan::new(node, service, hints)?;
        let known = self.addresses()?;
        let cause = if known.device_index.is_some() {
            // Every device is RoCE's so far.
            Cause::Unsupported("a subnet administrator (RAI_SA) on a port that is not InfiniBand's")
        } else {
            let (expected, found) = (
                "an id bound to an InfiniBand port",
                "one bound to no device",
            );
            Cause::InvalidState { expected, found }
        };
        Err(self.explain(Error::new(Step::ResolveName, cause)))
    }

    /// Keeps what ends the look-up early, unless it has ended.
    fn hold_lookup(&self, number: u64, pending: Option<Pending>) {
        let mut lookup = lock(&self.shared.name_lookup);
        if lookup.number == number
            && let Stage::Started(held) = &mut lookup.stage
        {
            *held = pending;
        }
    }

    /// Gives a look-up up: its event, should it come, is nobody's.
    fn abandon_lookup(&self, number: u64) {
        let mut lookup = lock(&self.shared.name_lookup);
        let is_open = !matches!(lookup.stage, Stage::Ready(_) | Stage::Closed);
        if lookup.number == number && is_open {
            let given_up = std::mem::take(&mut lookup.stage);
            drop(lookup);
            drop(given_up);
        }
    }

    /// The event of look-up `number` is taken: what it brings, or `None` if it was given up.
    pub(super) fn take_lookup(
        &self,
        number: u64,
    ) -> Option<std::result::Result<(), AddrInfoError>> {
        let mut lookup = lock(&self.shared.name_lookup);
        if lookup.number != number {
            return None;
        }
        match std::mem::take(&mut lookup.stage) {
            Stage::Ended(Ok(found)) => {
                lookup.stage = Stage::Ready(found);
                Some(Ok(()))
            }
            Stage::Ended(Err(error)) => Some(Err(error)),
            other => {
                lookup.stage = other;
                None
            }
        }
    }
}

impl IdShared {
    /// Ends a look-up with its id.
    pub(super) fn close_lookup(&self) {
        let last = std::mem::replace(&mut lock(&self.name_lookup).stage, Stage::Closed);
        drop(last);
    }
}

/// A look-up has ended: its event goes to the id's channel, if the id still wants it.
fn end_lookup(id: &Weak<IdShared>, number: u64, outcome: Outcome) {
    let Some(shared) = id.upgrade() else { return };
    let id = CmId::from_shared(shared);
    let (event, status) = match &outcome {
        Ok(_) => (EventType::AddrinfoResolved, 0),
        Err(error) => (EventType::AddrinfoError, -error.errno()),
    };
    let given_up = {
        let mut lookup = lock(&id.shared.name_lookup);
        if lookup.number != number || !matches!(lookup.stage, Stage::Started(_)) {
            return;
        }
        std::mem::replace(&mut lookup.stage, Stage::Ended(outcome))
    };
    // Not under the lock: it may be the last that holds the pool's job.
    drop(given_up);
    let written = id.channel().write_event(id.number(), event, status, number);
    if let Err(error) = written {
        // The id was destroyed at its provider meanwhile.
        tracing::debug!(%error, "a name look-up ended for nobody");
        id.abandon_lookup(number);
    }
}
