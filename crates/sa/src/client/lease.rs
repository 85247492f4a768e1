//! Leases of service registrations: the client's thread renews each lease and withdraws the service
//! at its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use portolan_threads::lock::Mutex;
use portolan_wire::sa::{Query, ServiceRecord};

use super::CLOSE_GRACE;
use crate::engine::{Failure, Request};
use crate::query_coalescer::{QueryCoalescer, Ticket};

/// Renewals within the length of one lease.
pub const RENEWALS_PER_LEASE: u32 = 3;
/// Longest time that one renewal may take.
pub(super) const RENEWAL_WITHIN: Duration = Duration::from_secs(10);
/// Shortest pause before a failed renewal is retried.
const RENEWAL_PAUSE: Duration = Duration::from_millis(500);
/// Renewal interval of a lease without end, unless the subnet changes.
const ENDLESS_RENEWAL: Duration = Duration::from_secs(3600);

/// State of a registration's lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseState {
    /// Number of successful renewals.
    pub renewals: u64,
    /// Why the last renewal failed; `None` if it succeeded.
    pub failure: Option<Failure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LeaseNumber(pub(super) u64);

/// A lease that the thread keeps renewed.
pub(super) struct LeaseOrder {
    pub(super) number: LeaseNumber,
    pub(super) record: ServiceRecord,
    pub(super) state: Arc<Mutex<LeaseState>>,
}

pub(super) fn registration(record: &ServiceRecord) -> Result<Request, Failure> {
    let query = key(record)
        .lease_s(record.lease_s)
        .data8(record.data8)
        .data16(record.data16)
        .data32(record.data32)
        .data64(record.data64);
    Ok(Request::set(&query)?)
}

pub(super) fn withdrawal(record: &ServiceRecord) -> Result<Request, Failure> {
    Ok(Request::delete(&key(record))?)
}

/// The administrator's key of a service (IBTA 15.2.5.14.2): id, GID and partition; plus its name.
fn key(record: &ServiceRecord) -> Query<ServiceRecord> {
    let mut query = Query::<ServiceRecord>::new()
        .service_id(record.service_id)
        .gid(record.gid)
        .pkey(record.pkey);
    if record.key != [0; 16] {
        query = query.key(record.key);
    }
    if record.name != [0; portolan_wire::sa::NAME_LEN] {
        query = query.name(record.name);
    }
    query
}

/// The leases that a client's thread keeps.
#[derive(Default)]
pub(super) struct Leases {
    leases: BTreeMap<LeaseNumber, Lease>,
    asked: BTreeMap<Ticket, LeaseNumber>,
}

struct Lease {
    order: LeaseOrder,
    /// When to send the next renewal; `None` while an answer is pending.
    due: Option<Duration>,
    withdrawing: bool,
}

impl Lease {
    fn every(&self) -> Duration {
        match self.order.record.lease_s {
            ServiceRecord::LEASE_FOR_EVER => ENDLESS_RENEWAL,
            lease_s => Duration::from_secs(lease_s.into()) / RENEWALS_PER_LEASE,
        }
    }

    fn note(&self, change: impl FnOnce(&mut LeaseState)) {
        let mut state = self.order.state.lock();
        change(&mut state);
    }
}

impl Leases {
    pub(super) fn add(&mut self, now: Duration, order: LeaseOrder) {
        let number = order.number;
        let mut lease = Lease {
            order,
            due: None,
            withdrawing: false,
        };
        lease.due = Some(now + lease.every());
        self.leases.insert(number, lease);
    }

    pub(super) fn forget(
        &mut self,
        now: Duration,
        number: LeaseNumber,
        queries: Option<&mut QueryCoalescer>,
    ) {
        self.leases.remove(&number);
        self.cancel_renewal(now, number, queries);
    }

    pub(super) fn withdraw(
        &mut self,
        now: Duration,
        number: LeaseNumber,
        queries: Option<&mut QueryCoalescer>,
    ) {
        self.cancel_renewal(now, number, queries);
        if let Some(lease) = self.leases.get_mut(&number) {
            lease.withdrawing = true;
            lease.due = Some(now);
        }
    }

    /// Cancels a renewal in progress, so that it cannot arrive after the withdrawal.
    fn cancel_renewal(
        &mut self,
        now: Duration,
        number: LeaseNumber,
        queries: Option<&mut QueryCoalescer>,
    ) {
        let renewal = self.asked.iter().find(|(_, of)| **of == number);
        if let Some(ticket) = renewal.map(|(ticket, _)| *ticket) {
            self.asked.remove(&ticket);
            if let Some(queries) = queries {
                queries.cancel(now, ticket);
            }
        }
    }

    /// Renews all leases at once, because the administrator may have lost them.
    pub(super) fn renew_all(&mut self, now: Duration) {
        for lease in self.leases.values_mut() {
            if lease.due.is_some() {
                lease.due = Some(now);
            }
        }
    }

    /// Fails all renewals in progress: their answers cannot arrive.
    pub(super) fn lost(&mut self, now: Duration, failure: &Failure) {
        for (_, number) in std::mem::take(&mut self.asked) {
            self.failed(now, number, failure.clone());
        }
    }

    pub(super) fn any(&self) -> bool {
        !self.leases.is_empty()
    }

    pub(super) fn is_withdrawing(&self) -> bool {
        self.leases.values().any(|lease| lease.withdrawing)
    }

    pub(super) fn timeout(&self) -> Option<Duration> {
        self.leases.values().filter_map(|lease| lease.due).min()
    }

    /// Sends the renewals that are due.
    pub(super) fn turn(&mut self, now: Duration, queries: &mut QueryCoalescer) {
        for (number, lease) in &mut self.leases {
            if lease.due.is_none_or(|due| now < due) {
                continue;
            }
            let record = &lease.order.record;
            let (request, within) = match lease.withdrawing {
                true => (withdrawal(record), CLOSE_GRACE),
                false => (registration(record), RENEWAL_WITHIN.min(lease.every())),
            };
            lease.due = None;
            // The same record was encoded before, so encoding it succeeds.
            if let Ok(request) = request {
                let ticket = queries.ask(now, request, now + within);
                self.asked.insert(ticket, *number);
            }
        }
    }

    pub(super) fn answered(&mut self, now: Duration, ticket: Ticket, outcome: Result<(), Failure>) {
        let Some(number) = self.asked.remove(&ticket) else {
            return;
        };
        if let Err(failure) = outcome {
            self.failed(now, number, failure);
            return;
        }
        let Some(lease) = self.leases.get_mut(&number) else {
            return;
        };
        if lease.withdrawing {
            self.leases.remove(&number);
            return;
        }
        lease.due = Some(now + lease.every());
        lease.note(|state| {
            state.renewals += 1;
            state.failure = None;
        });
    }

    fn failed(&mut self, now: Duration, number: LeaseNumber, failure: Failure) {
        let Some(lease) = self.leases.get_mut(&number) else {
            return;
        };
        if lease.withdrawing {
            // The lease expires at the administrator by itself.
            self.leases.remove(&number);
            return;
        }
        tracing::warn!(%failure, service = %lease.order.record, "cannot renew the lease of a service");
        let pause = (lease.every() / RENEWALS_PER_LEASE).clamp(RENEWAL_PAUSE, RENEWAL_WITHIN);
        lease.due = Some(now + pause);
        lease.note(|state| state.failure = Some(failure));
    }
}
