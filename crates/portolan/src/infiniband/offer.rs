//! Listens for a service that clients find at the subnet administrator, by its name or id.

use std::time::Duration;

use portolan_provider::cm::IdNumber;
use portolan_provider::error::{Error, Result, Step};
use portolan_sa::Client;
use portolan_sa::client::Registration;
use portolan_wire::sa::ServiceRecord;
use portolan_wire::{PKey, ServiceId};

use super::PortManager;
use crate::resolve::fabric::cause_of;

/// Default length of a lease. After its host dies, a service stays registered for at most this
/// long.
const LEASE: Duration = Duration::from_secs(60);
/// Time limit of the registration.
const REGISTERED_WITHIN: Duration = Duration::from_secs(10);

/// A service to register at the subnet administrator (a ServiceRecord, IBTA 15.2.5.14), for
/// [`PortManager::listen_registered`].
///
/// Clients that look it up (`RAI_SA`, [`Flags::SA`](crate::resolve::Flags::SA)) get its id and the
/// GID of the listening port.
///
/// ```no_run
/// use portolan::cm::QpType;
/// use portolan::infiniband::{PortManager, ServiceOffer};
/// use portolan::provider::cm::{Service, UserId};
/// use portolan::sa::{Client, ClientConfig, umad};
/// use portolan::wire::{PortSpace, ServiceId};
/// use std::time::Duration;
///
/// let device = umad::devices()?.remove(0);
/// let mut port = PortManager::open(&device)?;
/// let administrator = Client::of_device(ClientConfig::default(), device);
/// let id = port.create_id(UserId(1), Service { port_space: PortSpace::Ib, qp_type: QpType::Rc })?;
/// let offer = ServiceOffer::new(ServiceId(0x1000_0000_0000_0042), "charts.example")
///     .lease(Duration::from_secs(300));
/// // Clients find it by its name until `registration` is dropped.
/// let registration = port.listen_registered(id, &offer, 16, &administrator)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceOffer {
    service: ServiceId,
    name: String,
    lease: Duration,
    data: [u8; 16],
}

impl ServiceOffer {
    /// Creates an offer of a service with an id and a name of 1 to 64 bytes, in the default
    /// partition.
    pub fn new(service: ServiceId, name: impl Into<String>) -> Self {
        Self {
            service,
            name: name.into(),
            lease: LEASE,
            data: [0; 16],
        }
    }

    /// Sets the length of the lease in whole seconds, at least one; the default is 60 s. It is
    /// renewed three times within its length.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets additional data for clients, the record's ServiceData8; the default is zeros.
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
    /// Listens for a service and then registers it with the subnet administrator, which
    /// `administrator` queries through this port.
    ///
    /// Clients find the service while the registration exists. The registration's lease is renewed
    /// meanwhile; dropping the registration withdraws the service. The id continues to listen until
    /// it is destroyed.
    ///
    /// Blocks until the administrator confirms, for at most ten seconds.
    ///
    /// # Errors
    /// As [`listen`](Self::listen); `InvalidArgument` for a name or lease that a record cannot
    /// hold; `TimedOut` if no administrator answers; `Os` if it refuses. After these last two the
    /// id listens without being registered.
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
