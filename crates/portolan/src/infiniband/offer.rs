//! Listening for a service that others find at the subnet administrator, by its name or its id.

use std::time::Duration;

use portolan_provider::cm::IdNumber;
use portolan_provider::error::{Error, Result, Step};
use portolan_sa::Client;
use portolan_sa::client::Registration;
use portolan_wire::sa::ServiceRecord;
use portolan_wire::{PKey, ServiceId};

use super::PortManager;
use crate::resolve::fabric::cause_of;

/// How long a lease lasts unless another length is chosen: as long as a service may be found at most whose host has
/// died.
const LEASE: Duration = Duration::from_secs(60);
/// How long the administrator may take to register it.
const REGISTERED_WITHIN: Duration = Duration::from_secs(10);

/// What is registered of a service at the subnet administrator (a ServiceRecord, IBTA 15.2.5.14), for
/// [`PortManager::listen_registered`]. Whoever looks it up (`RAI_SA`, [`Flags::SA`](crate::resolve::Flags::SA)) is given
/// its id and the GID of the port that listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceOffer {
    service: ServiceId,
    name: String,
    lease: Duration,
    data: [u8; 16],
}

impl ServiceOffer {
    /// A service by its id and its name, of 1 to 64 bytes, in the default partition.
    pub fn new(service: ServiceId, name: impl Into<String>) -> Self {
        Self {
            service,
            name: name.into(),
            lease: LEASE,
            data: [0; 16],
        }
    }

    /// How long the administrator keeps it when it is not renewed: whole seconds, one at least. It is renewed three
    /// times as often while it is held. 60 s unless said.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// What else is told of it: the record's ServiceData8, zeros unless said.
    #[must_use]
    pub fn data(mut self, data: [u8; 16]) -> Self {
        self.data = data;
        self
    }

    fn record(&self, manager: &PortManager) -> Result<ServiceRecord> {
        let invalid = |what, expected: &str, found: String| {
            Err(Error::invalid(Step::Listen, what, expected, found))
        };
        let Some(name) = ServiceRecord::name_field(&self.name) else {
            let expected = "1 to 64 bytes, none of them zero";
            return invalid("service name", expected, self.name.clone());
        };
        let lease_s = u32::try_from(self.lease.as_secs()).unwrap_or(ServiceRecord::LEASE_FOR_EVER);
        if lease_s == 0 {
            let found = format!("{:?}", self.lease);
            return invalid("lease of a service", "1 s or more", found);
        }
        Ok(ServiceRecord {
            service_id: self.service,
            gid: manager.device.sgid,
            pkey: PKey::DEFAULT,
            lease_s,
            name,
            data8: self.data,
            ..ServiceRecord::default()
        })
    }
}

impl PortManager {
    /// Listens for a service, and then registers it with the subnet administrator, which `administrator` asks through
    /// this port. Others find it for as long as the registration is held: its lease is renewed meanwhile, and it is
    /// withdrawn when the registration is dropped. The id goes on to listen until it is destroyed.
    ///
    /// Blocks until the administrator has it, for ten seconds at most.
    ///
    /// # Errors
    /// As [`listen`](Self::listen); `InvalidArgument` for a name or a lease that a record does not hold; `TimedOut`
    /// where no administrator answers, `Os` for what one refuses: then the id listens, and nobody is told of it.
    pub fn listen_registered(
        &mut self,
        id: IdNumber,
        offer: &ServiceOffer,
        backlog: i32,
        administrator: &Client,
    ) -> Result<Registration> {
        let record = offer.record(self)?;
        self.listen(id, offer.service, backlog)?;
        let registered = administrator.register(record, REGISTERED_WITHIN);
        registered.map_err(|failure| Error::new(Step::Listen, cause_of(&failure)))
    }
}
