//! Selects the provider, the kernel's RDMA devices or the software device, and re-exports the types
//! and traits of both.
//!
//! The types and traits are those of the crate `portolan-provider`: commands and events ([`cm`]),
//! queue pairs and work ([`verbs`]), addresses ([`address`]), errors ([`error`]) and the traits
//! that a provider implements ([`traits`]).
//!
//! [`pin`] selects the provider, or else the environment variable [`PROVIDER_ENV`]. If neither
//! does, the route to the destination decides ([`towards`]), or the address to listen at ([`at`]):
//! the kernel's provider if one of its RDMA devices has the local address on the interface,
//! otherwise the software one. A listener at the wildcard address uses both ([`everywhere`]).
//! Individual connections, listeners and event channels may use another provider.
//!
//! An event channel belongs to one provider and is opened before any address is known. Without an
//! explicit provider it uses the pinned one, or the software one ([`default_provider`]).
//!
//! ```
//! let chosen = portolan::provider::towards(None, "127.0.0.1:7471".parse().unwrap())?;
//! let connector = portolan::Connector::new().provider(chosen.provider);
//! # Ok::<(), portolan::Error>(())
//! ```

mod choose;
mod local;
mod trust;

use std::fmt;

use portolan_threads::ProcessCell;
use portolan_threads::lock::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use portolan_kernel::KernelProvider;
pub use portolan_kernel::{Offers, check_verbs_library, kernel_offers};
#[doc(hidden)]
pub use portolan_port_sharing::users::stands_for_others;
use portolan_provider::traits::Provider;
pub use portolan_provider::{
    Address, Cause, Error, Result, SockaddrIb, Step, address, cm, error, number_map, traits, verbs,
};

pub use self::choose::{Chosen, Reason, at, everywhere, towards};
pub(crate) use self::choose::{Place, decide};
pub use self::local::{LOCAL_ENV, local_memory};
pub use self::trust::{TRUST_ENV, trust};
use crate::software::{SoftwareConfig, SoftwareProvider, Tap};

/// The environment variable that pins the provider: `software` or `kernel`.
pub const PROVIDER_ENV: &str = "PORTOLAN_PROVIDER";

/// A provider; [`pin`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Choice {
    /// The RoCEv2 device in user space.
    Software = 1,
    /// The kernel's RDMA devices, through the installed libibverbs.
    Kernel = 2,
}

impl Choice {
    /// Its name, as in [`PROVIDER_ENV`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::Software => "software",
            Self::Kernel => "kernel",
        }
    }

    fn of_environment() -> Result<Option<Self>> {
        let value = std::env::var_os(PROVIDER_ENV).unwrap_or_default();
        match &*value.to_string_lossy() {
            "" => Ok(None),
            "software" => Ok(Some(Self::Software)),
            "kernel" => Ok(Some(Self::Kernel)),
            other => {
                let expected = "software or kernel";
                Err(Error::invalid(
                    Step::OpenDevice,
                    PROVIDER_ENV,
                    expected,
                    other,
                ))
            }
        }
    }
}

/// The choice of [`pin`]; 0 means none.
static PINNED: AtomicU8 = AtomicU8::new(0);

/// Pins this process's provider; `None` returns the choice to the environment. Existing objects
/// keep their provider.
///
/// ```
/// use portolan::provider::{Choice, pin};
///
/// // Before anything else: this program never uses hardware.
/// pin(Some(Choice::Software));
/// ```
pub fn pin(choice: Option<Choice>) {
    PINNED.store(choice.map_or(0, |choice| choice as u8), Ordering::Release);
}

