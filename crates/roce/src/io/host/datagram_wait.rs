//! What the datagrams of a queue pair wait for: room in a socket or a ring, or the first link to a process of this host.
//!
//! All datagrams of the queue pair wait, whomever they are for, because they are sent in order. So they wait only for a short
//! time, and for room only in rings of processes that are trusted with memory. If there was room and other queue pairs took it,
//! the time begins anew.

use std::sync::Arc;
use std::time::Duration;

use portolan_port_sharing::Block;
use portolan_wire::Qpn;

use crate::io::host::Host;
use crate::io::host::queue_pair::{Awaited, DatagramWait, LockedQp, QpCore};
use crate::io::net::path::Path;
use crate::io::net::shm::links::{ForDatagram, LINK_WAIT_MAX};
use crate::io::net::transmit::{SendSocket, Turn};

/// How long a queue pair waits for room in a ring. A process that runs makes room sooner.
const ROOM_WAIT_MAX: Duration = Duration::from_millis(50);

/// What has no room for datagrams.
pub(super) enum Full<'a> {
    Socket(&'a SendSocket),
    Ring(Arc<SendSocket>),
}

impl Full<'_> {
    /// Registers the queue pair there. Returns whether it is still full.
    pub(super) fn defers(self, qp: &QpCore, state: &mut LockedQp, now: Duration) -> bool {
        match self {
            Self::Socket(socket) => {
                if !state.deferred {
                    state.deferred = socket.defers(qp.qpn, Turn::Had).is_some();
                }
                state.deferred
            }
            Self::Ring(_) if state.sends_at_once => false,
            Self::Ring(ring) => match ring.defers(qp.qpn, Turn::Had) {
                Some(registered) => {
                    state.wait_with_datagrams(Awaited::Room(ring, registered), now + ROOM_WAIT_MAX);
                    true
                }
                None => false,
            },
        }
    }
}

impl LockedQp {
    fn wait_with_datagrams(&mut self, what: Awaited, until: Duration) {
        self.datagram_wait = Some(Box::new(DatagramWait { what, until }));
    }
}

impl Host {
    /// Whether a UD queue pair must not send yet. What it waits for, or its timer, settles it again.
    pub(super) fn waits_with_datagrams(
        &self,
        qp: &QpCore,
        state: &mut LockedQp,
        now: Duration,
    ) -> bool {
        let Some(wait) = &mut state.datagram_wait else {
            return false;
        };
        let waits = match &mut wait.what {
            Awaited::Link(block) => now < wait.until && self.awaits_link(*block, qp.qpn),
            Awaited::Room(ring, registered) => {
                if ring.has(*registered) && now >= wait.until {
                    // Its reader may be stopped.
                    ring.stalls(*registered);
                }
                let is_taken = !ring.has(*registered);
                if is_taken
                    && waits_for_room(ring)
                    && let Some(again) = ring.defers(qp.qpn, Turn::Missed)
                {
                    // There was room, and others took it. The wait begins anew.
                    (*registered, wait.until) = (again, now + ROOM_WAIT_MAX);
                }
                ring.has(*registered) && waits_for_room(ring)
            }
        };
        if !waits {
            state.datagram_wait = None;
        }
        waits
    }

    /// Sends the datagrams that wait for another process. The queue pair is about to be destroyed.
    pub(crate) fn send_waiting_datagrams(&self, qp: &QpCore, state: &mut LockedQp) {
        if state.datagram_wait.take().is_some() {
            state.sends_at_once = true;
            let memory = self.memory.read();
            self.transmit_datagrams(qp, state, state.latest, &memory);
        }
    }

    /// Resumes the queue pairs that waited for a link, if one is up or refused since the last call.
    pub(crate) fn resume_waiting_for_links(&self) {
        if let Some(links) = &self.links {
            self.resume_all(links.take_waiting());
        }
    }

    /// Registers a queue pair with the link to a process if it is being created. Returns whether it still is.
    fn awaits_link(&self, block: Block, qpn: Qpn) -> bool {
        let Some(links) = &self.links else {
            return false;
        };
        links.wait(qpn);
        matches!(links.for_datagram(block), ForDatagram::Coming)
    }

    /// The link to the process of this host that has the queue pair a datagram is for, if it is up; and whether the datagram
    /// waits for it. Asks for the link if there is none.
    pub(super) fn link_of_datagram(
        &self,
        qp: &QpCore,
        state: &mut LockedQp,
        (path, to): (&Path, Qpn),
        now: Duration,
    ) -> (Option<Arc<SendSocket>>, bool) {
        let other = self
            .links
            .as_ref()
            .zip(self.block_of_other_process(path, to));
        let Some((links, block)) = other else {
            return (None, false);
        };
        let mut link = links.for_datagram(block);
        if matches!(link, ForDatagram::Missing) {
            if links.want(block) {
                self.link_is_wanted();
            }
            link = links.for_datagram(block);
        }
        if matches!(link, ForDatagram::Coming) && !state.sends_at_once {
            links.wait(qp.qpn);
            link = links.for_datagram(block);
        }
        match link {
            ForDatagram::Up(link) => (Some(link), false),
            ForDatagram::Coming if !state.sends_at_once => {
                state.wait_with_datagrams(Awaited::Link(block), now + LINK_WAIT_MAX);
                (None, true)
            }
            _ => (None, false),
        }
    }
}

/// Whether datagrams wait for room in a ring: not after its reader has made none for long, until it does.
fn waits_for_room(ring: &SendSocket) -> bool {
    ring.is_full() && !ring.is_closed() && !ring.is_stalled()
}
