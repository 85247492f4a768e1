//! Reassembles the segments of one table (IBTA 13.6.6, the receiver).

use std::collections::BTreeMap;

use portolan_wire::mad::{RmppFlags, RmppHeader, RmppStatus};
use portolan_wire::sa::{SA_DATA_LEN, SaHeader};

use super::failure::Failure;

/// Payload length of a full segment in bytes, counted after the RMPP header.
const SEGMENT_PAYLOAD: u32 = (SaHeader::IN_PAYLOAD_LEN + SA_DATA_LEN) as u32;
/// Payload length of an empty segment: the header of the class.
const SEGMENT_PAYLOAD_MIN: u32 = SaHeader::IN_PAYLOAD_LEN as u32;

/// An incomplete table.
#[derive(Debug)]
pub(super) struct Reassembly {
    /// Data of the segments received without a gap, from the first.
    data: Vec<u8>,
    /// Number of the first missing segment.
    next: u32,
    /// Segments after the gap, within a window.
    ahead: BTreeMap<u32, Box<[u8; SA_DATA_LEN]>>,
    window: u32,
    /// The last segment that the sender may send.
    window_last: u32,
    segments_max: u32,
    /// Number and payload length of the last segment.
    last: Option<(u32, u32)>,
    /// Total payload length that the first segment announces, in bytes; zero if it announces none.
    announced: u32,
    /// Distance from one record to the next, in units of eight bytes.
    attribute_offset: Option<u16>,
    /// Number of stalls: periods without a new segment.
    pub(super) stalls: u32,
}

/// The result of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A new segment that needs no reaction.
    New,
    /// A duplicate: the sender has not received the last acknowledgement.
    Repeated,
    /// A segment beyond the window.
    Beyond,
    /// The window is used up: acknowledge it and open the next.
    Acknowledge,
    /// The table is complete.
    Whole,
    /// The table is invalid: the status is for the sender, the failure for the caller.
    Broken(RmppStatus, Failure),
    /// The table exceeds its limit.
    TooLong,
}

impl Reassembly {
    pub(super) fn new(window: u32, segments_max: u32) -> Self {
        Self {
            data: Vec::new(),
            next: 1,
            ahead: BTreeMap::new(),
            window: window.max(1),
            // The sender may send one segment before the first acknowledgement (IBTA 13.6.6.1).
            window_last: 1,
            segments_max,
            last: None,
            announced: 0,
            attribute_offset: None,
            stalls: 0,
        }
    }

    /// Number of the last segment received without a gap.
    pub(super) fn contiguous(&self) -> u32 {
        self.next - 1
    }

    /// The last segment that the sender may send.
    pub(super) fn window_last(&self) -> u32 {
        self.window_last.max(self.contiguous())
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.data.len() + self.ahead.len() * SA_DATA_LEN
    }

    pub(super) fn segment(
        &mut self,
        rmpp: &RmppHeader,
        attribute_offset: u16,
        data: &[u8; SA_DATA_LEN],
    ) -> Step {
        let number = rmpp.data1;
        if number == 0 || rmpp.flags.contains(RmppFlags::FIRST) != (number == 1) {
            return Step::Broken(
                RmppStatus::INCONSISTENT_FIRST_AND_SEGMENT_NUMBER,
                Failure::Malformed("a table whose first segment is not number 1"),
            );
        }
        if number > self.segments_max {
            return Step::TooLong;
        }
        if number < self.next || self.ahead.contains_key(&number) {
            return Step::Repeated;
        }
        if number > self.contiguous().saturating_add(self.window) {
            return Step::Beyond;
        }
        if let Some(broken) = self.note_ends(rmpp) {
            return broken;
        }
        if *self.attribute_offset.get_or_insert(attribute_offset) != attribute_offset {
            return inconsistent("a table whose record size changes");
        }
        self.ahead.insert(number, Box::new(*data));
        self.close_gap();
        self.progress()
    }

    /// Checks what the first and the last segment declare about the whole.
    fn note_ends(&mut self, rmpp: &RmppHeader) -> Option<Step> {
        let (number, payload) = (rmpp.data1, rmpp.data2);
        if rmpp.flags.contains(RmppFlags::LAST) {
            if !(SEGMENT_PAYLOAD_MIN..=SEGMENT_PAYLOAD).contains(&payload) && number != 1 {
                return Some(inconsistent("a last segment of an impossible length"));
            }
            let highest = self.ahead.last_key_value().map_or(0, |(number, _)| *number);
            if self.last.is_some() || highest > number {
                return Some(inconsistent("a table with segments behind its last"));
            }
            self.last = Some((number, payload));
        } else if self.last.is_some_and(|(last, _)| number >= last) {
            return Some(inconsistent("a table with segments behind its last"));
        }
        if number == 1 {
            self.announced = payload;
            if self.announced.div_ceil(SEGMENT_PAYLOAD) > self.segments_max {
                return Some(Step::TooLong);
            }
        }
        None
    }

    fn close_gap(&mut self) {
        while let Some(segment) = self.ahead.remove(&self.next) {
            self.data.extend_from_slice(segment.as_slice());
            self.next += 1;
        }
    }

    fn progress(&mut self) -> Step {
        self.stalls = 0;
        let Some((last, payload)) = self.last.filter(|(last, _)| *last < self.next) else {
            if self.contiguous() < self.window_last {
                return Step::New;
            }
            self.window_last = self.contiguous().saturating_add(self.window);
            return Step::Acknowledge;
        };
        if !(SEGMENT_PAYLOAD_MIN..=SEGMENT_PAYLOAD).contains(&payload) {
            return Step::Broken(
                RmppStatus::INCONSISTENT_LAST_AND_PAYLOAD_LENGTH,
                Failure::Truncated {
                    expected: "as many bytes as the only segment announces",
                    found: SA_DATA_LEN as u64,
                },
            );
        }
        let total = (u64::from(last) - 1) * u64::from(SEGMENT_PAYLOAD) + u64::from(payload);
        if self.announced != 0 && u64::from(self.announced) != total {
            return Step::Broken(
                RmppStatus::INCONSISTENT_LAST_AND_PAYLOAD_LENGTH,
                Failure::Truncated {
                    expected: "as many bytes as the first segment announces",
                    found: total,
                },
            );
        }
        let missing = (SEGMENT_PAYLOAD - payload) as usize;
        self.data.truncate(self.data.len().saturating_sub(missing));
        Step::Whole
    }

    /// The table's bytes, and the distance from one record to the next in bytes.
    ///
    /// # Errors
    /// [`Failure::Truncated`] if the bytes do not hold a whole number of records;
    /// [`Failure::Malformed`] if the distance is shorter than a record.
    pub(super) fn into_records(self, record_len: usize) -> Result<(Vec<u8>, usize), Failure> {
        let stride = usize::from(self.attribute_offset.unwrap_or(0)) * 8;
        if self.data.is_empty() {
            return Ok((self.data, stride));
        }
        if stride < record_len {
            return Err(Failure::Malformed("records shorter than the standard's"));
        }
        let rest = self.data.len() % stride;
        // The last record may lack its padding.
        if rest != 0 && rest < record_len {
            return Err(Failure::Truncated {
                expected: "a whole number of records",
                found: self.data.len() as u64,
            });
        }
        Ok((self.data, stride))
    }
}

fn inconsistent(what: &'static str) -> Step {
    Step::Broken(
        RmppStatus::INCONSISTENT_LAST_AND_PAYLOAD_LENGTH,
        Failure::Malformed(what),
    )
}
