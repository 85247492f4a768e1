//! How a queue pair's packets reach its peer: through the UDP socket, or through memory that both processes share.

use std::sync::atomic::Ordering;

use portolan_port_sharing::Block;
use portolan_provider::verbs::QpType;
use portolan_wire::Qpn;

use crate::io::host::Host;
use crate::io::host::queue_pair::LockedQp;
use crate::io::net::path::Path;
use crate::io::net::shm::links::LINK_WAIT_MAX;
use crate::io::net::shm::program_memory::WhyUnreadable;
use crate::io::net::shm::rights_layout::tag_of;
use crate::io::polling::clock::as_nanos;

/// How a queue pair's packets leave this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through memory shared with the peer's process.
    Memory,
    /// Through memory. One-sided requests for memory that the peer's program owns are packets there, because one of the
    /// processes cannot read the other's memory.
    Rings(WhyUnreadable),
    /// Through the UDP socket.
    Socket(WhySocket),
}

/// Why packets use the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhySocket {
    /// No device of this process has the remote address: the peer is on another host or in another network namespace.
    #[error("the peer is on another host or in another network namespace")]
    Elsewhere,
    /// Both queue pairs belong to this process, which has no link through memory to itself. Everything between them is
    /// packets through the kernel's UDP, copied and acknowledged as between two hosts. That takes several times as long as
    /// between two processes.
    #[error("both ends are in one process")]
    SameProcess,
    /// A datagram queue pair has many peers. Each datagram goes through memory if the link to its peer's process is up. The
    /// first one to a process waits for the link, up to 50 ms.
    #[error("datagrams, which choose memory one by one")]
    Datagrams,
    /// [`StackConfig::local_memory`](crate::io::StackConfig::local_memory) is off, or this process could not create
    /// memory files or the socket that other processes call.
    #[error("memory is turned off in this process, or could not be prepared")]
    TurnedOff,
    /// The other process has turned it off, has no descriptors left, or has died. One that was only busy is called again.
    #[error("the other process takes no packets through memory")]
    Refused,
    /// The link is being created, or packets sent through the socket are unacknowledged. Two processes create their link
    /// when they first connect. It is usually there when the connect returns, and otherwise about a millisecond later. A
    /// queue pair changes to it as soon as nothing is under way, so the first requests of a connection may be packets. An
    /// unreliable connection waits up to 50 ms with its first message, and then stays with the socket.
    #[error("the link through memory is not ready")]
    NotReady,
}

impl Host {
    /// The block of the process that has a queue pair at the end of a path, if it is another process of this host.
    pub(super) fn block_of_other_process(&self, path: &Path, qpn: Qpn) -> Option<Block> {
        let block = Block::of_qpn(qpn.value())?;
        let is_other = ![Block::COORDINATOR, self.group.block()].contains(&block);
        let is_here = || self.device_of(path.remote.ip(), path.interface).is_some();
        (is_other && is_here()).then_some(block)
    }

    /// Requests a link to the peer's process, if that is another process of this host.
    pub(crate) fn want_link(&self, state: &mut LockedQp, peer: Qpn) {
        let (Some(links), Some(path)) = (&self.links, &state.path) else {
            return;
        };
        let block = self.block_of_other_process(path, peer);
        state.peer = block;
        state.peer_qpn = peer;
        state.peer_tag = tag_of(path.remote.ip(), path.local);
        state.own_tag = tag_of(path.local, path.remote.ip());
        if block.is_some_and(|block| links.want(block)) {
            self.link_is_wanted();
        }
    }

    /// A link was requested: the progress thread makes it.
    pub(super) fn link_is_wanted(&self) {
        let until = self.clock.now() + LINK_WAIT_MAX;
        self.link_wanted_until_ns
            .store(as_nanos(until), Ordering::Relaxed);
        self.progress.wake();
    }

    /// Called by a thread that polls and finds packets of another process of this host in a socket: gives its processor up
    /// for a moment if a link was wanted shortly before. The progress threads of both processes make the link, and the
    /// kernel lets threads that only poll keep their processors for milliseconds. So long all packets would go by the
    /// sockets. Returns whether it did.
    pub(super) fn make_way_for_link(&self, now_ns: u64) -> bool {
        let is_wanted = now_ns < self.link_wanted_until_ns.load(Ordering::Relaxed);
        if is_wanted {
            std::thread::yield_now();
        }
        is_wanted
    }

    /// Switches a queue pair to the ring to its peer, once the link is up and nothing is in flight that a packet in
    /// the ring could overtake. A stream begins no request until then. Switches back to the socket if the link has ended.
    pub(super) fn choose_way(&self, state: &mut LockedQp) {
        let (Some(links), Some(peer)) = (&self.links, state.peer) else {
            return;
        };
        match &state.link {
            Some(link) if !link.is_closed() => return,
            Some(_) => {
                state.link = None;
                // The ring does not resume it any more.
                state.deferred = false;
                self.progress.by_sockets().fetch_add(1, Ordering::Relaxed);
                if links.want(peer) {
                    self.link_is_wanted();
                }
            }
            None => {}
        }
        let came_up = links.came_up();
        if state.links_seen == came_up {
            return;
        }
        let link = links.to(peer);
        let must_wait = !state.engine.can_change_way();
        state.engine.wait_to_change_way(must_wait && link.is_some());
        if must_wait {
            return;
        }
        state.links_seen = came_up;
        if let Some(link) = link {
            state.link = Some(link);
            self.progress.by_sockets().fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// How a queue pair's next packets are sent. `None` if the queue pair does not exist or has no path.
    pub(crate) fn way_of(&self, qpn: Qpn) -> Option<Way> {
        let qp = self.qps.find(qpn)?;
        if qp.qp_type == QpType::Ud {
            return Some(Way::Socket(WhySocket::Datagrams));
        }
        let mut state = qp.lock();
        let path = state.path?;
        // It may have sent nothing since the link came up.
        self.choose_way(&mut state);
        if let Some(link) = state.link.as_ref().filter(|link| !link.is_closed()) {
            let other_user = Some(WhyUnreadable::OtherUser);
            let why = link.peer_memory().map_or(other_user, |peer| {
                peer.why_unreadable().or(peer.why_not_pulled())
            });
            return Some(why.map_or(Way::Memory, Way::Rings));
        }
        let why = match (&self.links, state.peer) {
            (None, _) => WhySocket::TurnedOff,
            (Some(links), Some(peer)) if links.is_refused(peer) => WhySocket::Refused,
            (Some(_), Some(_)) => WhySocket::NotReady,
            (Some(_), None) => match self.device_of(path.remote.ip(), path.interface) {
                Some(_) => WhySocket::SameProcess,
                None => WhySocket::Elsewhere,
            },
        };
        Some(Way::Socket(why))
    }
}
