//! Listeners: finds the id for a connection request, and limits the waiting requests.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use portolan_provider::cm::IdNumber;
use portolan_provider::error::{Cause, Result, Step};
use portolan_wire::ServiceId;

use super::timewait::Remembered;
use crate::engine::Cm;
use crate::half_open_requests::Requests;
use crate::hash::{Keyed, Map};
use crate::id::{Id, Listener};
use crate::state::Event;

/// The listening ids, by service id and local address.
#[derive(Debug)]
pub(crate) struct Listeners {
    map: Map<(ServiceId, ListenAddr), IdNumber>,
    /// The addresses where a listener is expected: a listener closed there, or an id was bound, a moment ago.
    /// With the bound id.
    expected: Remembered<(ServiceId, ListenAddr), Option<IdNumber>>,
}

/// The local addresses a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ListenAddr {
    /// One address; the scope distinguishes link-local addresses of several links, otherwise it is 0.
    One(IpAddr, u32),
    /// Every IPv4 address.
    AnyV4,
    /// Every IPv6 address.
    AnyV6,
}

impl Listeners {
    pub(crate) fn new(hash: Keyed, max_expected: usize) -> Self {
        Self {
            map: Map::with_hasher(hash),
            expected: Remembered::new(max_expected, hash),
        }
    }

    /// The listener for a request to `local`: an exact address takes precedence over a wildcard.
    pub(crate) fn find(&self, service: ServiceId, local: &SocketAddr) -> Option<IdNumber> {
        let [one, any] = served_by(service, local);
        self.map.get(&one).or_else(|| self.map.get(&any)).copied()
    }

    /// The service of each entry.
    pub(crate) fn services(&self) -> impl Iterator<Item = ServiceId> {
        self.map.keys().map(|(service, _)| *service)
    }

    /// Number of entries; a wildcard of both families has two.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether a listener at `local` closed, or an id was bound there, a moment ago.
    pub(crate) fn is_expected(
        &self,
        now: Duration,
        service: ServiceId,
        local: &SocketAddr,
    ) -> bool {
        let mut served = served_by(service, local).into_iter();
        served.any(|key| self.expected.contains(now, &key))
    }

    /// Expects a listener where an id was bound, until `until`.
    pub(crate) fn expect(&mut self, now: Duration, id: &Id, number: IdNumber, until: Duration) {
        if until > now && can_listen(id) {
            for key in keys(id).into_iter().flatten() {
                self.expected.insert(now, key, until, Some(number));
            }
        }
    }

    /// A bound id connects or is destroyed.
    pub(crate) fn no_longer_expect(&mut self, now: Duration, id: &Id, number: IdNumber) {
        for key in keys(id).into_iter().flatten() {
            if self.expected.get(now, &key) == Some(&Some(number)) {
                self.expected.forget(&key);
            }
        }
    }

    /// Removes the entries of a listening id, except those that another id has taken over. They are expected again
    /// until `until`.
    pub(crate) fn remove(&mut self, now: Duration, id: &Id, number: IdNumber, until: Duration) {
        for key in keys(id).into_iter().flatten() {
            if self.map.get(&key) == Some(&number) {
                self.map.remove(&key);
                if until > now {
                    self.expected.insert(now, key, until, None);
                }
            }
        }
    }
}

impl ListenAddr {
    fn one(local: &SocketAddr) -> Self {
        match local {
            SocketAddr::V4(v4) => Self::One((*v4.ip()).into(), 0),
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
                Self::One((*v6.ip()).into(), v6.scope_id())
            }
            SocketAddr::V6(v6) => Self::One((*v6.ip()).into(), 0),
        }
    }
}

/// The entries that serve requests to `local`: the exact address and the wildcard.
fn served_by(service: ServiceId, local: &SocketAddr) -> [(ServiceId, ListenAddr); 2] {
    let any = if local.is_ipv4() {
        ListenAddr::AnyV4
    } else {
        ListenAddr::AnyV6
    };
    [(service, ListenAddr::one(local)), (service, any)]
}

/// Whether an id has an address to listen on: one with a port, or an InfiniBand service.
fn can_listen(id: &Id) -> bool {
    let has_port = |local: SocketAddr| local.port() != 0;
    id.local
        .is_some_and(|local| id.ib_service.is_some() || has_port(local))
}

