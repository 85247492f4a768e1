//! Neighbour resolution: the link-layer address of a next hop, or the result that it does not
//! answer.
//!
//! One thread serves all lookups of a process. It queries the kernel's neighbour table. If the
//! table has no answer, or only a stale one where the neighbour must answer, it sends an empty datagram to the next hop, which makes the kernel run ARP
//! or neighbour discovery, and waits for the notification of a change. None of this needs
//! privilege. Single lookups in the neighbour table require Linux 5.0.

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
use portolan_threads::ProcessCell;

pub use link_address::{LINK_ADDRESS_MAX, LinkAddress};
pub use pending::WAITERS_MAX;
pub use watch::{Changed, WATCHES_MAX};

use driver::Shared;
use pending::{Need, NextHop, Target};

/// Longest deadline of a lookup.
pub const DEADLINE_MAX: Duration = Duration::from_secs(3600);

/// Called once with the outcome of a lookup, on the resolver's thread. It should pass the outcome
/// on and return, because it delays other lookups. It may call the resolver.
pub type Done = Box<dyn FnOnce(Result<LinkAddress, Cause>) + Send>;

/// A lookup in progress, for [`Resolver::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// Resolves next hops to link-layer addresses, asynchronously.
///
/// Lookups of one next hop share the work. Dropping a private resolver ends its thread and fails
/// pending lookups with [`Cause::NoSuchObject`].
pub struct Resolver {
    shared: Arc<Shared>,
}

impl Resolver {
    /// Returns this process's resolver, which is in the network namespace of the first caller's
    /// thread.
    ///
    /// Its thread starts with the first call; after a fork the child gets its own resolver.
    ///
    /// # Errors
    /// As [`Resolver::start`].
    pub fn shared() -> Result<&'static Self, Cause> {
        static SHARED: ProcessCell<Resolver> = ProcessCell::new();
        SHARED.get_or_try_make(Self::start)
    }

    /// Creates a private resolver with its own thread, in the caller's network namespace.
    ///
    /// # Errors
    /// [`Cause::Os`] if a socket or the thread cannot be created.
    pub fn start() -> Result<Self, Cause> {
        Ok(Self {
            shared: driver::start()?,
        })
    }

    /// Resolves a next hop on an interface. An address that the kernel has not confirmed recently is
    /// good enough.
    ///
    /// `done` is called with the outcome within `deadline`, possibly before this returns:
    ///
    /// * `Ok`: the address. It is empty if the interface has no link-layer addresses.
    /// * [`Cause::HostUnreachable`]: ARP or neighbour discovery failed.
    /// * [`Cause::NetworkUnreachable`]: the interface is down or has no address of the family.
    /// * [`Cause::NoDevice`]: the interface does not exist.
    /// * [`Cause::TimedOut`]: no outcome before the deadline.
    /// * [`Cause::Os`]: a firewall or the system refused the probe.
    ///
    /// # Errors
    /// `done` is dropped without a call, and the result is [`Cause::InvalidArgument`] for an
    /// address that is not a host's, interface 0 or a deadline above [`DEADLINE_MAX`],
    /// [`Cause::LimitReached`] with [`WAITERS_MAX`] lookups pending, or [`Cause::InvalidState`] in
    /// a child forked from the process that started this resolver.
    pub fn resolve(
        &self,
        next_hop: IpAddr,
        interface_index: u32,
        deadline: Duration,
        done: Done,
    ) -> Result<Ticket, Cause> {
        self.submit(next_hop, interface_index, Need::Address, deadline, done)
    }

    /// Like [`resolve`](Self::resolve), but the next hop must answer: an address that the kernel
    /// has not confirmed recently (stale, delay, probe) is confirmed first. Permanent entries and
    /// interfaces without ARP need no answer.
    ///
    /// The kernel first waits for other evidence (`delay_first_probe_time`, five seconds by
    /// default) and then sends three probes a second apart, so `deadline` should be longer than
    /// eight seconds.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn confirm(
        &self,
        next_hop: IpAddr,
        interface_index: u32,
        deadline: Duration,
        done: Done,
    ) -> Result<Ticket, Cause> {
        self.submit(next_hop, interface_index, Need::Answer, deadline, done)
    }

    fn submit(
        &self,
        next_hop: IpAddr,
        interface_index: u32,
        need: Need,
        deadline: Duration,
        done: Done,
    ) -> Result<Ticket, Cause> {
        check(next_hop, interface_index, deadline)?;
        let hop = NextHop {
            address: next_hop,
            interface_index,
        };
        self.shared
            .submit(Target { hop, need }, Instant::now(), deadline, done)
            .map(Ticket)
    }

    /// Watches a next hop that was resolved to `known`.
    ///
    /// `changed` is called when the neighbour table has a different address for it, and again on
    /// each further change. The kernel learns of changes from the neighbour's announcements or by
    /// probing it; the watch sends nothing itself.
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

    /// Cancels a lookup. If this returns true, `done` is dropped and never called; if false, the
    /// call has begun or is over.
    pub fn cancel(&self, ticket: Ticket) -> bool {
        self.shared.cancel(ticket.0)
    }
}

/// Watches a next hop while it lives.
#[must_use]
pub struct Watch {
    shared: Arc<Shared>,
    hop: NextHop,
    number: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.unwatch(self.hop, self.number);
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch")
            .field("hop", &self.hop)
            .finish_non_exhaustive()
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