/// The pinned provider, and how it was pinned. `None` means that the route or the listening address
/// decides.
///
/// ```
/// use portolan::provider::{Choice, PinnedBy, pin, pinned};
///
/// pin(Some(Choice::Software));
/// assert_eq!(pinned()?, Some((Choice::Software, PinnedBy::Program)));
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` for an unknown name in `PORTOLAN_PROVIDER`, unless the program pins one.
pub fn pinned() -> Result<Option<(Choice, PinnedBy)>> {
    let pinned = PINNED.load(Ordering::Acquire);
    let mut all = [Choice::Software, Choice::Kernel].into_iter();
    match all.find(|choice| *choice as u8 == pinned) {
        Some(choice) => Ok(Some((choice, PinnedBy::Program))),
        None => {
            let of_environment = Choice::of_environment()?;
            Ok(of_environment.map(|choice| (choice, PinnedBy::Environment)))
        }
    }
}

/// How a provider was pinned, a part of a [`Reason`], which has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PinnedBy {
    /// By [`pin`].
    Program,
    /// By [`PROVIDER_ENV`].
    Environment,
}

impl fmt::Display for PinnedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Program => "the program",
            Self::Environment => PROVIDER_ENV,
        })
    }
}

/// The provider for operations without addresses, opened on first use: the pinned one, otherwise
/// the software one.
///
/// ```
/// use portolan::cm::EventChannel;
/// use portolan::provider::{chosen, default_provider};
///
/// let provider = default_provider()?;
/// assert_eq!(provider.name(), chosen()?.name());
/// let channel = EventChannel::open_on(provider)?; // as EventChannel::open does
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` for an unknown name in `PORTOLAN_PROVIDER`; errors of [`software_provider`] or
/// [`kernel_provider`]. The next call retries a failed start.
pub fn default_provider() -> Result<Arc<dyn Provider>> {
    match chosen()? {
        Choice::Kernel => kernel_provider(),
        Choice::Software => software_provider(),
    }
}

/// The choice of provider for operations without addresses; does not open it.
///
/// ```
/// use portolan::provider::{Choice, chosen, pin};
///
/// pin(Some(Choice::Software));
/// assert_eq!(chosen()?, Choice::Software);
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` for an unknown name in `PORTOLAN_PROVIDER`.
pub fn chosen() -> Result<Choice> {
    Ok(pinned()?.map_or(Choice::Software, |(choice, _)| choice))
}

/// The software provider, if already open; never opens it.
pub(crate) fn opened_software() -> Option<Arc<dyn Provider>> {
    SOFTWARE.opened().map(|provider| provider as _)
}

/// Sets this process's software provider configuration. It takes effect when the provider is
/// opened.
///
/// ```
/// use portolan::provider::{configure_software, local_memory, software_provider, trust};
/// use portolan::software::SoftwareConfig;
///
/// // At the start of the program.
/// let mut config = SoftwareConfig::default();
/// config.stack.limits.max_qp = 1000;
/// // Without these the variables of the environment have no effect.
/// config.stack.group.trust = trust()?;
/// config.stack.local_memory = local_memory()?;
/// configure_software(config)?;
///
/// let devices = software_provider()?.devices()?;
/// assert_eq!(devices[0].attr()?.max_qp, 1000);
/// assert!(configure_software(SoftwareConfig::default()).is_err(), "it is too late");
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// # Errors
/// `InvalidState` if it is already open.
pub fn configure_software(config: SoftwareConfig) -> Result<()> {
    if SOFTWARE.opened().is_some() {
        let (expected, found) = ("a provider that is not open", "one that is");
        let cause = Cause::InvalidState { expected, found };
        return Err(Error::new(Step::OpenDevice, cause));
    }
    *software_config().write() = Some(config);
    Ok(())
}

/// This process's software provider. Every call returns the same one. A forked child has its own, with its own
/// devices.
///
/// ```
/// use portolan::Listener;
/// use portolan::provider::software_provider;
///
/// // Not at the kernel's devices, even if one has this address.
/// let any = "127.0.0.1:0".parse().unwrap();
/// let listener = Listener::bind_on(software_provider()?, any)?;
/// assert_ne!(listener.local_addr()?.port(), 0);
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// # Errors
/// The software device cannot start: another program holds UDP port 4791, or the processes that
/// share it refuse this one. `InvalidArgument` if [`TRUST_ENV`] is malformed.
pub fn software_provider() -> Result<Arc<dyn Provider>> {
    software().map(|provider| provider as Arc<dyn Provider>)
}

