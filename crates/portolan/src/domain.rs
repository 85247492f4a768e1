//! Domains: which connections may access which memory.

use std::fmt;
use std::sync::Arc;

use portolan_provider::traits::{Device, Pd};
use portolan_provider::verbs::{Access, Instance};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::lock::Mutex;

use crate::sys::{Memory, SharedMemory};

/// A scope of memory: only peers of its connections can access its [`SharedMemory`].
///
/// It has a protection domain on each device that it is used with. Pass it to connections in
/// [`Options::domain`](crate::Options::domain).
///
/// | scope | domain |
/// |---|---|
/// | one connection | [`Domain::new`], in the options of that connection only; access ends with the connection |
/// | a listener's connections | [`Listener::domain`](crate::Listener::domain), in the options of each accept |
/// | all connections on a device | none: connections without a domain share one for each device |
///
/// ```
/// use portolan::{Access, Connector, Listener, Options};
///
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let domain = listener.domain()?;
/// let memory = domain.share(4096, Access::REMOTE_READ)?;
/// let address = listener.local_addr()?;
/// let client = std::thread::spawn(move || Connector::new().connect_to(address));
/// let options = Options::default().domain(domain);
/// let connection = listener.accept()?.accept_with(&options)?;
/// let offer = connection.offer(&memory)?; // to be sent to the peer
/// assert_eq!(offer.length, 4096);
/// # drop(client.join().unwrap()?);
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Clone)]
pub struct Domain {
    /// The first one is on the device that the domain was created for or first used with.
    on_devices: Arc<Mutex<OnDevices>>,
}

type OnDevices = Vec<(Instance, Arc<dyn Pd>)>;

impl Domain {
    /// Creates a domain without a device. It gets the devices of its connections. Share memory through a connection:
    ///
    /// ```
    /// use portolan::{Access, Connector, Domain, Listener, Options};
    ///
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr()?;
    /// # let peer = std::thread::spawn(move || listener.accept()?.accept());
    /// let options = Options::default().domain(Domain::new());
    /// let connection = Connector::new().options(options).connect_to(address)?;
    /// let memory = connection.share(4096, Access::REMOTE_READ)?; // for this connection's peer alone
    /// # drop((memory, peer.join().unwrap()?));
    /// # Ok::<(), portolan::Error>(())
    /// ```
    pub fn new() -> Self {
        Self {
            on_devices: Arc::default(),
        }
    }

    /// Creates a domain on a device. Connections of other devices may use it, too.
    ///
    /// # Errors
    /// The device's limit of protection domains is reached.
    pub fn on(device: &Arc<dyn Device>) -> Result<Self> {
        let first = (device.instance(), device.alloc_pd()?);
        Ok(Self {
            on_devices: Arc::new(Mutex::new(vec![first])),
        })
    }

    /// Creates a domain on the first of several devices.
    pub(crate) fn on_first(devices: &[Arc<dyn Device>]) -> Result<Self> {
        let missing = || {
            let why = "the listener's providers have none".into();
            Error::new(Step::AllocPd, Cause::NoDevice { why })
        };
        Self::on(devices.first().ok_or_else(missing)?)
    }

    /// The protection domain on a device; allocates it at the first use.
    pub(crate) fn pd(&self, device: &Arc<dyn Device>) -> Result<Arc<dyn Pd>> {
        let mut on_devices = self.on_devices.lock();
        let instance = device.instance();
        if let Some((_, pd)) = on_devices.iter().find(|(on, _)| *on == instance) {
            return Ok(pd.clone());
        }
        let pd = device.alloc_pd()?;
        on_devices.push((instance, pd.clone()));
        Ok(pd)
    }

    fn first_pd(&self) -> Result<Arc<dyn Pd>> {
        let first = self.on_devices.lock().first().map(|(_, pd)| pd.clone());
        first.ok_or_else(|| {
            let (expected, found) = ("a domain with a device", "a new one, without any");
            Error::new(
                Step::RegisterMemory,
                Cause::InvalidState { expected, found },
            )
        })
    }

    /// Allocates memory that peers of the domain's connections may access.
    ///
    /// # Errors
    /// See [`SharedMemory::new`]; `InvalidState` before the domain has a device.
    pub fn share(&self, length: usize, access: Access) -> Result<SharedMemory> {
        SharedMemory::new(&self.first_pd()?, length, access)
    }

    /// Lets peers of the domain's connections access the program's memory without copying.
    ///
    /// # Errors
    /// See [`SharedMemory::of`]; `InvalidState` before the domain has a device.
    pub fn share_memory<M: Memory>(
        &self,
        memory: M,
        access: Access,
    ) -> std::result::Result<SharedMemory, (Error, M)> {
        match self.first_pd() {
            Ok(pd) => SharedMemory::of(&pd, memory, access),
            Err(error) => Err((error, memory)),
        }
    }

    /// Whether a protection domain belongs to this domain.
    pub(crate) fn has(&self, pd: &Arc<dyn Pd>) -> bool {
        let on_devices = self.on_devices.lock();
        let mut pds = on_devices.iter().map(|(_, pd)| pd);
        pds.any(|known| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(pd)))
    }
}

impl Default for Domain {
    fn default() -> Self {
        Self::new()
    }
}

/// Clones are equal.
impl PartialEq for Domain {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.on_devices, &other.on_devices)
    }
}

impl Eq for Domain {}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.on_devices.lock().len();
        write!(f, "Domain({devices} devices)")
    }
}
