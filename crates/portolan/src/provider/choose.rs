//! Selects the provider of a destination or a local address: the kernel's if one of its RDMA
//! devices is on the route, otherwise the software one.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_addrinfo::route::{self, Query};
use portolan_provider::error::errno::{EACCES, ENOENT, ENOSYS, EPERM};
use portolan_provider::traits::Provider;
use portolan_provider::{Cause, Error, Result};

use super::{Choice, PinnedBy, kernel_provider, pinned, software_provider};

/// A selected provider, with the reason; [`towards`] has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Chosen {
    /// The provider.
    pub provider: Arc<dyn Provider>,
    /// The reason.
    pub reason: Reason,
}

/// Why a provider was selected. `Display` prints a clause to follow the provider's name.
///
/// ```
/// use portolan::provider::{Choice, PinnedBy, Reason, pin, towards};
///
/// pin(Some(Choice::Software));
/// let chosen = towards(None, "127.0.0.1:7471".parse().unwrap())?;
/// assert_eq!(chosen.reason, Reason::Pinned(PinnedBy::Program));
/// let text = format!("{}: {}", chosen.provider.name(), chosen.reason);
/// assert_eq!(text, "software: the program pins it");
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The provider is pinned.
    Pinned(PinnedBy),
    /// The kernel has no RDMA devices.
    NoKernelDevice,
    /// The kernel has RDMA devices, but they are unusable.
    KernelUnusable(String),
    /// One of the kernel's devices has the address on the interface.
    Serves {
        /// The device.
        device: String,
        /// The source address of the route, or the address to listen at.
        address: IpAddr,
    },
    /// None of the kernel's devices has the address on the interface.
    NotServed {
        /// The source address of the route, or the address to listen at.
        address: IpAddr,
        /// The interface of the route, if there is a route.
        interface_index: Option<u32>,
    },
    /// There is no route, so the choice does not matter.
    NoRoute(Cause),
    /// The address to listen at is the wildcard: each provider serves its own devices.
    Wildcard,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinned(by) => write!(f, "{by} pins it"),
            Self::NoKernelDevice => f.write_str("the kernel has no RDMA device"),
            Self::KernelUnusable(why) => {
                write!(f, "the kernel's RDMA devices cannot be used: {why}")
            }
            Self::Serves { device, address } => {
                write!(f, "the kernel's device {device} has {address}")
            }
            Self::NotServed {
                address,
                interface_index,
            } => {
                write!(f, "no RDMA device of the kernel's has {address}")?;
                match interface_index {
                    Some(index) => write!(f, " on interface {index}"),
                    None => Ok(()),
                }
            }
            Self::NoRoute(cause) => cause.fmt(f),
            Self::Wildcard => f.write_str("it serves the addresses of its devices"),
        }
    }
}

/// A local address that selects the provider, and the interface that must have it, if that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) address: IpAddr,
    pub(crate) interface_index: Option<u32>,
}

/// Selects the provider for `destination`, from `source` if given.
///
/// Selects the kernel's if one of its RDMA devices has the source address on the interface of the
/// route, otherwise the software one. A pinned provider takes precedence.
///
/// ```
/// use portolan::provider::towards;
///
/// let server: std::net::SocketAddr = "127.0.0.1:7471".parse().unwrap();
/// let chosen = towards(None, server)?;
/// println!("{}: {}", chosen.provider.name(), chosen.reason);
/// let (device, _) = chosen.provider.device_of(server.ip())?;
/// println!("{} leads there", device.name());
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// # Errors
/// The provider cannot start; see [`super::default_provider`].
pub fn towards(source: Option<SocketAddr>, destination: SocketAddr) -> Result<Chosen> {
    open(decide(|| on_the_way(source, destination))?)
}

/// Selects the provider to listen at `local`, an address of this machine.
///
/// Selects the kernel's if one of its RDMA devices has the address, otherwise the software one. A
/// pinned provider takes precedence. For the wildcard address this returns the software provider;
/// see [`everywhere`].
///
/// ```
/// use portolan::Listener;
/// use portolan::provider::at;
///
/// let any = "127.0.0.1:0".parse().unwrap();
/// let chosen = at(any)?;
/// println!("{} listens, because {}", chosen.provider.name(), chosen.reason);
/// let listener = Listener::bind_on(chosen.provider, any)?;
/// assert!(listener.local_addr()?.ip().is_loopback());
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// # Errors
/// As for [`towards`].
pub fn at(local: SocketAddr) -> Result<Chosen> {
    open(decide(|| Ok(Place::of(local)))?)
}

/// Selects the providers to listen at `local`: all of them for the wildcard address, otherwise that
/// of [`at`]. For the wildcard address, providers that cannot start are left out and their errors
/// returned.
///
/// ```
/// let any = "0.0.0.0:7471".parse().unwrap();
/// let (chosen, left_out) = portolan::provider::everywhere(any)?;
/// for each in &chosen {
///     println!("{}: {}", each.provider.name(), each.reason);
/// }
/// for error in left_out {
///     println!("not there: {error}");
/// }
/// assert!(!chosen.is_empty());
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// # Errors
/// As for [`towards`]; for the wildcard address, if no provider can start.
pub fn everywhere(local: SocketAddr) -> Result<(Vec<Chosen>, Vec<Error>)> {
    let is_alone = pinned()?.is_some() || !portolan_kernel::has_devices();
    if !local.ip().is_unspecified() || is_alone {
        return Ok((vec![at(local)?], Vec::new()));
    }
    let (mut chosen, mut left_out) = (Vec::new(), Vec::new());
    for provider in [kernel_provider(), software_provider()] {
        match provider {
            Ok(provider) => chosen.push(Chosen {
                provider,
                reason: Reason::Wildcard,
            }),
            Err(error) => left_out.push(error),
        }
    }
    match left_out.pop() {
        Some(last) if chosen.is_empty() => Err(last.after(left_out)),
        last => {
            left_out.extend(last);
            Ok((chosen, left_out))
        }
    }
}

