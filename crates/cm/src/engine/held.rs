//! Requests for a service whose listener is expected: it closed, or an id was bound to its address, a moment ago.
//!
//! Some servers close their listener and open it again between two connections (perftest does). Others tell their client
//! the port that they have bound before they listen (qperf does). A request that arrives in between would be refused
//! for good, although the service exists. So the request is held for a moment: it is delivered if an id listens in that
//! time, and refused otherwise. Other ports refuse at once.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use portolan_wire::ServiceId;
use portolan_wire::cm::{AttributeId, RejectReason, ReqRepr, SidrReqRepr, SidrStatus};

use crate::engine::Cm;
use crate::mutant::{Mutant, is_planted};
use crate::resolve::socket_addr;
use crate::types::{Host, MadPath};

/// Held requests, by refusal time and in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Held {
    requests: BTreeMap<(Duration, u64), Request>,
    next_number: u64,
}

#[derive(Debug)]
struct Request {
    path: MadPath,
    tid: u64,
    message: Message,
}

/// A held request.
#[derive(Debug)]
pub(crate) enum Message {
    Req(Box<ReqRepr>),
    SidrReq(Box<SidrReqRepr>),
}

impl Message {
    fn service(&self) -> ServiceId {
        match self {
            Self::Req(req) => req.service_id,
            Self::SidrReq(req) => req.service_id,
        }
    }

    fn kind(&self) -> AttributeId {
        match self {
            Self::Req(_) => AttributeId::Req,
            Self::SidrReq(_) => AttributeId::SidrReq,
        }
    }

    /// The sender's number for it.
    fn number(&self) -> u32 {
        match self {
            Self::Req(req) => req.local_comm_id,
            Self::SidrReq(req) => req.request_id,
        }
    }
}

impl Request {
    fn local(&self) -> SocketAddr {
        let port = self.message.service().port();
        socket_addr(self.path.local, port, self.path.scope_id)
    }

    fn is_named(&self, host: Host, kind: AttributeId, number: u32) -> bool {
        (self.path.host(), self.message.kind(), self.message.number()) == (host, kind, number)
    }
}

impl Held {
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// When the next refusal is due.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.requests.keys().next().map(|(until, _)| *until)
    }
}

impl Cm {
    /// Holds a request without a listener if one is expected; `false` if it must be refused now.
    pub(crate) fn hold(
        &mut self,
        now: Duration,
        path: &MadPath,
        tid: u64,
        message: Message,
    ) -> bool {
        let request = Request {
            path: *path,
            tid,
            message,
        };
        let service = request.message.service();
        let wait = self.config.listener_wait;
        let local = request.local();
        if wait.is_zero() || !self.listeners.is_expected(now, service, &local) {
            return false;
        }
        let (kind, number) = (request.message.kind(), request.message.number());
        let mut known = self.held.requests.values();
        if known.any(|held| held.is_named(path.host(), kind, number)) {
            self.counters.duplicates[kind] += 1;
            return true;
        }
        if self.held.len() >= self.config.max_held_requests {
            return false;
        }
        let number = self.held.next_number;
        self.held.next_number += 1;
        let until = now.saturating_add(wait);
        self.held.requests.insert((until, number), request);
        true
    }

    /// Delivers the held requests of a listener that just started.
    pub(crate) fn take_up_held(&mut self, now: Duration) {
        if is_planted(Mutant::HeldForgotten) {
            return;
        }
        let wanted = self.held.requests.iter().filter(|(_, held)| {
            let found = self.listeners.find(held.message.service(), &held.local());
            found.is_some()
        });
        let wanted: Vec<_> = wanted.map(|(key, _)| *key).collect();
        for key in wanted {
            let Some(held) = self.held.requests.remove(&key) else {
                continue;
            };
            if let Some(reason) = self.full() {
                // Dropped as if the network had lost it: its sender repeats it.
                self.counters.drop(reason);
                continue;
            }
            match held.message {
                Message::Req(req) => self.req_received(now, &held.path, held.tid, &req),
                Message::SidrReq(req) => self.sidr_req_received(now, &held.path, held.tid, &req),
            }
        }
    }

    /// Refuses the next request whose listener did not come in time; `false` if none is due.
    pub(crate) fn refuse_held(&mut self, now: Duration) -> bool {
        if self.held.next_due().is_none_or(|due| due > now) {
            return false;
        }
        let Some((_, held)) = self.held.requests.pop_first() else {
            return false;
        };
        match held.message {
            Message::Req(req) => {
                let reason = RejectReason::INVALID_SERVICE_ID.into();
                self.refuse_req(&held.path, held.tid, &req, reason);
            }
            Message::SidrReq(req) => {
                self.refuse_question(&held.path, held.tid, &req, SidrStatus::UNSUPPORTED);
            }
        }
        true
    }

    /// Drops a held REQ that its sender withdraws.
    pub(crate) fn forget_held(&mut self, host: Host, comm_id: u32) {
        let requests = &mut self.held.requests;
        requests.retain(|_, held| !held.is_named(host, AttributeId::Req, comm_id));
    }
}
