//! Whether a GID is reachable from a port: ibv_gid_reachable(3).
//!
//! InfiniBand ports query the subnet administrator for a path. On Ethernet a GID is an IP address:
//! it is reachable if the kernel has a route to it and the next hop answers on its link. A link-local
//! GID is looked for on each interface of the port. Each result names its [`Method`].
//!
//! ```
//! use std::net::Ipv4Addr;
//! use std::time::Duration;
//!
//! use portolan::reach::{Method, gid_reachable};
//!
//! let (device, _) = portolan::provider::software_provider()?.device_of(Ipv4Addr::LOCALHOST.into())?;
//! match gid_reachable(&*device, 0, Ipv4Addr::LOCALHOST.into(), Duration::from_secs(5)) {
//!     Ok(reached) => {
//!         println!("by {}, from {}", reached.method, reached.source);
//!         assert_eq!((reached.method, reached.next_hop), (Method::Route, None));
//!     }
//!     Err(unreachable) => panic!("{unreachable} (errno {})", unreachable.errno()),
//! }
//! # Ok::<(), portolan::Error>(())
//! ```

mod error;
mod future;
mod many;
mod neighbours;
mod port;
mod route;

use std::fmt;
use std::net::IpAddr;
use std::sync::mpsc::channel;
use std::time::Duration;

use portolan_addrinfo::neighbour::DEADLINE_MAX;
use portolan_provider::traits::Device;
use portolan_sa::{self as sa, client::Pending};
use portolan_wire::addr::Gid;
use portolan_wire::sa::PathRecord;

pub use error::{Reason, Unreachable};
pub use future::{Reaching, start};
pub use many::{AT_ONCE_MAX, reach_many};
pub use port::Port;

use self::neighbours::NeighbourAsked;
use self::port::Link;

/// A reachable GID; the [module](self) has an example. (The answer of a datagram service is a
/// [`datagram::Reached`](crate::datagram::Reached).)
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reached {
    /// How reachability was determined.
    pub method: Method,
    /// The local source GID.
    pub source: Gid,
    /// The next hop that answered on the link: the GID's host or a router. `None` if the GID is
    /// this host's, or the subnet administrator answered.
    pub next_hop: Option<IpAddr>,
    /// Its link-layer address, if the link has them.
    pub link_address: Option<[u8; 6]>,
}

/// How reachability is determined; the [module](self) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// The kernel's route to the GID's address, and a next hop that answers on its link.
    Route,
    /// A path record of InfiniBand's subnet administrator.
    SubnetAdministrator,
}