fn open((choice, reason): (Choice, Reason)) -> Result<Chosen> {
    let provider = match choice {
        Choice::Kernel => kernel_provider()?,
        Choice::Software => software_provider()?,
    };
    Ok(Chosen { provider, reason })
}

/// Makes the choice without opening the software provider.
///
/// # Errors
/// `InvalidArgument` for an unknown name in `PORTOLAN_PROVIDER`; errors of opening the kernel
/// provider, unless they mean that it is unusable here.
pub(crate) fn decide(
    place: impl FnOnce() -> std::result::Result<Place, Cause>,
) -> Result<(Choice, Reason)> {
    if let Some((choice, by)) = pinned()? {
        return Ok((choice, Reason::Pinned(by)));
    }
    // Check the cheapest condition first: most machines have no such device.
    if !portolan_kernel::has_devices() {
        return Ok((Choice::Software, Reason::NoKernelDevice));
    }
    let place = match place() {
        Ok(place) => place,
        Err(cause) => return Ok((Choice::Software, Reason::NoRoute(cause))),
    };
    match place.kernel_device() {
        Ok(Some(device)) => {
            let address = place.address;
            Ok((Choice::Kernel, Reason::Serves { device, address }))
        }
        Ok(None) => Ok((Choice::Software, place.not_served())),
        Err(error) if is_unusable(&error) => {
            Ok((Choice::Software, Reason::KernelUnusable(error.to_string())))
        }
        Err(error) => Err(error),
    }
}

/// Returns whether the kernel's devices are unusable on this machine or for this user. Other
/// failures, such as a lack of descriptors, do not affect the choice.
fn is_unusable(error: &Error) -> bool {
    match &error.cause {
        Cause::NoDevice { .. } | Cause::UnusableLibrary { .. } => true,
        // A container may see a device without its device file, or userspace verbs may be missing.
        Cause::Os { errno, .. } => [EACCES, EPERM, ENOENT, ENOSYS].contains(errno),
        // The kernel is too old.
        Cause::Unsupported(_) => true,
        _ => false,
    }
}

/// The source address and interface of packets to a destination.
fn on_the_way(
    source: Option<SocketAddr>,
    destination: SocketAddr,
) -> std::result::Result<Place, Cause> {
    let mut query = Query::from(destination);
    query.source = source.map(|source| source.ip());
    query.source = query.source.filter(|source| !source.is_unspecified());
    let route = route::lookup(&query)?;
    Ok(Place {
        address: route.source,
        interface_index: (!route.is_on_this_machine()).then_some(route.interface_index),
    })
}

impl Place {
    fn of(local: SocketAddr) -> Self {
        let interface_index = match local {
            SocketAddr::V6(v6) => Some(v6.scope_id()).filter(|scope| *scope != 0),
            SocketAddr::V4(_) => None,
        };
        Self {
            address: local.ip(),
            interface_index,
        }
    }

    /// The kernel's device that has the address on the interface.
    fn kernel_device(self) -> Result<Option<String>> {
        let is_here = |index| self.interface_index.is_none_or(|wanted| wanted == index);
        for device in kernel_provider()?.devices()? {
            // A device that was just removed has no addresses.
            let gids = device.gids_of(self.address).unwrap_or_default();
            if gids.iter().any(|entry| is_here(entry.interface_index)) {
                return Ok(Some(device.name().into()));
            }
        }
        Ok(None)
    }

    fn not_served(self) -> Reason {
        Reason::NotServed {
            address: self.address,
            interface_index: self.interface_index,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_name_what_was_examined() {
        let address = "10.8.0.1".parse().unwrap();
        let interface_index = Some(3);
        let reason = Reason::NotServed {
            address,
            interface_index,
        };
        let text = "no RDMA device of the kernel's has 10.8.0.1 on interface 3";
        assert_eq!(reason.to_string(), text);
        let by = PinnedBy::Environment;
        assert_eq!(Reason::Pinned(by).to_string(), "PORTOLAN_PROVIDER pins it");
    }

    #[test]
    fn software_serves_if_the_kernel_cannot_but_not_after_a_failure() {
        use portolan_provider::Step;
        use portolan_provider::error::errno::{EMFILE, ENOMEM};
        let is_unusable = |cause| is_unusable(&Error::new(Step::OpenDevice, cause));
        let os = |errno| Cause::Os {
            call: "open",
            errno,
        };
        let why = String::new();
        assert!(is_unusable(Cause::NoDevice { why: why.clone() }));
        let library = "libibverbs.so.1".into();
        assert!(is_unusable(Cause::UnusableLibrary { library, why }));
        assert!(is_unusable(Cause::Unsupported("Linux before 5.8")));
        for (errno, unusable) in [
            (EACCES, true),
            (EPERM, true),
            (EMFILE, false),
            (ENOMEM, false),
        ] {
            assert_eq!(is_unusable(os(errno)), unusable, "{errno}");
        }
    }

    #[test]
    fn the_address_selects_the_provider_of_a_local_destination_and_the_interface_that_of_others() {
        let to = "127.0.0.1:7471".parse().unwrap();
        let place = on_the_way(None, to).unwrap();
        assert_eq!(place.address.to_string(), "127.0.0.1");
        assert_eq!(place.interface_index, None);
        let wildcard = "0.0.0.0:0".parse().ok();
        assert_eq!(on_the_way(wildcard, to).unwrap(), place);
        let zoned = Place::of("[fe80::1%7]:80".parse().unwrap());
        assert_eq!(zoned.interface_index, Some(7));
    }
}
