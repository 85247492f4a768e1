//! Which provider serves: the kernel's RDMA devices, or the software device.
//!
//! [`pin`] says, or else the environment variable [`PROVIDER_ENV`]. Where neither does, the way to the
//! destination decides ([`towards`]), or the address that is listened at ([`at`]): it is the kernel's, if one of
//! its RDMA devices has the local address on the interface, else software's. A listener at the wildcard
//! address listens with both ([`everywhere`]). Single connections, listeners and event channels may be given
//! another.
//!
//! An event channel belongs to one provider, and is opened before any address is known: one that is opened
//! without a provider is of the pinned one, or software's ([`default_provider`]).

mod route;
mod trust;

use std::fmt;

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use portolan_kernel::KernelProvider;
pub use portolan_kernel::{Offers, check_verbs_library, kernel_offers};
use portolan_provider::traits::Provider;
use portolan_provider::{Cause, Error, Result, Step};

pub use self::route::{Chosen, Reason, at, everywhere, towards};
pub(crate) use self::route::{Place, decide};
pub use self::trust::{TRUST_ENV, trust};
use crate::lock;
use crate::software::{SoftwareConfig, SoftwareProvider, Tap};

/// The environment variable that pins the provider: `software` or `kernel`.
pub const PROVIDER_ENV: &str = "PORTOLAN_PROVIDER";

/// A provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Choice {
    /// The RoCEv2 device in user space.
    Software = 1,
    /// The kernel's RDMA devices, by the machine's libibverbs.
    Kernel = 2,
}

impl Choice {
    /// Its name, as [`PROVIDER_ENV`] has it.
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

/// What [`pin`] chose; 0 is nothing.
static PINNED: AtomicU8 = AtomicU8::new(0);

/// Pins the provider of this process, or leaves the choice to the environment again. What exists already
/// stays with the provider that it was made of.
pub fn pin(choice: Option<Choice>) {
    PINNED.store(choice.map_or(0, |choice| choice as u8), Ordering::Release);
}

/// The pinned provider, and what pinned it.
///
/// # Errors
/// `InvalidArgument` for an unknown name in `PORTOLAN_PROVIDER`, unless the program pins one.
pub(crate) fn pinned() -> Result<Option<(Choice, PinnedBy)>> {
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

/// What pinned a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PinnedBy {
    /// [`pin`].
    Program,
    /// [`PROVIDER_ENV`].
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

/// The provider of what says nothing of its addresses, opened at first use: the pinned one, else software's.
///
/// # Errors
/// `InvalidArgument` for an unknown name in `PORTOLAN_PROVIDER`; those of [`software_provider`] or of
/// [`kernel_provider`]. A failed start is tried again at the next call.
pub fn default_provider() -> Result<Arc<dyn Provider>> {
    match chosen()? {
        Choice::Kernel => kernel_provider(),
        Choice::Software => software_provider(),
    }
}

/// The provider of what says nothing of its addresses, opened or not.
///
/// # Errors
/// `InvalidArgument` for an unknown name in `PORTOLAN_PROVIDER`.
pub fn chosen() -> Result<Choice> {
    Ok(pinned()?.map_or(Choice::Software, |(choice, _)| choice))
}

/// The software provider, if it was opened; never opens it.
pub(crate) fn opened_software() -> Option<Arc<dyn Provider>> {
    SOFTWARE.opened().map(|provider| provider as _)
}

/// Settings of this process's software provider, in place of the defaults. They count when it is opened.
///
/// # Errors
/// `InvalidState` if it is open.
pub fn configure_software(config: SoftwareConfig) -> Result<()> {
    if SOFTWARE.opened().is_some() {
        let (expected, found) = ("not open", "open");
        let cause = Cause::InvalidState { expected, found };
        return Err(Error::new(Step::OpenDevice, cause));
    }
    *lock(&SOFTWARE_CONFIG) = Some(config);
    Ok(())
}

/// The software provider of this process; every call gives the same one.
///
/// # Errors
/// The software device cannot start: UDP port 4791 is held by something else, or the processes that
/// share it refuse this one; `InvalidArgument` for a [`TRUST_ENV`] that is not understood.
pub fn software_provider() -> Result<Arc<dyn Provider>> {
    software().map(|provider| provider as Arc<dyn Provider>)
}

/// The kernel provider of this process; every call gives the same one.
///
/// # Errors
/// `NoDevice` if the kernel has no rdma_cm device; `UnusableLibrary` if libibverbs is absent, too old, or
/// Portolan's own.
pub fn kernel_provider() -> Result<Arc<dyn Provider>> {
    let provider = KERNEL.get(KernelProvider::open, KERNEL_AFTER_FORK)?;
    Ok(provider)
}

const KERNEL_AFTER_FORK: &str = "use in a process forked after the kernel provider was opened";

static KERNEL: Opened<KernelProvider> = Opened::none();
static SOFTWARE: Opened<SoftwareProvider> = Opened::none();
static SOFTWARE_CONFIG: Mutex<Option<SoftwareConfig>> = Mutex::new(None);

/// Shows every packet that the software devices of this process send and take to `tap`, or to
/// nobody.
///
/// # Errors
/// See [`software_provider`].
pub fn set_tap(tap: Option<Arc<dyn Tap>>) -> Result<()> {
    software().map(|provider| provider.set_tap(tap))
}

/// Settings where the program gives none.
fn of_environment() -> Result<SoftwareConfig> {
    let mut config = SoftwareConfig::default();
    config.stack.group.trust = trust()?;
    Ok(config)
}

fn software() -> Result<Arc<SoftwareProvider>> {
    let after_fork = "use in a process forked after the software device was opened";
    let open = || {
        let config = match lock(&SOFTWARE_CONFIG).clone() {
            Some(config) => config,
            None => of_environment()?,
        };
        SoftwareProvider::start(config)
    };
    SOFTWARE.get(open, after_fork)
}

/// A provider that a process opens once.
struct Opened<P> {
    provider: Mutex<Option<Arc<P>>>,
    /// The process that has or makes it; 0 is none.
    owner: AtomicU32,
}

impl<P> Opened<P> {
    const fn none() -> Self {
        Self {
            provider: Mutex::new(None),
            owner: AtomicU32::new(0),
        }
    }

    /// The provider, if this process has opened it.
    fn opened(&self) -> Option<Arc<P>> {
        // In a forked child the lock may be its parent's for ever.
        let is_own = self.owner.load(Ordering::Acquire) == std::process::id();
        is_own.then(|| lock(&self.provider).clone()).flatten()
    }

    /// The provider, opened if there is none.
    ///
    /// # Errors
    /// Those of `open`; `Unsupported`, in these words, in a process that was forked off since.
    fn get(
        &self,
        open: impl FnOnce() -> Result<Arc<P>>,
        after_fork: &'static str,
    ) -> Result<Arc<P>> {
        let pid = std::process::id();
        let owner = self
            .owner
            .compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire);
        if owner.is_err_and(|owner| owner != pid) {
            // The parent's threads are not here, its queue pairs are not ours, and its lock may have
            // been held when this process was forked off.
            return Err(Error::new(Step::OpenDevice, Cause::Unsupported(after_fork)));
        }
        let mut provider = lock(&self.provider);
        if let Some(provider) = &*provider {
            return Ok(provider.clone());
        }
        let opened = open().inspect_err(|_| self.owner.store(0, Ordering::Release))?;
        *provider = Some(opened.clone());
        self.owner.store(pid, Ordering::Release);
        Ok(opened)
    }
}
