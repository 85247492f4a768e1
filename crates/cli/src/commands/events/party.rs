//! Each side's reactions to its events, which cause further events.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use portolan::cm::{CmId, Event, EventChannel, NewQueuePair};
use portolan::provider;
use portolan::provider::cm::{ConnParam, EventType, JoinKind, Service};
use portolan::provider::traits::{Cq, Pd};
use portolan::provider::verbs::{QpCap, QpInit, QpType};
use portolan::resolve::{resolve, resolve_passive};
use portolan::wire::addr::PortSpace;

use super::held::Held;
use crate::args::values::private_data_with;
use crate::args::{
    EventsConnectArgs, EventsJoinArgs, EventsListenArgs, MAX_REJECT_DATA, MAX_SERVICE_REPLY_DATA,
};
use crate::exit::Outcome;

/// Maximum number of requests and connections that a listener holds. Beyond it, requests are rejected; if it does not
/// answer requests, the oldest is dropped.
const MAX_HELD: usize = 1024;
/// Private data of such a rejection.
const BUSY: &[u8] = b"too many connections";
/// Time limit for resolving an address or route, as in rping.
const RESOLVE_TIMEOUT: Duration = Duration::from_millis(2000);
/// Maximum number of connection requests not taken yet.
const BACKLOG: i32 = 128;
/// Number of send retries, as in rping: the maximum of three bits.
const RETRY_COUNT: u8 = 7;

/// One side of the observed connection.
pub(super) trait Party {
    /// Reacts to an event that was printed.
    ///
    /// # Errors
    ///
    /// The next step cannot start.
    fn took(&mut self, event: &Event) -> portolan::Result<Next>;
    /// Whether to continue after a step that could not start.
    fn outlives_failures(&self) -> bool;
}

/// Whether more events may arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    More,
    Over(Outcome),
}

/// A listener and its connections.
#[derive(Debug)]
pub(super) struct Listening {
    listener: CmId,
    answer: Answer,
    held: Held<Endpoint>,
}

#[derive(Debug)]
enum Answer {
    None,
    Accept(ConnParam),
    Reject(Vec<u8>),
}

impl Listening {
    pub(super) fn start(args: &EventsListenArgs) -> Result<(EventChannel, Listening)> {
        let private_data = match (args.ud, args.reject) {
            (true, _) => private_data_with(&args.private_data, "--ud", MAX_SERVICE_REPLY_DATA)?,
            (false, true) => private_data_with(&args.private_data, "--reject", MAX_REJECT_DATA)?,
            // The longest that the option takes.
            (false, false) => args.private_data.clone().into_bytes(),
        };
        let address = first_address(resolve_passive(&args.address)?, &args.address)?;
        let channel = EventChannel::open_on(provider::at(address)?.provider)?;
        let answer = if args.accept {
            Answer::Accept(conn_param(&private_data))
        } else if args.reject {
            Answer::Reject(private_data)
        } else {
            Answer::None
        };
        let explain = |error: portolan::Error| error.between(Some(address.into()), None);
        let listener = CmId::with_service(&channel, service(args.ud))?;
        listener.bind(address).map_err(explain)?;
        listener.listen(BACKLOG).map_err(explain)?;
        let listening = Listening {
            listener,
            answer,
            held: Held::new(),
        };
        Ok((channel, listening))
    }

    /// The listening address.
    pub(super) fn local_addr(&self) -> Result<SocketAddr> {
        let local = self.listener.addresses()?.local;
        local
            .and_then(|local| local.inet())
            .context("the listener has no IP address")
    }

    fn answer(&mut self, id: &CmId) -> portolan::Result<()> {
        if self.held.len() >= MAX_HELD {
            match self.answer {
                // Nothing shows that a peer has given up, so drop the oldest request.
                Answer::None => drop(self.held.remove_oldest()),
                _ => return id.reject(BUSY),
            }
        }
        let endpoint = match &self.answer {
            Answer::None => Endpoint::bare(id),
            Answer::Accept(param) => {
                let endpoint = Endpoint::with_queue_pair(id)?;
                id.accept(param)?;
                endpoint
            }
            Answer::Reject(private_data) => return id.reject(private_data),
        };
        self.held.insert(id.number(), endpoint);
        Ok(())
    }
}

impl Party for Listening {
    fn took(&mut self, event: &Event) -> portolan::Result<Next> {
        let id = event.id();
        match event.event_type() {
            EventType::ConnectRequest => self.answer(id)?,
            // Answers the peer, which starts time-wait.
            EventType::Disconnected => drop(id.disconnect()),
            EventType::TimewaitExit
            | EventType::Unreachable
            | EventType::Rejected
            | EventType::ConnectError => {
                self.held.remove(id.number());
            }
            EventType::DeviceRemoval => {
                self.held.remove(id.number());
                if id.number() == self.listener.number() {
                    return Ok(Next::Over(Outcome::CheckFailed));
                }
            }
            _ => {}
        }
        Ok(Next::More)
    }

    fn outlives_failures(&self) -> bool {
        true
    }
}

/// The connecting side.
#[derive(Debug)]
pub(super) struct Connecting {
    id: CmId,
    param: ConnParam,
    is_datagram: bool,
    endpoint: Option<Endpoint>,
}