impl Method {
    /// `route`, or `subnet administrator`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::SubnetAdministrator => "subnet administrator",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Determines whether a GID is reachable from a device's port; port 0 selects the first active one.
///
/// Runs on the caller's thread and blocks until there is an answer, at most for `within` (limited
/// to an hour). On Ethernet it should be longer than eight seconds: that is how long Linux takes by
/// default to find that a neighbour no longer answers.
///
/// # Errors
/// [`Unreachable`] with the manual's errno: `EINVAL` if the device lacks the port, or the GID is
/// zero, a multicast or a broadcast address; `ENXIO` if there is no route or the next hop does not
/// answer on its link; `EIO` if the port is down or no answer arrived in time; `ENOMEM`.
pub fn gid_reachable(
    device: &dyn Device,
    port_num: u8,
    gid: Gid,
    within: Duration,
) -> Result<Reached, Unreachable> {
    let refused = |reason| Unreachable {
        device: device.name().to_owned(),
        port_num,
        gid,
        reason,
    };
    // Report an invalid GID before an unsuitable port.
    check(gid).map_err(refused)?;
    reach(&Port::of(device, port_num).map_err(refused)?, gid, within)
}

/// Like [`gid_reachable`], from a port.
///
/// ```
/// use portolan::reach::{Port, Reason, reach};
/// use std::net::Ipv4Addr;
/// use std::time::Duration;
///
/// # let provider = portolan::provider::software_provider()?;
/// # let (device, _) = provider.device_of(Ipv4Addr::LOCALHOST.into())?;
/// // `device` has the address 127.0.0.1.
/// let port = Port::of(&*device, 1).expect("a loopback interface is up");
/// let patience = Duration::from_secs(5);
/// assert!(reach(&port, Ipv4Addr::LOCALHOST.into(), patience).is_ok());
///
/// let unreachable = reach(&port, Ipv4Addr::BROADCAST.into(), patience).unwrap_err();
/// assert!(matches!(unreachable.reason, Reason::InvalidArgument { .. }), "{unreachable}");
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// # Errors
/// As [`gid_reachable`].
pub fn reach(port: &Port, gid: Gid, within: Duration) -> Result<Reached, Unreachable> {
    let (send, answer) = channel();
    let done = Box::new(move |outcome| {
        // The send fails harmlessly if this call has already returned.
        let _ = send.send(outcome);
    });
    let asked = ask(port, gid, within, done);
    let outcome = answer.recv().unwrap_or_else(|_| {
        let why = "the look-up ended without an answer";
        Err(port.refuse(gid, Reason::Io(why.into())))
    });
    drop(asked);
    outcome
}

/// Called once with the outcome.
type Done = Box<dyn FnOnce(Result<Reached, Unreachable>) + Send>;

/// Ensures that `done` is called once: if the returned callback is dropped without a call, it
/// reports `EIO`.
fn sure(port: &Port, gid: Gid, done: Done) -> Done {
    // Do not capture the port: the callback would keep alive the client that owns it.
    let mut teller = Teller {
        done: Some(done),
        device: port.device.clone(),
        port_num: port.port_num,
        gid,
    };
    Box::new(move |outcome| teller.tell(outcome))
}

struct Teller {
    done: Option<Done>,
    device: String,
    port_num: u8,
    gid: Gid,
}

impl Teller {
    fn tell(&mut self, outcome: Result<Reached, Unreachable>) {
        if let Some(done) = self.done.take() {
            done(outcome);
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        let outcome = Err(Unreachable {
            device: std::mem::take(&mut self.device),
            port_num: self.port_num,
            gid: self.gid,
            reason: Reason::Io("the look-up ended without an answer".into()),
        });
        self.tell(outcome);
    }
}

/// A query in progress; dropping it cancels the query.
#[allow(dead_code, reason = "held for its drop")]
enum Asked {
    Answered,
    Neighbours(Vec<NeighbourAsked>),
    Path(Option<Pending>),
}

/// Starts a query; `done` gets the outcome, possibly before this returns.
fn ask(port: &Port, gid: Gid, within: Duration, done: Done) -> Asked {
    let done = sure(port, gid, done);
    if let Err(reason) = check(gid) {
        done(Err(port.refuse(gid, reason)));
        return Asked::Answered;
    }
    let within = within.min(DEADLINE_MAX);
    let ethernet = match &port.link {
        Link::Ethernet(ethernet) => ethernet,
        Link::InfiniBand(infiniband) => {
            // Do not capture the port: the callback would keep alive the client that owns it.
            let (device, port_num) = (port.device.clone(), port.port_num);
            let told = move |outcome: Result<PathRecord, sa::reach::Unreachable>| {
                let reached = outcome.map(|path| Reached {
                    method: Method::SubnetAdministrator,
                    source: path.sgid,
                    next_hop: None,
                    link_address: None,
                });
                done(reached.map_err(|why| Unreachable {
                    device,
                    port_num,
                    gid,
                    reason: Reason::from(why),
                }));
            };
            return Asked::Path(sa::reach::ask(&infiniband.client, gid, within, told));
        }
    };
    match route::find(ethernet, gid) {
        Ok(ways) => Asked::Neighbours(neighbours::ask(port, gid, ways, within, done)),
        Err(reason) => {
            done(Err(port.refuse(gid, reason)));
            Asked::Answered
        }
    }
}

/// Checks that a GID is a host's.
fn check(gid: Gid) -> Result<(), Reason> {
    let ip = gid.to_ip();
    let is_broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    if !ip.is_unspecified() && !gid.is_multicast() && !is_broadcast {
        return Ok(());
    }
    Err(Reason::InvalidArgument {
        what: "GID",
        expected: "the address of one host",
        found: gid.to_string(),
    })
}

impl Port {
    fn refuse(&self, gid: Gid, reason: Reason) -> Unreachable {
        Unreachable {
            device: self.device.clone(),
            port_num: self.port_num,
            gid,
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_asker_gets_one_result_which_is_eio_without_an_answer() {
        let port = Port {
            device: "ib0".into(),
            port_num: 1,
            link: Link::Ethernet(route::Ethernet::default()),
        };
        let gid = Gid([1; 16]);
        let (send, outcomes) = channel();
        let done = || {
            let send = send.clone();
            let tell = move |outcome: Result<Reached, Unreachable>| {
                send.send(outcome.map_err(|why| why.errno()))
                    .expect("the caller waits");
            };
            sure(&port, gid, Box::new(tell))
        };
        drop(done());
        assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), [Err(5)]);
        let no_path = Reason::NoPath("none".into());
        done()(Err(port.refuse(gid, no_path)));
        assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), [Err(6)]);
    }
}
