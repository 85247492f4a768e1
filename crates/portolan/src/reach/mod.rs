//! Whether a GID can be reached from a port: ibv_gid_reachable(3).
//!
//! InfiniBand's ports ask the subnet administrator for a path. Ethernet's have none to ask; there a GID is
//! an IP address, and the kernel's route to it, with a next hop that answers on its link, is the answer.
//! Each answer says by which [`Method`] it was found.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use portolan::reach::gid_reachable;
//!
//! let device = &portolan::devices()?[0];
//! let gid = "10.0.0.7".parse::<std::net::IpAddr>()?.into();
//! match gid_reachable(&**device, 0, gid, Duration::from_secs(5)) {
//!     Ok(reached) => println!("by {}, from {}", reached.method, reached.source),
//!     Err(unreachable) => println!("{unreachable} (errno {})", unreachable.errno()),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod future;
mod many;
mod port;
mod route;

use std::fmt;
use std::net::IpAddr;
use std::sync::mpsc::channel;
use std::time::Duration;

use portolan_addrinfo::neighbour::DEADLINE_MAX;
use portolan_addrinfo::{LinkAddress, Resolver, Ticket};
use portolan_provider::address::ip_to_gid;
use portolan_provider::traits::Device;
use portolan_sa::{self as sa, client::Pending};
use portolan_wire::addr::Gid;
use portolan_wire::sa::PathRecord;

pub use error::{Reason, Unreachable};
pub use future::{Reaching, start};
pub use many::{AT_ONCE_MAX, reach_many};
pub use port::Port;

use self::port::Link;

/// A GID that can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// How it was found out.
    pub method: Method,
    /// The local GID that packets leave from.
    pub source: Gid,
    /// Who answered on the link: the GID's host itself or a router on the way. `None` if the GID is this
    /// host's, and by the subnet administrator.
    pub next_hop: Option<IpAddr>,
    /// Its hardware address, if the link has such.
    pub link_address: Option<[u8; 6]>,
}

/// How it is found out whether a GID can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// The kernel's route to the address that the GID is, and a next hop that answers on its link.
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

/// Whether a GID can be reached from a port of a device, in the caller's thread; port 0 is the first that is
/// active. It blocks until there is an answer, for `within` at most (an hour, if that is longer).
///
/// # Errors
/// [`Unreachable`] with the errno of the manual: `EINVAL` for a port that the device has not, and a GID that
/// is zero, a group's or a broadcast address; `ENXIO` if there is no route, or the next hop does not answer
/// on its link; `EIO` for a port that is down, and if no answer came in time; `ENOMEM`.
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
    // What is wrong with the question comes before what is wrong with the port.
    check(gid).map_err(refused)?;
    reach(&Port::of(device, port_num).map_err(refused)?, gid, within)
}

/// The same from a port.
///
/// # Errors
/// As [`gid_reachable`].
pub fn reach(port: &Port, gid: Gid, within: Duration) -> Result<Reached, Unreachable> {
    let (send, answer) = channel();
    let done = Box::new(move |outcome| {
        // Nobody waits any more if this call has returned.
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

/// What is called with an outcome, once.
type Done = Box<dyn FnOnce(Result<Reached, Unreachable>) + Send>;

/// Calls `done` once, whatever becomes of what it returns: dropped uncalled, it says so as `EIO`.
fn sure(port: &Port, gid: Gid, done: Done) -> Done {
    // Not the port: whoever answers would hold the client that it ends with.
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

/// A question under way; it ends when this is dropped.
#[allow(dead_code, reason = "held for its drop")]
enum Asked {
    Answered,
    Neighbour(NeighbourAsked),
    Path(Option<Pending>),
}

/// A look-up of a neighbour, cancelled when dropped.
struct NeighbourAsked(Ticket);

impl Drop for NeighbourAsked {
    fn drop(&mut self) {
        if let Ok(resolver) = Resolver::shared() {
            // One that has ended is none to cancel.
            let _ = resolver.cancel(self.0);
        }
    }
}

/// Asks; `done` gets the outcome, possibly before this returns.
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
            // Not the port: whoever answers would hold the client that it ends with.
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
    let way = match route::find(ethernet, gid) {
        Ok(way) => way,
        Err(reason) => {
            done(Err(port.refuse(gid, reason)));
            return Asked::Answered;
        }
    };
    let reached = Reached {
        method: Method::Route,
        source: ip_to_gid(way.source),
        next_hop: way.next_hop,
        link_address: None,
    };
    let Some(next_hop) = way.next_hop else {
        done(Ok(reached));
        return Asked::Answered;
    };
    ask_neighbour(
        port,
        gid,
        reached,
        (next_hop, way.interface_index),
        within,
        done,
    )
}

fn ask_neighbour(
    port: &Port,
    gid: Gid,
    reached: Reached,
    (next_hop, interface_index): (IpAddr, u32),
    within: Duration,
    done: Done,
) -> Asked {
    // Where the look-up is refused, who asked is still to be told.
    let done = std::sync::Arc::new(std::sync::Mutex::new(Some(done)));
    let (refused, teller) = (done.clone(), port.clone());
    let tell = move |done: &std::sync::Mutex<Option<Done>>, outcome| {
        let done = crate::lock(done).take();
        if let Some(done) = done {
            done(outcome);
        }
    };
    let told = Box::new(move |outcome: Result<LinkAddress, _>| {
        let outcome = outcome.map(|known| Reached {
            link_address: known.ethernet(),
            ..reached
        });
        tell(
            &done,
            outcome.map_err(|cause| teller.refuse(gid, Reason::from(cause))),
        );
    });
    let asked = Resolver::shared()
        .and_then(|resolver| resolver.resolve(next_hop, interface_index, within, told));
    match asked {
        Ok(ticket) => Asked::Neighbour(NeighbourAsked(ticket)),
        Err(cause) => {
            tell(&refused, Err(port.refuse(gid, Reason::from(cause))));
            Asked::Answered
        }
    }
}

/// That a GID is a host's.
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
    fn who_asked_is_told_once_and_of_an_end_without_an_answer_as_eio() {
        let port = Port {
            device: "ib0".into(),
            port_num: 1,
            link: Link::Ethernet(port::Ethernet::default()),
        };
        let gid = Gid([1; 16]);
        let (send, outcomes) = channel();
        let done = || {
            let send = send.clone();
            let tell = move |outcome: Result<Reached, Unreachable>| {
                send.send(outcome.map_err(|why| why.errno()))
                    .expect("somebody waits");
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