/// This process's kernel provider. Every call returns the same one. A forked child has its own.
///
/// ```
/// match portolan::provider::kernel_provider() {
///     Ok(provider) => {
///         for device in provider.devices()? {
///             println!("{}", device.name());
///         }
///         assert_eq!(provider.name(), "kernel");
///     }
///     Err(error) => println!("no RDMA hardware: {error}"),
/// }
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// # Errors
/// `NoDevice` if the kernel has no rdma_cm device; `UnusableLibrary` if libibverbs is absent, too old, or
/// Portolan's own.
pub fn kernel_provider() -> Result<Arc<dyn Provider>> {
    let provider = KERNEL.get(KernelProvider::open)?;
    Ok(provider)
}

static KERNEL: Opened<KernelProvider> = Opened::none();
static SOFTWARE: Opened<SoftwareProvider> = Opened::none();

/// The configuration that the program set. A forked child inherits it except for the tap, whose locks may stay
/// locked.
fn software_config() -> &'static RwLock<Option<SoftwareConfig>> {
    static CONFIG: ProcessCell<RwLock<Option<SoftwareConfig>>> = ProcessCell::new();
    CONFIG.get_or_inherit(|of_parent| {
        // It cannot be read if a thread of the parent was setting it at the fork.
        let of_parent = of_parent.and_then(|config| config.try_read()?.clone());
        RwLock::new(of_parent.map(|mut config| {
            config.stack.tap = None;
            config
        }))
    })
}

/// Sets the tap that sees every packet of this process's software devices; `None` removes it.
///
/// ```
/// use portolan::provider::set_tap;
/// use portolan::software::{Direction, Tap, TappedPacket};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// #[derive(Debug, Default)]
/// struct SentBytes(AtomicUsize);
///
/// impl Tap for SentBytes {
///     fn packet(&self, packet: &TappedPacket<'_>) {
///         if packet.direction == Direction::Sent {
///             self.0.fetch_add(packet.payload.len(), Ordering::Relaxed);
///         }
///     }
/// }
///
/// let sent = Arc::new(SentBytes::default());
/// set_tap(Some(sent.clone()))?;
/// # let (server, client) = portolan::doc_pair()?;
/// client.send(vec![0; 1000])?.wait()?;
/// assert!(sent.0.load(Ordering::Relaxed) > 1000);
/// # drop(server);
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// # Errors
/// See [`software_provider`].
pub fn set_tap(tap: Option<Arc<dyn Tap>>) -> Result<()> {
    software().map(|provider| provider.set_tap(tap))
}

/// The configuration used if the program sets none.
#[doc(hidden)]
pub fn of_environment() -> Result<SoftwareConfig> {
    let mut config = SoftwareConfig::default();
    config.stack.group.trust = trust()?;
    config.stack.local_memory = local_memory()?;
    Ok(config)
}

fn software() -> Result<Arc<SoftwareProvider>> {
    SOFTWARE.get(|| {
        let config = match software_config().read().clone() {
            Some(config) => config,
            None => of_environment()?,
        };
        SoftwareProvider::start(config)
    })
}

/// A provider that each process opens once.
struct Opened<P: 'static>(ProcessCell<Mutex<Option<Arc<P>>>>);

impl<P: Send + Sync> Opened<P> {
    const fn none() -> Self {
        Self(ProcessCell::new())
    }

    /// The provider, if this process has opened it.
    fn opened(&self) -> Option<Arc<P>> {
        self.0.get_or_make(Mutex::default).lock().clone()
    }

    /// Returns the provider; opens it if necessary.
    ///
    /// # Errors
    /// Those of `open`.
    fn get(&self, open: impl FnOnce() -> Result<Arc<P>>) -> Result<Arc<P>> {
        let mut provider = self.0.get_or_make(Mutex::default).lock();
        if let Some(provider) = &*provider {
            return Ok(provider.clone());
        }
        let opened = open()?;
        *provider = Some(opened.clone());
        Ok(opened)
    }
}
