//! The exchange with the kernel: one request, one reply, one deadline.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_REQUEST, NetlinkPayload};
use portolan_provider::Cause;
use portolan_provider::error::errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{Query, Route, RouteKind, message};
use crate::sys::netlink::{Received, Socket};
use crate::sys::os_error;
use crate::sys::rtnetlink::RouteNetlinkMessage;

/// Maximum time for the kernel's answer. It normally answers within the sending system call.
pub const EXCHANGE_DEADLINE: Duration = Duration::from_secs(1);

/// A socket for route lookups, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    sequence: u32,
}

impl Client {
    /// Opens the socket.
    ///
    /// # Errors
    /// [`Cause::Os`] with the errno of socket(2) or bind(2).
    pub fn open() -> Result<Self, Cause> {
        Ok(Self {
            socket: Socket::open()?,
            sequence: 0,
        })
    }

    /// Looks up the route that a connection of this process would take.
    ///
    /// # Errors
    /// * [`Cause::NetworkUnreachable`]: no route, or an `unreachable` or `blackhole` one.
    /// * [`Cause::Os`] with `EACCES`: a `prohibit` route.
    /// * [`Cause::AddressNotAvailable`]: the source is not an address of this machine, or the
    ///   interface has none of the family.
    /// * [`Cause::NoDevice`]: the interface does not exist.
    /// * [`Cause::InvalidArgument`]: families differ, or a link-local address has no interface.
    /// * [`Cause::TimedOut`]: the kernel did not answer within [`EXCHANGE_DEADLINE`].
    pub fn lookup(&mut self, query: &Query) -> Result<Route, Cause> {
        message::check(query)?;
        let outcome = self.exchange(query)?;
        // IPv4 refuses a foreign source with an errno that depends on the kernel version and is ambiguous. IPv6 does
        // not check the source.
        let settled = outcome.is_ok() && query.destination.is_ipv4();
        if let Some(source) = query.source
            && !settled
            && !self.is_local(source, query.interface_index)?
        {
            return Err(Cause::AddressNotAvailable);
        }
        outcome.map_err(|errno| explain(query, errno))
    }

    /// Whether the address is on this machine (and, if link-local, on that interface).
    fn is_local(&mut self, address: IpAddr, interface_index: Option<u32>) -> Result<bool, Cause> {
        let scope = interface_index.filter(|_| message::is_link_local(address));
        let query = Query {
            destination: address,
            interface_index: scope,
            source: None,
        };
        let local = |route: Route| matches!(route.kind, RouteKind::Local | RouteKind::Loopback);
        Ok(self.exchange(&query)?.is_ok_and(local))
    }

    /// Sends the request and waits for its reply: a route, or the kernel's errno (positive).
    fn exchange(&mut self, query: &Query) -> Result<Result<Route, i32>, Cause> {
        // Zero marks notifications.
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let uid = rustix::process::geteuid().as_raw();
        self.socket
            .send(message::request(query, uid), NLM_F_REQUEST, self.sequence)
            .map_err(os_error("send(RTM_GETROUTE)"))?;
        let deadline = Instant::now() + EXCHANGE_DEADLINE;
        loop {
            match self
                .socket
                .receive()
                .map_err(os_error("recv(RTM_GETROUTE)"))?
            {
                Received::Nothing => self.wait(deadline)?,
                // Only replies arrive here, one per request, so nothing can overflow. An unreadable message is the
                // reply to this request.
                Received::Lost => {
                    return Err(Cause::Os {
                        call: "route look-up (unreadable reply)",
                        errno: errno::EIO,
                    });
                }
                Received::Messages(messages) => {
                    for reply in messages {
                        if !self.socket.is_reply(&reply.header)
                            || reply.header.sequence_number != self.sequence
                        {
                            continue;
                        }
                        match reply.payload {
                            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => {
                                return message::read(query, &route);
                            }
                            NetlinkPayload::Error(error) => {
                                return Ok(Err(error.raw_code().saturating_neg()));
                            }
                            _ => {}
                        }
                    }
                }
            }
        }
    }

    fn wait(&self, deadline: Instant) -> Result<(), Cause> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or_default();
        let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut ready, Some(&timeout)) {
            Ok(0) => Err(Cause::TimedOut {
                after_ms: EXCHANGE_DEADLINE.as_millis() as u64,
                retries: 0,
            }),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(os_error("poll")(errno)),
        }
    }
}

/// The cause of a positive errno from the kernel.
fn explain(query: &Query, code: i32) -> Cause {
    match code {
        // IPv4 reports EINVAL for a blackhole.
        errno::ENETUNREACH | errno::EHOSTUNREACH | errno::EINVAL => Cause::NetworkUnreachable,
        errno::EADDRNOTAVAIL => Cause::AddressNotAvailable,
        errno::ENODEV => Cause::NoDevice {
            why: format!(
                "interface {} does not exist",
                query.interface_index.unwrap_or_default()
            ),
        },
        errno::EACCES => Cause::Os {
            call: "route look-up (a `prohibit` route or rule)",
            errno: code,
        },
        _ => Cause::Os {
            call: "route look-up (RTM_GETROUTE)",
            errno: code,
        },
    }
}
