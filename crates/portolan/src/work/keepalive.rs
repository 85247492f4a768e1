//! The keepalive's questions on the wire: RDMA writes of no bytes.

use std::time::{Duration, Instant};

use portolan_provider::verbs::{RemoteAddr, SendData, SendFlags, SendOp, SendWr};

use super::table::Work;
use super::vigil::Look;
use crate::lock;

/// What became of looking after the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// It is not looked after, or the queue pair is broken already.
    Not,
    /// It is to be looked after again at this moment.
    Until(Instant),
    /// It gave no sign of life for so long.
    Silent(Duration),
}

/// A question's name among the work requests; that of another is the key of its slot, and smaller.
pub(super) const QUESTION: u64 = u64::MAX;

/// A write of no bytes, which needs no memory and no key (IBTA C9-88). Unlike a read it is allowed by
/// whatever depths the connection was made with.
const QUESTION_WR: SendWr<'static> = SendWr {
    wr_id: QUESTION,
    op: SendOp::RdmaWrite(RemoteAddr { addr: 0, rkey: 0 }),
    data: SendData::Sges(&[]),
    flags: SendFlags::SIGNALED,
    ud: None,
};

impl Work {
    /// Looks after the peer: asks it for a sign of life if it is time to.
    pub(crate) fn watch_peer(&self) -> Watched {
        if !self.keeps_alive {
            return Watched::Not;
        }
        let mut state = lock(&self.state);
        let working = state.is_sending();
        if state.broken.is_some() {
            return Watched::Not;
        }
        let Some(vigil) = &mut state.vigil else {
            return Watched::Not;
        };
        let now = Instant::now();
        let mut look = vigil.look(now, working);
        if look == Look::Ask {
            // Under the lock, so that no send, which may have to wait for a receive of the peer's, is
            // posted between the look and the question: what is before it would hold up its answer.
            if self.qp.post_send(&QUESTION_WR).is_err() {
                // The queue pair works no more, which its completions or an event will tell.
                vigil.answered();
                return Watched::Not;
            }
            look = vigil.look(now, working);
        }
        match look {
            Look::Silent(since) => Watched::Silent(since),
            Look::Until(at) => Watched::Until(at),
            Look::Ask => Watched::Until(now),
        }
    }
}
