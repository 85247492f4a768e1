//! Validates and dispatches answers.

use std::time::Duration;

use portolan_wire::Qpn;
use portolan_wire::mad::{Method, RmppFlags};
use portolan_wire::sa::{SaPacket, SaStatus};

use super::failure::{Failure, Problem};
use super::{Answer, Engine, QueryId};
use crate::transport::MadAddress;

/// The response bit of a method.
const RESPONSE: u8 = 0x80;

/// The response method of a method (IBTA 15.2.2): Set shares GetResp with Get, the others have
/// their own.
const fn answering(method: Method) -> Method {
    match method {
        Method::SET => Method::GET_RESP,
        Method(method) => Method(method | RESPONSE),
    }
}

impl Engine {
    /// Handles an incoming datagram. A datagram that answers no query is counted and dropped.
    pub fn handle_mad(&mut self, now: Duration, from: &MadAddress, mad: &[u8]) {
        let Ok(packet) = SaPacket::new_checked(mad) else {
            self.counters.malformed += 1;
            return;
        };
        // The system may have changed the upper half of the id.
        let tid = packet.mad().tid as u32;
        let Some(&id) = self.by_tid.get(&tid) else {
            self.handle_stray(now, from, tid, &packet);
            return;
        };
        if self.believes(id, from, &packet) {
            self.take(now, id, &packet);
            self.start_waiting(now);
        }
    }

    /// Returns whether the packet answers the query and comes from the queried administrator. Its
    /// transaction id matches.
    fn believes(&mut self, id: QueryId, from: &MadAddress, packet: &SaPacket<'_>) -> bool {
        let Some(flight) = self.flights.get(&id) else {
            return false;
        };
        let asked = flight.to;
        let counter = if asked.is_none_or(|to| to.lid != from.lid) || from.qpn != Qpn::GSI {
            &mut self.counters.wrong_source
        } else if packet.mad().method != answering(flight.request.method) {
            &mut self.counters.wrong_method
        } else if packet.mad().attribute_id != flight.request.attribute.0 {
            &mut self.counters.wrong_attribute
        } else {
            return true;
        };
        *counter += 1;
        false
    }

    fn take(&mut self, now: Duration, id: QueryId, packet: &SaPacket<'_>) {
        match packet.status().decode() {
            SaStatus::Ok => {}
            SaStatus::Busy => {
                self.counters.busy += 1;
                self.abandon_transfer(id, portolan_wire::mad::RmppStatus::UNSPECIFIED);
                self.pause(now, id, Problem::Busy);
                return;
            }
            _ => {
                self.end(now, id, Err(Failure::Status(packet.status())));
                return;
            }
        }
        let rmpp = &packet.sa().rmpp;
        match packet.mad().method {
            Method::GET_TABLE_RESP if rmpp.flags.contains(RmppFlags::ACTIVE) => {
                self.take_segment(now, id, packet);
            }
            Method::GET_TABLE_RESP => {
                let what = "a table without an end";
                self.end(now, id, Err(Failure::Malformed(what)));
            }
            _ => self.end(now, id, Ok(Answer::Record(Box::new(*packet.data())))),
        }
    }
}
