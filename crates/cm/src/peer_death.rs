//! A peer whose process is known to have died: its connections end as its kernel would have ended
//! them.
//!
//! Linux destroys a killed process's ids, and so says goodbye to their peers (`cm_destroy_id`). A
//! process that brings its own connection manager takes it along when it dies, so the process that learns of the
//! death tells the engine instead, and the engine acts as if that goodbye had come.

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
    /// The ids whose peer is one of those that `is_peer` says yes to, given the way to it and the block
    /// of its communication id (see [`Config::comm_id_block`](crate::Config::comm_id_block)). It
    /// looks at every id: for events as rare as the death of a process.
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

    /// The process at the other end of `id` is dead. What follows is what would if its kernel had
    /// taken leave: `Disconnected` where there is a connection, with the status -ECONNRESET by which
    /// those who look can tell (a peer's own disconnect has 0); `Rejected` with the reason "timeout"
    /// (4) where there was going to be one, nothing where all is over.
    ///
    /// # Errors
    /// `NoSuchObject`, `LimitReached`.
    pub fn peer_died(&mut self, now: Duration, id: IdNumber) -> Result<()> {
        let step = Step::Event;
        self.begin(now, step)?;
        match self.ids.find(id, step)?.state {
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
