//! Neighbours: the link-layer address of a next hop, or the certainty that nobody answers.
//!
//! One thread serves all look-ups of a process. It asks the kernel's neighbour table; where that
//! has no answer it sends an empty datagram to the next hop, which makes the kernel run ARP or
//! neighbour discovery, and waits for the table's change to be announced. None of it needs
//! privilege. Single look-ups in the neighbour table need Linux 5.0.

mod driver;
mod link_address;
mod message;
mod pending;
mod watch;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_provider::Cause;

pub use link_address::{LINK_ADDRESS_MAX, LinkAddress};
pub use pending::WAITERS_MAX;
pub use watch::{Changed, WATCHES_MAX, Watch};

use crate::sys::process_cell::ProcessCell;
use driver::Shared;
use pending::NextHop;

/// Longest deadline that a look-up may have.
pub const DEADLINE_MAX: Duration = Duration::from_secs(3600);

/// What is called with the outcome of a look-up, once, on the resolver's thread. It should hand
/// the outcome over and return: other look-ups wait for it. It may call the resolver.
pub type Done = Box<dyn FnOnce(Result<LinkAddress, Cause>) + Send>;

/// Names a look-up under way, for [`Resolver::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// Resolves next hops to link-layer addresses, asynchronously.
///
/// Look-ups of one next hop share the work. Dropping a resolver of one's own ends its thread and
/// fails what is pending with [`Cause::NoSuchObject`].
pub struct Resolver {
    shared: Arc<Shared>,
}

impl Resolver {
    /// This process's resolver, in the network namespace of the thread that asks first. Its thread
    /// starts with the first call; after a fork the child gets a resolver of its own.
    ///
    /// # Errors
    /// As [`Resolver::start`].
    pub fn shared() -> Result<&'static Self, Cause> {
        static SHARED: ProcessCell<Resolver> = ProcessCell::new();
        SHARED.get_or_try_make(Self::start)
    }

    /// A resolver and thread of one's own, in the caller's network namespace.
    ///
    /// # Errors
    /// [`Cause::Os`] if a socket or the thread cannot be made.
    pub fn start() -> Result<Self, Cause> {
        Ok(Self {
            shared: driver::start()?,
        })
    }

    /// Resolves a next hop on an interface. `done` gets the outcome within `deadline`, possibly
    /// before this returns:
    ///
    /// * `Ok`: the address. It is empty where the interface has no link-layer addresses.
    /// * [`Cause::HostUnreachable`]: ARP or neighbour discovery failed.
    /// * [`Cause::NetworkUnreachable`]: the interface is down or has no address of the family.
    /// * [`Cause::NoDevice`]: the interface does not exist (any more).
    /// * [`Cause::TimedOut`]: no outcome yet.
    /// * [`Cause::Os`]: a firewall or the system refused the probe.
    ///
    /// # Errors
    /// `done` is dropped uncalled, and the result is
    /// [`Cause::InvalidArgument`] for an address that is no host's, interface 0 or a deadline
    /// above [`DEADLINE_MAX`], [`Cause::LimitReached`] with [`WAITERS_MAX`] look-ups pending, or
    /// [`Cause::InvalidState`] in a child forked from the process that started this resolver.
    pub fn resolve(
        &self,
        next_hop: IpAddr,
        interface_index: u32,
        deadline: Duration,
        done: Done,
    ) -> Result<Ticket, Cause> {
        check(next_hop, interface_index, deadline)?;
        let hop = NextHop {
            address: next_hop,
            interface_index,
        };
        self.shared
            .submit(hop, Instant::now(), deadline, done)
            .map(Ticket)
    }

    /// Watches a next hop that was resolved to `known`: `changed` is called when the neighbour table
    /// has another address for it, and again when that changes. The kernel finds that out by itself,
    /// from the neighbour's own announcements or by asking it anew; nothing is sent for the watch.
    ///
    /// # Errors
    /// [`Cause::InvalidArgument`] as for [`resolve`](Self::resolve), [`Cause::LimitReached`] with
    /// [`WATCHES_MAX`] watches, or [`Cause::InvalidState`] in a child forked from the process that
    /// started this resolver.
    pub fn watch(
        &self,
        next_hop: IpAddr,
        interface_index: u32,
        known: LinkAddress,
        changed: Changed,
    ) -> Result<Watch, Cause> {
        check(next_hop, interface_index, Duration::ZERO)?;
        let hop = NextHop {
            address: next_hop,
            interface_index,
        };
        let number = self.shared.watch(hop, known, changed)?;
        Ok(Watch {
            shared: Arc::clone(&self.shared),
            hop,
            number,
        })
    }

    /// Ends a look-up early. If this returns true its `done` is dropped and is never called;
    /// if false it has been called or is being called.
    pub fn cancel(&self, ticket: Ticket) -> bool {
        self.shared.cancel(ticket.0)
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

fn check(next_hop: IpAddr, interface_index: u32, deadline: Duration) -> Result<(), Cause> {
    let invalid = |what, expected: &str, found: String| {
        Err(Cause::InvalidArgument {
            what,
            expected: expected.into(),
            found,
        })
    };
    let broadcast = matches!(next_hop, IpAddr::V4(address) if address.is_broadcast());
    if next_hop.is_unspecified() || next_hop.is_multicast() || broadcast {
        return invalid("next hop", "the address of one host", next_hop.to_string());
    }
    if interface_index == 0 {
        return invalid("interface index", "1 or more", "0".into());
    }
    if deadline > DEADLINE_MAX {
        let found = format!("{} s", deadline.as_secs());
        return invalid("deadline", "an hour at most", found);
    }
    Ok(())
}
