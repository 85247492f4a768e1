//! Service registrations with a lease: a service stays registered while its [`Registration`] exists.

use std::sync::Arc;
use std::time::Duration;

use portolan_threads::lock::Mutex;
use portolan_wire::sa::ServiceRecord;

use super::Client;
use super::lease::{LeaseNumber, LeaseOrder, LeaseState, RENEWAL_WITHIN, registration, withdrawal};
use super::shared::Command;
use crate::engine::Failure;

/// A service of this port, registered with the administrator until this is dropped.
///
/// The client renews its lease periodically, and at once when the subnet has another administrator.
#[derive(Debug)]
pub struct Registration {
    number: LeaseNumber,
    record: ServiceRecord,
    state: Arc<Mutex<LeaseState>>,
    client: Client,
    withdrawn: bool,
}

impl Registration {
    /// The registered record.
    pub const fn record(&self) -> &ServiceRecord {
        &self.record
    }

    /// The current state of the lease.
    pub fn state(&self) -> LeaseState {
        self.state.lock().clone()
    }

    /// Withdraws the service and waits for the administrator's answer. Dropping the registration
    /// withdraws it without waiting.
    ///
    /// # Errors
    /// Why the administrator did not confirm. The lease is not renewed in any case.
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

impl Client {
    /// Registers a service of this port and keeps it registered.
    ///
    /// A record without a GID gets the port's first GID. Its [`lease_s`](ServiceRecord::lease_s)
    /// must not be zero.
    ///
    /// # Errors
    /// [`Failure::Invalid`] if the lease is zero; otherwise why the administrator did not accept
    /// the record. If the outcome is unknown, the client also sends a withdrawal and does not wait
    /// for its answer.
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

/// Returns whether the administrator may have registered the service despite the failure: the
/// answer may have been lost.
fn may_be_registered(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::TimedOut { tries: 1.., .. } | Failure::Malformed(_)
    )
}
