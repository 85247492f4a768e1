//! Keepalive probes on the wire: RDMA writes of zero bytes.

use std::time::{Duration, Instant};

use portolan_provider::verbs::{RemoteAddr, SendData, SendFlags, SendOp, SendWr};

use super::keepalive::{Look, PROBE};
use super::table::Work;

/// The result of a keepalive check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// Keepalives are disabled, or the queue pair is already broken.
    Not,
    /// The time of the next check.
    Until(Instant),
    /// The peer was silent for this long.
    Silent(Duration),
}

/// A write of zero bytes, which needs no memory and no key (IBTA C9-88). Unlike a read it is
/// permitted with any resources of the connection.
const PROBE_WR: SendWr<'static> = SendWr {
    wr_id: PROBE,
    op: SendOp::RdmaWrite(RemoteAddr { addr: 0, rkey: 0 }),
    data: SendData::Sges(&[]),
    flags: SendFlags::SIGNALED,
    ud: None,
    srq: None,
};

impl Work {
    /// Checks the peer: sends a probe if one is due.
    pub(crate) fn watch_peer(&self) -> Watched {
        if !self.keeps_alive {
            return Watched::Not;
        }
        let mut state = self.state.lock();
        let working = state.is_sending();
        if state.broken.is_some() {
            return Watched::Not;
        }
        let Some(silence) = &mut state.silence else {
            return Watched::Not;
        };
        let now = Instant::now();
        let mut look = silence.check(now, working);
        if look == Look::Probe {
            // Post under the lock, so that no send comes between the check and the probe. Such a
            // send might wait for a receive of the peer and delay the probe's answer.
            if self.qp.post_send(&PROBE_WR).is_err() {
                // The queue pair is broken; its completions or an event will report that.
                silence.probe_completed();
                return Watched::Not;
            }
            look = silence.check(now, working);
        }
        match look {
            Look::Silent(since) => Watched::Silent(since),
            Look::Until(at) => Watched::Until(at),
            Look::Probe => Watched::Until(now),
        }
    }
}
