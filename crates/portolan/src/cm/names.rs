//! Names looked up for an id: rdma_resolve_addrinfo(3) and rdma_query_addrinfo(3).

use std::sync::{Arc, Weak};
use std::time::Duration;

use portolan_addrinfo::background::{Outcome, start_addrinfo};
use portolan_addrinfo::names::pool::Pending;
use portolan_addrinfo::{AddrInfo, AddrInfoError, Flags, Hints};
use portolan_provider::cm::EventType;
use portolan_provider::verbs::LinkLayer;
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::Gid;

use super::id::{CmId, IdShared};
use crate::lock;
use crate::resolve::{Machine, fabric};

/// How long a look-up may take whose caller does not say: as long as libc's resolver takes at most by
/// itself (resolv.conf(5): 3 servers, 2 attempts at each, 5 s each).
pub const RESOLVE_ADDRINFO_TIMEOUT: Duration = Duration::from_secs(30);

/// Where an id's look-up stands. Each has a number, which its event bears: the event of one that was
/// given up is nobody's.
#[derive(Debug, Default)]
pub(super) struct NameLookup {
    number: u64,
    stage: Stage,
    /// The port of InfiniBand that the id is bound to, by its GID.
    fabric_port: Option<Gid>,
}

#[derive(Debug, Default)]
enum Stage {
    /// None is under way.
    #[default]
    Idle,
    /// It is under way; dropping what is held ends it.
    Started(#[allow(dead_code, reason = "held for its drop")] Option<Pending>),
    /// It has ended, and its event waits to be taken.
    Ended(Box<Outcome>),
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

    /// Binds to the port of InfiniBand with this GID, an address of AF_IB (`rdma_bind_addr(3)`), for looking
    /// services up at the administrator of its subnet ([`Flags::SA`]). The port is found by its user MAD
    /// device, so this needs no provider that has it; nor does the provider know of it, and connections over
    /// the port are not this id's.
    ///
    /// # Errors
    /// `AddressNotAvailable` if no port of InfiniBand that is up has the GID; `InvalidState` if the id is bound
    /// already.
    pub fn bind_to_fabric_port(&self, gid: Gid) -> Result<()> {
        let failed = |cause| Err(self.explain(Error::new(Step::Bind, cause)));
        let is_bound = self.addresses()?.device_index.is_some();
        if is_bound || lock(&self.shared.name_lookup).fabric_port.is_some() {
            let (expected, found) = ("an id that is not bound", "one that is");
            return failed(Cause::InvalidState { expected, found });
        }
        if !fabric::has_port(gid) {
            return failed(Cause::AddressNotAvailable);
        }
        lock(&self.shared.name_lookup).fabric_port = Some(gid);
        Ok(())
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
        let by_administrator = hints.is_some_and(|hints| hints.flags.contains(Flags::SA));
        let port = match by_administrator {
            true => Some(self.administrated_port(node, service, hints)?),
            false => None,
        };
        let timeout = self.waits_for().map_or(timeout, |most| timeout.min(most));
        // The id may go while its name is looked up.
        let id = Arc::downgrade(&self.shared);
        let done = move |outcome| end_lookup(&id, number, outcome);
        start_addrinfo(
            Machine::borrowing(&self.provider()).at_port(port),
            node,
            service,
            hints,
            timeout,
            done,
        )
    }

    /// The GID of the port whose administrator is to be asked: the id must be bound to a port of InfiniBand.
    fn administrated_port(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        hints: Option<&Hints>,
    ) -> Result<Gid> {
        // What is wrong with the question itself comes first.
        portolan_addrinfo::Plan::new(node, service, hints)?;
        let bound = lock(&self.shared.name_lookup).fabric_port;
        if let Some(gid) = bound {
            return Ok(gid);
        }
        let known = self.addresses()?;
        let cause = match known.device_index {
            None => Cause::InvalidState {
                expected: "an id bound to an InfiniBand port",
                found: "one bound to no device",
            },
            Some(index) => match known.sgid {
                Some(gid) if self.is_infiniband(index, known.port_num)? => return Ok(gid),
                _ => Cause::Unsupported(
                    "a subnet administrator (RAI_SA) on a port that is not InfiniBand's",
                ),
            },
        };
        Err(self.explain(Error::new(Step::ResolveName, cause)))
    }

    /// Whether a port of a device of the provider is linked by InfiniBand.
    fn is_infiniband(&self, device_index: u32, port_num: u8) -> Result<bool> {
        let devices = self.provider().devices()?;
        let mut devices = devices.iter();
        match devices.find(|device| device.index() == device_index) {
            Some(device) => Ok(device.port_attr(port_num)?.link_layer == LinkLayer::InfiniBand),
            None => Ok(false),
        }
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
            Stage::Ended(outcome) => Some(outcome.map(|found| lookup.stage = Stage::Ready(found))),
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
        std::mem::replace(&mut lookup.stage, Stage::Ended(Box::new(outcome)))
    };
    // Not under the lock: it may be the last that holds the pool's job.
    drop(given_up);
    let written = id.write_library_event(event, status, number);
    if let Err(error) = written {
        // The id was destroyed at its provider meanwhile.
        tracing::debug!(%error, "a name look-up ended for nobody");
        id.abandon_lookup(number);
    }
}
