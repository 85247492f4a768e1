//! Name lookups of an id: rdma_resolve_addrinfo(3) and rdma_query_addrinfo(3).

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
use super::name_lookup::Stage;
use crate::resolve::{Machine, fabric};

/// Default time limit of a lookup: libc's resolver's own maximum (resolv.conf(5): 3 servers, 2
/// attempts at each, 5 s each).
pub const RESOLVE_ADDRINFO_TIMEOUT: Duration = Duration::from_secs(30);

impl CmId {
    /// Starts to find the addresses of a node, a service or hints (`rdma_resolve_addrinfo(3)`).
    ///
    /// Ends in `AddrinfoResolved`, after which [`CmId::query_addrinfo`] returns them, or in
    /// `AddrinfoError`, whose [`EventData::addrinfo_error`](super::EventData::addrinfo_error) has
    /// the reason. Never blocks, not even for DNS, unless the id is synchronous: then it waits for
    /// the end. After [`RESOLVE_ADDRINFO_TIMEOUT`] the lookup fails with `EAI_AGAIN`. At most eight lookups of the
    /// process run at once; the limit includes the wait of the others
    /// ([`resolve`](mod@crate::resolve#names-that-need-no-server-and-slow-servers)).
    ///
    /// # Errors
    /// The lookup could not start, and no event follows:
    ///
    /// * `InUse` (EBUSY): a lookup is in progress, or its result was not taken.
    /// * `InvalidArgument` (EINVAL): the hints are contradictory, or the query is empty.
    /// * With [`Flags::SA`]: EOPNOTSUPP if a node is given or the id's port is not InfiniBand;
    ///   EINVAL without a service or on an id that is not bound to a device.
    /// * `LimitReached`: 16,384 lookups are in progress in this process.
    pub fn resolve_addrinfo(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        hints: Option<&Hints>,
    ) -> Result<()> {
        self.resolve_addrinfo_within(node, service, hints, RESOLVE_ADDRINFO_TIMEOUT)
    }

    /// Like [`CmId::resolve_addrinfo`], with another deadline.
    ///
    /// # Errors
    /// As for [`CmId::resolve_addrinfo`]; also `InvalidArgument` if the deadline exceeds an hour.
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

    /// Binds to the InfiniBand port with this GID, an AF_IB address (`rdma_bind_addr(3)`), to look
    /// up services at its subnet's administrator ([`Flags::SA`]).
    ///
    /// The port is found by its user MAD device, so no provider needs to support it. The provider
    /// does not know of this binding, and connections do not use the port.
    ///
    /// # Errors
    /// `AddressNotAvailable` if no active InfiniBand port has the GID; `InvalidState` if the id is
    /// already bound.
    pub fn bind_to_fabric_port(&self, gid: Gid) -> Result<()> {
        let failed = |cause| Err(self.explain(Error::new(Step::Bind, cause)));
        let is_bound = self.addresses()?.device_index.is_some();
        if is_bound || self.shared.name_lookup.lock().fabric_port.is_some() {
            let (expected, found) = ("an id that is not bound", "one that is");
            return failed(Cause::InvalidState { expected, found });
        }
        if !fabric::has_port(gid) {
            return failed(Cause::AddressNotAvailable);
        }
        self.shared.name_lookup.lock().fabric_port = Some(gid);
        Ok(())
    }

    /// Takes the result (`rdma_query_addrinfo(3)`), after `AddrinfoResolved` was taken from the
    /// channel. Then the next lookup may start.
    ///
    /// # Errors
    /// `NoSuchObject` (ENOENT) if there is no result, or not yet, or it was already taken.
    pub fn query_addrinfo(&self) -> Result<Vec<AddrInfo>> {
        let mut lookup = self.shared.name_lookup.lock();
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

    /// Reserves the id's only lookup and returns its number.
    fn begin_lookup(&self) -> Result<u64> {
        let mut lookup = self.shared.name_lookup.lock();
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
        // Without written events the end of the lookup could not be reported.
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
        // The id may be destroyed during the lookup.
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

    /// The GID of the port whose administrator answers: the id must be bound to an InfiniBand port.
    fn administrated_port(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        hints: Option<&Hints>,
    ) -> Result<Gid> {
        // Report an invalid query before an unsuitable port.
        portolan_addrinfo::Plan::new(node, service, hints)?;
        let bound = self.shared.name_lookup.lock().fabric_port;
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

    /// Returns whether a port of one of the provider's devices uses InfiniBand.
    fn is_infiniband(&self, device_index: u32, port_num: u8) -> Result<bool> {
        let devices = self.provider().devices()?;
        let mut devices = devices.iter();
        match devices.find(|device| device.index() == device_index) {
            Some(device) => Ok(device.port_attr(port_num)?.link_layer == LinkLayer::InfiniBand),
            None => Ok(false),
        }
    }

    /// Stores the handle that cancels the lookup, unless the lookup has ended.
    fn hold_lookup(&self, number: u64, pending: Option<Pending>) {
        let mut lookup = self.shared.name_lookup.lock();
        if lookup.number == number
            && let Stage::Started(held) = &mut lookup.stage
        {
            *held = pending;
        }
    }

    /// Abandons a lookup: its event, if any, is ignored.
    fn abandon_lookup(&self, number: u64) {
        let mut lookup = self.shared.name_lookup.lock();
        let is_open = !matches!(lookup.stage, Stage::Ready(_) | Stage::Closed);
        if lookup.number == number && is_open {
            let given_up = std::mem::take(&mut lookup.stage);
            drop(lookup);
            drop(given_up);
        }
    }

    /// Handles the event of lookup `number`: returns its contents, or `None` if the lookup was
    /// abandoned.
    pub(super) fn take_lookup(
        &self,
        number: u64,
    ) -> Option<std::result::Result<(), AddrInfoError>> {
        let mut lookup = self.shared.name_lookup.lock();
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
    /// Ends the lookup of an id that is destroyed.
    pub(super) fn close_lookup(&self) {
        let last = std::mem::replace(&mut self.name_lookup.lock().stage, Stage::Closed);
        drop(last);
    }
}

/// Reports the end of a lookup by an event on the id's channel, unless the id has abandoned it.
fn end_lookup(id: &Weak<IdShared>, number: u64, outcome: Outcome) {
    let Some(shared) = id.upgrade() else { return };
    let id = CmId::from_shared(shared);
    let (event, status) = match &outcome {
        Ok(_) => (EventType::AddrinfoResolved, 0),
        Err(error) => (EventType::AddrinfoError, -error.errno()),
    };
    let given_up = {
        let mut lookup = id.shared.name_lookup.lock();
        if lookup.number != number || !matches!(lookup.stage, Stage::Started(_)) {
            return;
        }
        std::mem::replace(&mut lookup.stage, Stage::Ended(Box::new(outcome)))
    };
    // Drop after unlocking: this may be the last reference to the pool's job.
    drop(given_up);
    let written = id.write_library_event(event, status, number);
    if let Err(error) = written {
        // The provider destroyed the id meanwhile.
        tracing::debug!(%error, "a name lookup ended after its id was destroyed");
        id.abandon_lookup(number);
    }
}
