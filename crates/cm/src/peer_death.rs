//! Ends the connections of a peer whose process died, as that process's kernel would have.
//!
//! Linux destroys a killed process's ids and notifies their peers (`cm_destroy_id`). A process with its own connection
//! manager cannot do that when it is killed. So the process that detects the death tells the engine, and the engine
//! acts as if it had received those messages.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use portolan_provider::cm::{ConnParam, Ece, EventParam, EventType, IdNumber};
use portolan_provider::error::errno::ECONNRESET;
use portolan_provider::error::{Result, Step};
use portolan_wire::cm::{PrivateData, RejectReason};

use crate::engine::Cm;
use crate::id::Connection;
use crate::state::{Event, State};
use crate::teardown::REJ_PRIVATE_DATA_MAX;
use crate::types::MadPath;

impl Cm {
    /// The ids whose peer `is_peer` selects, by the path to it and the block of its communication id (see
    /// [`Config::comm_id_block`](crate::Config::comm_id_block)). This scans all ids, which is acceptable because a
    /// process rarely dies.
    pub fn ids_with_peer(&self, is_peer: impl Fn(&MadPath, u8) -> bool) -> Vec<IdNumber> {
        let is_theirs = |connection: &Connection| {
            let [block, ..] = connection.remote_comm_id?.to_be_bytes();
            is_peer(&connection.mad_path, block).then_some(())
        };
        let found = self.ids.iter().filter(|(_, id)| {
            let connection = id.connection.as_deref();
            connection.and_then(is_theirs).is_some()
        });
        found.map(|(number, _)| number).collect()
    }

    /// The process at the other end of `id` is dead. The owner gets the events that a kernel's teardown would have
    /// caused: `Disconnected` for a connection, with the status -ECONNRESET (a disconnect by the peer has 0);
    /// `Rejected` with the reason "timeout" (4) during the handshake; no event if the connection is already closed. A
    /// death is reported only once, so the event is queued even if the queue is full.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn peer_died(&mut self, now: Duration, id: IdNumber) -> Result<()> {
        match self.ids.find(id, Step::Event)?.state {
            // As by a DREQ.
            State::Established => {
                self.advance(now, id, Event::DreqReceived);
                self.report_disconnected(id, -ECONNRESET);
            }
            // As by the DREP.
            State::DreqSent => {
                self.advance(now, id, Event::DrepReceived);
                self.report_disconnected(id, -ECONNRESET);
            }
            // As by a REJ.
            State::ReqSent
            | State::MraReqRcvd
            | State::RepRcvd
            | State::ReqRcvd
            | State::RepSent
            | State::MraRepRcvd => {
                self.advance(now, id, Event::RejReceived);
                let nothing = PrivateData::<REJ_PRIVATE_DATA_MAX>::EMPTY;
                let conn = ConnParam {
                    private_data: Box::from(&nothing[..]),
                    ..ConnParam::default()
                };
                let (status, param) = (i32::from(RejectReason::TIMEOUT.0), EventParam::Conn(conn));
                self.report(id, EventType::Rejected, status, param, Ece::default());
            }
            State::Idle
            | State::AddrBound
            | State::Listen
            | State::AddrQuery
            | State::AddrResolved
            | State::RouteResolved
            | State::DreqRcvd
            | State::SidrReqSent
            | State::SidrResolved
            | State::SidrReqRcvd
            | State::SidrReplied
            | State::Timewait
            | State::Closed
            | State::DeviceRemoval => {}
        }
        Ok(())
    }
}