/// The entries of a listening id: one, or two for a wildcard of both families.
fn keys(id: &Id) -> [Option<(ServiceId, ListenAddr)>; 2] {
    let Some(local) = id.local else {
        return [None, None];
    };
    let service = id.service_id(&local);
    if !local.ip().is_unspecified() {
        return [Some((service, ListenAddr::one(&local))), None];
    }
    let (own, other) = match local {
        SocketAddr::V4(_) => (ListenAddr::AnyV4, ListenAddr::AnyV6),
        SocketAddr::V6(_) => (ListenAddr::AnyV6, ListenAddr::AnyV4),
    };
    // An InfiniBand address serves only its own family.
    let both = id.ib_service.is_none() && !id.options.serves_one_family(&local);
    [Some((service, own)), both.then_some((service, other))]
}

impl Cm {
    /// Starts to listen (`rdma_listen`). A backlog of 0 or less, or above the maximum, means the maximum.
    ///
    /// A request counts against the backlog until its owner takes it ([`Cm::request_taken`]), answers it or destroys
    /// it. While the backlog is full, further requests are dropped, as recent kernels do, and their senders repeat
    /// them. But a host with fewer requests than another displaces the oldest request of the other.
    ///
    /// Held requests, which arrived just after the id was bound or another listener closed here, are delivered.
    ///
    /// # Errors
    /// `InvalidState`, `NoSuchObject`; `AddressInUse` if another id of this engine listens there;
    /// `InvalidArgument` for an id without a port.
    pub fn listen(&mut self, now: Duration, id: IdNumber, backlog: i32) -> Result<()> {
        let step = Step::Listen;
        let max_backlog = self.config.max_backlog;
        let (fewest, most) = (
            self.config.min_half_open_per_listener,
            self.config.max_half_open_per_listener,
        );
        let number = id;
        let id = self.ids.find_mut(id, step)?;
        let next = id.command(Event::Listen, step)?;
        let Some(local) = id.local.filter(|_| can_listen(id)) else {
            let cause = Cause::InvalidArgument {
                what: "local port",
                expected: "one that the port table gave".into(),
                found: "0".into(),
            };
            return Err(id.fail(step, cause));
        };
        for key in keys(id).into_iter().flatten() {
            if let Some(other) = self.listeners.map.get(&key) {
                let holder = Some(alloc::format!(
                    "{other}, which listens on {}",
                    id.service_id(&local)
                ));
                return Err(id.fail(step, Cause::AddressInUse { holder }));
            }
        }
        for key in keys(id).into_iter().flatten() {
            self.listeners.map.insert(key, number);
            // Its next entry, when it closes, is new.
            self.listeners.expected.forget(&key);
        }
        let backlog = u32::try_from(backlog).ok().filter(|backlog| *backlog > 0);
        let backlog = backlog.map_or(max_backlog, |backlog| backlog.min(max_backlog));
        id.listener = Some(Listener {
            backlog,
            waiting: Requests::default(),
            max_half_open: (backlog as usize).max(fewest).min(most),
            half_open: Requests::default(),
        });
        id.state = next;
        self.take_up_held(now);
        Ok(())
    }

    /// The listener of a child whose `ConnectRequest` event was not taken. The event has only the tag of the listener's
    /// owner, and owners that do not know of each other may have given the same one.
    pub fn listener_of(&self, child: IdNumber) -> Option<IdNumber> {
        self.ids.get(child)?.waits_at()
    }

    /// Reports that the owner has taken the `ConnectRequest` event of a child. The child stops counting against the
    /// listener's backlog, and survives the listener.
    pub fn request_taken(&mut self, child: IdNumber) {
        let child_id = self.ids.get_mut(child);
        let Some(listener) = child_id.and_then(|id| id.leave_backlog()) else {
            return;
        };
        if let Some(listener) = self
            .ids
            .get_mut(listener)
            .and_then(|id| id.listener.as_mut())
        {
            listener.waiting.remove(child);
        }
    }

    /// Stops listening; returns the children whose request events were not taken.
    pub(crate) fn unlisten(&mut self, now: Duration, number: IdNumber) -> Vec<IdNumber> {
        let Some(id) = self.ids.get_mut(number) else {
            return Vec::new();
        };
        let Some(listener) = id.listener.take() else {
            return Vec::new();
        };
        let until = now.saturating_add(self.config.expected_listener_memory);
        self.listeners.remove(now, id, number, until);
        listener.waiting.ids().collect()
    }
}
