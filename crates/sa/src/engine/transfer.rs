//! The transfer of a table: acknowledgements, stops, aborts, and replies to senders that repeat
//! segments of a finished transfer.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use portolan_wire::mad::{
    MAD_LEN, MadHeaderRepr, Method, MgmtClass, RmppFlags, RmppHeader, RmppStatus, RmppType,
};
use portolan_wire::sa::{AttributeId, SaHeader, SaPacket};

use super::failure::{Failure, Problem};
use super::flight::FlightState;
use super::reassembly::{Reassembly, Step};
use super::{Answer, Engine, QueryId, Transmit};
use crate::transport::MadAddress;

/// Maximum number of finished transfers to remember.
const FINISHED_MAX: usize = 512;
/// How long to remember them; longer than administrators repeat a segment.
const FINISHED_FOR: Duration = Duration::from_secs(20);

/// Completed transfers. Their sender repeats the last segments until it receives the last
/// acknowledgement.
#[derive(Debug, Default)]
pub(super) struct Finished {
    by_tid: BTreeMap<u32, Whole>,
    oldest_first: VecDeque<(Duration, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Whole {
    from: MadAddress,
    attribute: AttributeId,
    segments: u32,
}

impl Finished {
    pub(super) fn has(&self, tid: u32) -> bool {
        self.by_tid.contains_key(&tid)
    }

    fn remember(&mut self, now: Duration, tid: u32, whole: Whole) {
        while let Some(&(since, oldest)) = self.oldest_first.front() {
            if self.oldest_first.len() < FINISHED_MAX && now < since + FINISHED_FOR {
                break;
            }
            self.oldest_first.pop_front();
            self.by_tid.remove(&oldest);
        }
        self.by_tid.insert(tid, whole);
        self.oldest_first.push_back((now, tid));
    }
}

impl Engine {
    /// Handles an RMPP packet of a requested table.
    pub(super) fn take_segment(&mut self, now: Duration, id: QueryId, packet: &SaPacket<'_>) {
        let rmpp = &packet.sa().rmpp;
        if rmpp.version != RmppHeader::VERSION {
            let what = "another version of the multi-packet protocol";
            self.break_off(now, id, RmppStatus::UNSUPPORTED_VERSION, what);
            return;
        }
        match rmpp.rmpp_type {
            RmppType::DATA => self.take_data(now, id, packet),
            RmppType::STOP | RmppType::ABORT => self.transfer_aborted(now, id, rmpp.status),
            // An ACK is unexpected: nothing sent here requires one.
            RmppType::ACK => self.counters.wrong_method += 1,
            _ => {
                let what = "a packet of unknown type within a table";
                self.break_off(now, id, RmppStatus::BAD_TYPE, what);
            }
        }
    }

    fn take_data(&mut self, now: Duration, id: QueryId, packet: &SaPacket<'_>) {
        let (window, segments_max) = (self.config.window, self.config.segments_max());
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        if !matches!(flight.state, FlightState::Segments(_)) {
            let new = Reassembly::new(window, segments_max);
            flight.state = FlightState::Segments(Box::new(new));
        }
        let FlightState::Segments(reassembly) = &mut flight.state else {
            return;
        };
        let before = reassembly.held_bytes();
        let sa = packet.sa();
        let step = reassembly.segment(&sa.rmpp, sa.attribute_offset, packet.data());
        self.reassembled_bytes = self.reassembled_bytes - before + reassembly.held_bytes();
        if self.reassembled_bytes > self.config.reassembly_bytes_max {
            self.stop(id);
            let failure = Failure::LimitReached {
                what: "bytes of all incomplete tables",
                limit: self.config.reassembly_bytes_max as u64,
            };
            self.end(now, id, Err(failure));
            return;
        }
        let stall = Some(now + self.config.stall);
        match step {
            Step::New => self.wake_at(id, stall),
            Step::Acknowledge => {
                self.acknowledge(id);
                self.wake_at(id, stall);
            }
            Step::Repeated => {
                self.counters.repeated_segments += 1;
                self.acknowledge(id);
                self.wake_if_idle(id, stall);
            }
            Step::Beyond => {
                self.counters.segments_beyond_window += 1;
                self.wake_if_idle(id, stall);
            }
            Step::Whole => self.transfer_whole(now, id),
            Step::TooLong => {
                self.stop(id);
                let failure = Failure::LimitReached {
                    what: "bytes of a table",
                    limit: self.config.table_bytes_max as u64,
                };
                self.end(now, id, Err(failure));
            }
            Step::Broken(status, failure) => {
                self.say(id, RmppType::ABORT, status, 0, 0);
                self.end(now, id, Err(failure));
            }
        }
    }

    /// Sets the stall timer while no segment is stored. A segment without progress must not
    /// postpone the timer.
    fn wake_if_idle(&mut self, id: QueryId, stall: Option<Duration>) {
        let fresh = self.flights.get(&id).is_some_and(
            |flight| matches!(&flight.state, FlightState::Segments(r) if r.held_bytes() == 0),
        );
        if fresh {
            self.wake_at(id, stall);
        }
    }

    fn transfer_whole(&mut self, now: Duration, id: QueryId) {
        self.acknowledge(id);
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        let FlightState::Segments(reassembly) =
            std::mem::replace(&mut flight.state, FlightState::Turn)
        else {
            return;
        };
        self.reassembled_bytes -= reassembly.held_bytes();
        if let (Some(tid), Some(from)) = (flight.tid, flight.to) {
            let whole = Whole {
                from,
                attribute: flight.request.attribute,
                segments: reassembly.contiguous(),
            };
            self.finished.remember(now, tid, whole);
        }
        let record_len = flight.request.record_len;
        let records = reassembly.into_records(record_len);
        let answer = records.map(|(data, stride)| Answer::Table { data, stride });
        self.end(now, id, answer);
    }

    /// Handles a stall: no new segment arrived in time.
    pub(super) fn transfer_stalled(&mut self, now: Duration, id: QueryId) {
        let (stall, stalls_max) = (self.config.stall, self.config.stalls_max);
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        let FlightState::Segments(reassembly) = &mut flight.state else {
            return;
        };
        reassembly.stalls += 1;
        let segments = reassembly.contiguous();
        if reassembly.stalls > stalls_max {
            self.counters.restarted_tables += 1;
            self.restart(now, id, Some(Problem::Stalled { segments }));
            return;
        }
        if segments > 0 {
            self.acknowledge(id);
        }
        self.wake_at(id, Some(now + stall));
    }

    /// Handles the administrator's abort of a transfer.
    fn transfer_aborted(&mut self, now: Duration, id: QueryId, status: RmppStatus) {
        let may_pass = matches!(
            status,
            RmppStatus::RESOURCES_EXHAUSTED
                | RmppStatus::TOTAL_TIME_TOO_LONG
                | RmppStatus::TOO_MANY_RETRIES
        );
        if !may_pass {
            self.end(now, id, Err(Failure::Aborted(status)));
            return;
        }
        self.counters.restarted_tables += 1;
        let tid = self.draw_tid();
        if let Some(flight) = self.flights.get_mut(&id) {
            self.reassembled_bytes -= flight.reassembled_bytes();
            if let Some(old) = flight.tid.replace(tid) {
                self.by_tid.remove(&old);
            }
            self.by_tid.insert(tid, id);
        }
        self.pause(now, id, Problem::Aborted(status));
    }

    fn break_off(&mut self, now: Duration, id: QueryId, status: RmppStatus, what: &'static str) {
        self.say(id, RmppType::ABORT, status, 0, 0);
        self.end(now, id, Err(Failure::Malformed(what)));
    }

    /// Stops the transfer of a table that is not wanted, if segments of it arrived.
    pub(super) fn abandon_transfer(&mut self, id: QueryId, status: RmppStatus) {
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        if !matches!(flight.state, FlightState::Segments(_)) {
            return;
        }
        self.reassembled_bytes -= flight.reassembled_bytes();
        flight.state = FlightState::Pause;
        self.say(id, RmppType::ABORT, status, 0, 0);
    }

    fn stop(&mut self, id: QueryId) {
        self.say(id, RmppType::STOP, RmppStatus::RESOURCES_EXHAUSTED, 0, 0);
    }

    fn acknowledge(&mut self, id: QueryId) {
        let Some(FlightState::Segments(reassembly)) =
            self.flights.get(&id).map(|flight| &flight.state)
        else {
            return;
        };
        let (segment, window_last) = (reassembly.contiguous(), reassembly.window_last());
        self.say(id, RmppType::ACK, RmppStatus::NORMAL, segment, window_last);
    }

    fn say(
        &mut self,
        id: QueryId,
        rmpp_type: RmppType,
        status: RmppStatus,
        data1: u32,
        data2: u32,
    ) {
        let Some(flight) = self.flights.get(&id) else {
            return;
        };
        if let (Some(to), Some(tid)) = (flight.to, flight.tid) {
            let attribute = flight.request.attribute;
            let rmpp = header(rmpp_type, status, data1, data2);
            self.transmits.push_back(packet(to, tid, attribute, rmpp));
        }
    }

    /// Handles a datagram whose transaction is not in progress. The sender of a completed table
    /// gets its last acknowledgement again.
    pub(super) fn handle_stray(
        &mut self,
        _now: Duration,
        from: &MadAddress,
        tid: u32,
        stray: &SaPacket<'_>,
    ) {
        let rmpp = &stray.sa().rmpp;
        let whole = self.finished.by_tid.get(&tid).filter(|whole| {
            whole.from.lid == from.lid
                && whole.from.qpn == from.qpn
                && whole.attribute.0 == stray.mad().attribute_id
                && stray.mad().method == Method::GET_TABLE_RESP
                && rmpp.flags.contains(RmppFlags::ACTIVE)
                && rmpp.rmpp_type == RmppType::DATA
        });
        let Some(whole) = whole else {
            self.counters.unknown_transaction += 1;
            return;
        };
        self.counters.repeated_segments += 1;
        let (to, attribute, segments) = (whole.from, whole.attribute, whole.segments);
        let rmpp = header(RmppType::ACK, RmppStatus::NORMAL, segments, segments);
        self.transmits.push_back(packet(to, tid, attribute, rmpp));
    }
}

fn header(rmpp_type: RmppType, status: RmppStatus, data1: u32, data2: u32) -> RmppHeader {
    RmppHeader {
        version: RmppHeader::VERSION,
        rmpp_type,
        response_time: RmppHeader::NO_RESPONSE_TIME,
        flags: RmppFlags::ACTIVE,
        status,
        data1,
        data2,
    }
}

/// A packet of a table's receiver. It has the method of the query, as in Linux's receivers.
fn packet(to: MadAddress, tid: u32, attribute: AttributeId, rmpp: RmppHeader) -> Transmit {
    let mad = MadHeaderRepr {
        base_version: 0,
        mgmt_class: MgmtClass::SUBN_ADM,
        class_version: 0,
        method: Method::GET_TABLE,
        status: 0,
        class_specific: 0,
        tid: tid.into(),
        attribute_id: attribute.0,
        attribute_modifier: 0,
    };
    let sa = SaHeader {
        rmpp,
        sm_key: 0,
        attribute_offset: 0,
        component_mask: 0,
    };
    Transmit {
        to,
        // Emitting cannot fail: no value is wider than its field.
        mad: Box::new(SaPacket::emit(&mad, &sa, &[]).unwrap_or([0; MAD_LEN])),
        answer_within: Duration::ZERO,
    }
}