impl Connecting {
    pub(super) fn start(args: &EventsConnectArgs) -> Result<(EventChannel, Connecting)> {
        let address = first_address(resolve(&args.address)?, &args.address)?;
        let channel = EventChannel::open_on(provider::towards(None, address)?.provider)?;
        let id = CmId::with_service(&channel, service(args.ud))?;
        id.resolve_addr(None, address, RESOLVE_TIMEOUT)
            .map_err(|error| error.between(None, Some(address.into())))?;
        let connecting = Connecting {
            id,
            param: conn_param(args.private_data.as_bytes()),
            is_datagram: args.ud,
            endpoint: None,
        };
        Ok((channel, connecting))
    }
}

impl Party for Connecting {
    fn took(&mut self, event: &Event) -> portolan::Result<Next> {
        match event.event_type() {
            EventType::AddrResolved => self.id.resolve_route(RESOLVE_TIMEOUT)?,
            EventType::RouteResolved => {
                self.endpoint = Some(Endpoint::with_queue_pair(&self.id)?);
                self.id.connect(&self.param)?;
            }
            EventType::AddrError
            | EventType::RouteError
            | EventType::ConnectError
            | EventType::Unreachable
            | EventType::Rejected
            | EventType::DeviceRemoval => return Ok(Next::Over(Outcome::CheckFailed)),
            // A datagram service has no connection to end.
            EventType::Established if self.is_datagram => return Ok(Next::Over(Outcome::Good)),
            // Answers the peer, which starts time-wait.
            EventType::Disconnected => drop(self.id.disconnect()),
            EventType::TimewaitExit => return Ok(Next::Over(Outcome::Good)),
            _ => {}
        }
        Ok(Next::More)
    }

    fn outlives_failures(&self) -> bool {
        false
    }
}

/// A member of a multicast group.
#[derive(Debug)]
pub(super) struct Joining {
    id: CmId,
    group: IpAddr,
    kind: JoinKind,
    endpoint: Option<Endpoint>,
}

impl Joining {
    pub(super) fn start(args: &EventsJoinArgs) -> Result<(EventChannel, Joining)> {
        let (group, local) = (args.group.group, args.group.bind);
        let channel = EventChannel::open_on(provider::towards(local, group)?.provider)?;
        let id = CmId::with_service(&channel, service(true))?;
        // Binds it to the device that routing selects, as mckey does.
        id.resolve_addr(local, group, RESOLVE_TIMEOUT)
            .map_err(|error| error.between(local.map(Into::into), Some(group.into())))?;
        let joining = Joining {
            id,
            group: group.ip(),
            kind: match args.send_only {
                true => JoinKind::SendOnlyFullMember,
                false => JoinKind::FullMember,
            },
            endpoint: None,
        };
        Ok((channel, joining))
    }
}

impl Party for Joining {
    fn took(&mut self, event: &Event) -> portolan::Result<Next> {
        match event.event_type() {
            EventType::AddrResolved => {
                // Datagrams of the group are received and dropped, because no receive is posted.
                self.endpoint = Some(Endpoint::with_queue_pair(&self.id)?);
                self.id.join_multicast(self.group, self.kind, 0)?;
            }
            EventType::AddrError | EventType::MulticastError | EventType::DeviceRemoval => {
                return Ok(Next::Over(Outcome::CheckFailed));
            }
            _ => {}
        }
        Ok(Next::More)
    }

    fn outlives_failures(&self) -> bool {
        false
    }
}

/// An id with the objects of its queue pair, kept so that its events arrive.
#[derive(Debug)]
#[allow(dead_code, reason = "kept alive as long as the connection")]
struct Endpoint {
    id: CmId,
    queues: Option<(Arc<dyn Pd>, Arc<dyn Cq>)>,
}

impl Endpoint {
    fn bare(id: &CmId) -> Endpoint {
        let id = id.clone();
        Endpoint { id, queues: None }
    }

    /// Creates it with a queue pair that gets no work.
    fn with_queue_pair(id: &CmId) -> portolan::Result<Endpoint> {
        let device = id.device()?;
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(1, None, 0)?;
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        id.create_queue_pair(&NewQueuePair {
            pd: &pd,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            init: QpInit {
                qp_type: id.service().qp_type,
                cap,
                sq_sig_all: false,
            },
        })?;
        let id = id.clone();
        let queues = Some((pd, cq));
        Ok(Endpoint { id, queues })
    }
}

fn service(ud: bool) -> Service {
    let (port_space, qp_type) = match ud {
        true => (PortSpace::Udp, QpType::Ud),
        false => (PortSpace::Tcp, QpType::Rc),
    };
    Service {
        port_space,
        qp_type,
    }
}

fn conn_param(private_data: &[u8]) -> ConnParam {
    ConnParam {
        private_data: private_data.into(),
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: RETRY_COUNT,
        rnr_retry_count: RETRY_COUNT,
        ..ConnParam::default()
    }
}

fn first_address(resolved: Vec<portolan::resolve::Resolved>, text: &str) -> Result<SocketAddr> {
    let first = resolved.into_iter().next();
    first
        .map(|resolved| resolved.addr)
        .with_context(|| format!("{text} has no address"))
}
