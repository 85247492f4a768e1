//! Endpoints: synchronous ids created from a resolved address in one call (`rdma_create_ep(3)`),
//! and the requests that arrive at passive ones (`rdma_get_request(3)`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_provider::cm::{EventType, Service};
use portolan_provider::traits::Provider;
use portolan_provider::{Cause, Error, Result, Step};

use super::id::{CmId, QueuePairPlan};
use crate::resolve::Resolved;

/// Time limit for resolving an endpoint's address, and again for its route (as in librdmacm's
/// `rdma_create_ep`).
const RESOLVE_TIMEOUT: Duration = Duration::from_millis(2000);

/// The address of an endpoint to create (`struct rdma_addrinfo`).
///
/// ```
/// use portolan::cm::{AddressInfo, CmId, ConnParam, QpCap, QpInit, QpType, QueuePairPlan};
/// use portolan::provider::{cm::Service, software_provider};
/// use portolan::resolve::{resolve, resolve_passive};
/// use portolan::wire::addr::PortSpace;
/// use std::time::Duration;
///
/// # let patience = Duration::from_secs(10);
/// let tcp = Service { port_space: PortSpace::Tcp, qp_type: QpType::Rc };
/// let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, ..QpCap::default() };
/// let init = QpInit { qp_type: QpType::Rc, cap, sq_sig_all: true };
/// let plan = QueuePairPlan { pd: None, send_cq: None, recv_cq: None, srq: None, init };
///
/// let here = AddressInfo::passive(&resolve_passive("127.0.0.1:0")?[0], tcp);
/// let listener = CmId::endpoint(software_provider()?, &here, Some(plan.clone()), patience)?;
/// listener.listen(8)?;
/// let address = listener.addresses()?.local.and_then(|local| local.inet()).expect("it is bound");
/// let server = std::thread::spawn(move || -> portolan::Result<()> {
///     let child = listener.next_request(patience)?; // with a queue pair, as planned
///     child.accept(&ConnParam::default())
/// });
///
/// let there = AddressInfo::active(&resolve(&address.to_string())?[0], tcp);
/// let client = CmId::endpoint(software_provider()?, &there, Some(plan), patience)?;
/// client.connect(&ConnParam::default())?;
/// assert!(client.queue_pair().is_some());
/// server.join().unwrap()?;
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressInfo {
    /// Listen at `source` instead of connecting to `destination` (`RAI_PASSIVE`).
    pub passive: bool,
    /// Port space and queue pair type.
    pub service: Service,
    /// The local address.
    pub source: Option<SocketAddr>,
    /// The peer's address.
    pub destination: Option<SocketAddr>,
    /// Private data to send before the user's when connecting (`ai_connect`).
    pub connect: Vec<u8>,
}

impl AddressInfo {
    /// The address to connect to a resolved name.
    pub fn active(resolved: &Resolved, service: Service) -> Self {
        Self {
            passive: false,
            service,
            source: resolved.source,
            destination: Some(resolved.addr),
            connect: Vec::new(),
        }
    }

    /// The address to listen at a resolved name.
    pub fn passive(resolved: &Resolved, service: Service) -> Self {
        Self {
            passive: true,
            service,
            source: Some(resolved.addr),
            destination: None,
            connect: Vec::new(),
        }
    }
}

impl CmId {
    /// Creates an endpoint (`rdma_create_ep(3)`): a synchronous id whose calls wait for at most
    /// `timeout`.
    ///
    /// A passive endpoint is bound; it creates a queue pair by the plan for each request that
    /// [`CmId::next_request`] returns. An active endpoint has its address and route resolved and
    /// its own queue pair. [`CmId::destroy`] corresponds to `rdma_destroy_ep(3)`.
    ///
    /// # Errors
    /// The errors of each step; `InvalidArgument` if an address that a step needs is missing.
    pub fn endpoint(
        provider: Arc<dyn Provider>,
        info: &AddressInfo,
        plan: Option<QueuePairPlan>,
        timeout: Duration,
    ) -> Result<Self> {
        let id = Self::synchronous(provider, info.service, timeout)?;
        if info.passive {
            let source = info.source.ok_or_else(|| missing(Step::Bind, "source"))?;
            id.bind(source)?;
            *id.shared.plan.lock() = plan.map(Box::new);
            return Ok(id);
        }
        let missing = || missing(Step::ResolveAddress, "destination");
        let destination = info.destination.ok_or_else(missing)?;
        id.resolve_addr(info.source, destination, RESOLVE_TIMEOUT)?;
        id.resolve_route(RESOLVE_TIMEOUT)?;
        if let Some(plan) = &plan {
            id.create_planned_queue_pair(plan)?;
        }
        *id.shared.connect_prefix.lock() = info.connect.clone();
        Ok(id)
    }

    /// Waits for a connection request at a synchronous listener (`rdma_get_request(3)`), at most
    /// for `timeout`.
    ///
    /// The returned id is also synchronous, and has a queue pair if one was planned. The request is
    /// its [`CmId::last_event`].
    ///
    /// # Errors
    /// `InvalidState` if the id is not synchronous; `TimedOut`; errors of creating the queue pair,
    /// in which case the peer receives a reject.
    pub fn next_request(&self, timeout: Duration) -> Result<Self> {
        let Some(waits_for) = self.waits_for() else {
            let (expected, found) = ("a synchronous id", "one with a channel of the user's");
            let cause = Cause::InvalidState { expected, found };
            return Err(self.explain(Error::new(Step::Event, cause)));
        };
        let event = self
            .event_channel()
            .next_event_within(timeout)
            .map_err(|error| self.explain(error))?;
        if event.event_type() != EventType::ConnectRequest {
            let (what, expected) = ("event", EventType::ConnectRequest);
            let found = event.event_type();
            let other = || Error::invalid(Step::Event, what, expected, found);
            return Err(event.failure().unwrap_or_else(other));
        }
        let child = event.id().clone();
        child.migrate_to_synchronous(waits_for)?;
        child.set_last_event(event.data().clone());
        let plan = self.shared.plan.lock().clone();
        if let Some(plan) = plan {
            child.create_planned_queue_pair(&plan)?;
        }
        Ok(child)
    }
}

fn missing(step: Step, what: &'static str) -> Error {
    Error::invalid(step, what, "an address", "none")
}
