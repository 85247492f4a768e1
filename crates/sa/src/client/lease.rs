//! Services that are registered for as long as somebody holds their registration: leases are renewed,
//! and withdrawn at the end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portolan_wire::sa::{Query, ServiceRecord};

use super::shared::Command;
use super::{CLOSE_GRACE, Client};
use crate::desk::{Desk, Ticket};
use crate::engine::{Failure, Request};

/// How often a lease is renewed while it lasts.
pub const RENEWALS_PER_LEASE: u32 = 3;
/// Longest time that one renewal may take.
const RENEWAL_WITHIN: Duration = Duration::from_secs(10);
/// How soon a renewal that failed is tried again at the earliest.
const RENEWAL_PAUSE: Duration = Duration::from_millis(500);
/// How long a lease without end is left alone, unless the subnet changes.
const ENDLESS_RENEWAL: Duration = Duration::from_secs(3600);

/// A service of this port's, registered with the administrator until this is dropped. Its lease is renewed
/// while it lasts, and at once when the subnet has another administrator.
#[derive(Debug)]
pub struct Registration {
    number: LeaseNumber,
    record: ServiceRecord,
    state: Arc<Mutex<LeaseState>>,
    client: Client,
    withdrawn: bool,
}

/// How a registration fares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseState {
    /// How often it was renewed.
    pub renewals: u64,
    /// Why the last renewal failed; `None` once one did not.
    pub failure: Option<Failure>,
}

impl Registration {
    /// What is registered.
    pub const fn record(&self) -> &ServiceRecord {
        &self.record
    }

    /// How its lease fares.
    pub fn state(&self) -> LeaseState {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Withdraws the service, and waits until the administrator has heard of it. Dropping does so without waiting.
    ///
    /// # Errors
    /// What went wrong; the lease is not renewed in any case.
    pub fn withdraw(mut self, within: Duration) -> Result<(), Failure> {
        self.withdrawn = true;
        self.end();
        let request = withdrawal(&self.record)?;
        self.client.wait(request, within).map(|_| ())
    }

    fn end(&self) {
        let number = self.number;
        let withdraw = !self.withdrawn;
        let handle = self.client.handle();
        handle.submit(match withdraw {
            true => Command::Withdraw(number),
            false => Command::Forget(number),
        });
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.withdrawn {
            self.end();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LeaseNumber(u64);

/// A lease to keep.
pub(super) struct LeaseOrder {
    number: LeaseNumber,
    record: ServiceRecord,
    state: Arc<Mutex<LeaseState>>,
}

impl Client {
    /// Registers a service of this port's, as `record` says, and keeps it registered. A record without a GID is
    /// given the port's first; its [`lease_s`](ServiceRecord::lease_s) must not be zero.
    ///
    /// # Errors
    /// [`Failure::Invalid`] for a lease of no length; else why the administrator did not take it. If it is not known
    /// whether it did, the service is withdrawn again, which is not waited for.
    pub fn register(
        &self,
        record: ServiceRecord,
        within: Duration,
    ) -> Result<Registration, Failure> {
        if record.lease_s == 0 {
            return Err(Failure::Invalid {
                what: "the lease of a service",
                expected: "one second or more",
                found: "0".into(),
            });
        }
        let mut record = record;
        if record.gid.is_unspecified() {
            let port = self.port(within)?;
            record.gid = port.gid().ok_or(Failure::NoAdministrator)?;
        }
        if let Err(failure) = self.wait(registration(&record)?, within) {
            if may_be_registered(&failure) {
                self.ask(withdrawal(&record)?, RENEWAL_WITHIN, drop)
                    .detach();
            }
            return Err(failure);
        }
        let number = LeaseNumber(self.handle().draw_number());
        let state = Arc::new(Mutex::new(LeaseState::default()));
        self.handle().submit(Command::Renew(LeaseOrder {
            number,
            record,
            state: state.clone(),
        }));
        Ok(Registration {
            number,
            record,
            state,
            client: self.clone(),
            withdrawn: false,
        })
    }
}

/// Whether the administrator may have taken what it was told all the same: an answer that was lost says nothing.
fn may_be_registered(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::TimedOut { tries: 1.., .. } | Failure::Malformed(_)
    )
}

fn registration(record: &ServiceRecord) -> Result<Request, Failure> {
    let query = key(record)
        .lease_s(record.lease_s)
        .data8(record.data8)
        .data16(record.data16)
        .data32(record.data32)
        .data64(record.data64);
    Ok(Request::set(&query)?)
}

fn withdrawal(record: &ServiceRecord) -> Result<Request, Failure> {
    Ok(Request::delete(&key(record))?)
}

/// What the administrator knows a service by (IBTA 15.2.5.14.2): id, GID and partition; and its name.
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

/// The leases of a client's thread.
#[derive(Default)]
pub(super) struct Leases {
    leases: BTreeMap<LeaseNumber, Lease>,
    asked: BTreeMap<Ticket, LeaseNumber>,
}

struct Lease {
    order: LeaseOrder,
    /// When to ask next; `None` while an answer is awaited.
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
        let mut state = self
            .order
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
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

    pub(super) fn forget(&mut self, now: Duration, number: LeaseNumber, desk: Option<&mut Desk>) {
        self.leases.remove(&number);
        self.cancel_renewal(now, number, desk);
    }

    pub(super) fn withdraw(&mut self, now: Duration, number: LeaseNumber, desk: Option<&mut Desk>) {
        self.cancel_renewal(now, number, desk);
        if let Some(lease) = self.leases.get_mut(&number) {
            lease.withdrawing = true;
            lease.due = Some(now);
        }
    }

    /// A renewal must not come after the withdrawal.
    fn cancel_renewal(&mut self, now: Duration, number: LeaseNumber, desk: Option<&mut Desk>) {
        let renewal = self.asked.iter().find(|(_, of)| **of == number);
        if let Some(ticket) = renewal.map(|(ticket, _)| *ticket) {
            self.asked.remove(&ticket);
            if let Some(desk) = desk {
                desk.cancel(now, ticket);
            }
        }
    }

    /// The administrator may have forgotten them.
    pub(super) fn renew_all(&mut self, now: Duration) {
        for lease in self.leases.values_mut() {
            if lease.due.is_some() {
                lease.due = Some(now);
            }
        }
    }

    /// What was asked will not be answered.
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

    /// Asks what is due.
    pub(super) fn turn(&mut self, now: Duration, desk: &mut Desk) {
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
            // It was taken once, so it fits.
            if let Ok(request) = request {
                let ticket = desk.ask(now, request, now + within);
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
            // Its lease ends by itself.
            self.leases.remove(&number);
            return;
        }
        tracing::warn!(%failure, service = %lease.order.record, "a service's lease is not renewed");
        let pause = (lease.every() / RENEWALS_PER_LEASE).clamp(RENEWAL_PAUSE, RENEWAL_WITHIN);
        lease.due = Some(now + pause);
        lease.note(|state| state.failure = Some(failure));
    }
}
