//! An administrator that answers from a table, in multi-packet transfers like Linux's senders.

use std::collections::BTreeMap;
use std::time::Duration;

use portolan_sa::transport::Mad;
use portolan_wire::mad::{MadHeaderRepr, Method, RmppFlags, RmppHeader, RmppStatus, RmppType};
use portolan_wire::sa::{SA_DATA_LEN, SaHeader, SaPacket};

const ACK_TIMEOUT: Duration = Duration::from_millis(200);
const RETRIES_MAX: u32 = 7;
const SEGMENT_PAYLOAD: usize = SaHeader::IN_PAYLOAD_LEN + SA_DATA_LEN;

/// Answers each Get with the request's own data, and each GetTable with `table`.
pub(crate) struct Administrator {
    table: Vec<u8>,
    attribute_offset: u16,
    senders: BTreeMap<u64, Sender>,
    pub(crate) questions: usize,
    /// Number of first requests to answer with busy.
    pub(crate) busy: usize,
}

/// A table in transfer.
struct Sender {
    request: MadHeaderRepr,
    segments: u32,
    acknowledged: u32,
    window_last: u32,
    next: u32,
    retries: u32,
    timeout_at: Option<Duration>,
}

impl Administrator {
    pub(crate) fn new(table: Vec<u8>, stride: usize) -> Self {
        Self {
            table,
            attribute_offset: (stride / 8) as u16,
            senders: BTreeMap::new(),
            questions: 0,
            busy: 0,
        }
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.senders.values().filter_map(|s| s.timeout_at).min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Duration) -> Vec<Mad> {
        let mut out = Vec::new();
        let due = |sender: &Sender| sender.timeout_at.is_some_and(|at| at <= now);
        let tids: Vec<u64> = self
            .senders
            .iter()
            .filter(|(_, s)| due(s))
            .map(|(t, _)| *t)
            .collect();
        for tid in tids {
            let sender = self.senders.get_mut(&tid).expect("listed");
            sender.retries += 1;
            if sender.retries > RETRIES_MAX {
                let sender = self.senders.remove(&tid).expect("listed");
                out.push(abort(&sender.request, RmppStatus::TOO_MANY_RETRIES));
                continue;
            }
            sender.next = sender.acknowledged + 1;
            self.send(now, tid, &mut out);
        }
        out
    }

    pub(crate) fn handle(&mut self, now: Duration, mad: &Mad) -> Vec<Mad> {
        let packet = SaPacket::new_checked(mad).expect("engines send what they should");
        let header = *packet.mad();
        let rmpp = packet.sa().rmpp;
        let mut out = Vec::new();
        if rmpp.flags.contains(RmppFlags::ACTIVE) {
            self.acknowledged(now, header.tid, &rmpp, &mut out);
            return out;
        }
        self.questions += 1;
        if self.busy > 0 {
            self.busy -= 1;
            out.push(answer(&header, 1, packet.data()));
        } else if header.method != Method::GET_TABLE {
            out.push(answer(&header, 0, packet.data()));
        } else if !self.senders.contains_key(&header.tid) {
            let sender = Sender {
                request: header,
                segments: self.table.len().div_ceil(SA_DATA_LEN).max(1) as u32,
                acknowledged: 0,
                window_last: 1,
                next: 1,
                retries: 0,
                timeout_at: None,
            };
            self.senders.insert(header.tid, sender);
            self.send(now, header.tid, &mut out);
        }
        out
    }

    fn acknowledged(&mut self, now: Duration, tid: u64, rmpp: &RmppHeader, out: &mut Vec<Mad>) {
        let Some(sender) = self.senders.get_mut(&tid) else {
            return;
        };
        if rmpp.rmpp_type != RmppType::ACK {
            self.senders.remove(&tid);
            return;
        }
        let (segment, window_last) = (rmpp.data1, rmpp.data2);
        assert!(
            window_last >= segment,
            "a window that ends before its start"
        );
        if segment > sender.segments || window_last < sender.window_last {
            return;
        }
        if segment > sender.acknowledged {
            sender.acknowledged = segment;
            sender.retries = 0;
        }
        sender.window_last = window_last;
        if sender.acknowledged == sender.segments {
            self.senders.remove(&tid);
            return;
        }
        self.send(now, tid, out);
    }

    fn send(&mut self, now: Duration, tid: u64, out: &mut Vec<Mad>) {
        let Some(sender) = self.senders.get_mut(&tid) else {
            return;
        };
        while sender.next <= sender.segments.min(sender.window_last) {
            let number = sender.next;
            out.push(segment(
                &sender.request,
                &self.table,
                self.attribute_offset,
                number,
            ));
            sender.next += 1;
        }
        sender.timeout_at = Some(now + ACK_TIMEOUT);
    }
}

/// A single-packet answer.
pub(crate) fn answer(request: &MadHeaderRepr, status: u16, data: &[u8]) -> Mad {
    let header = response(request, status);
    SaPacket::emit(&header, &plain(), data).expect("fits")
}

pub(crate) fn response(request: &MadHeaderRepr, status: u16) -> MadHeaderRepr {
    // The answer to Set is GetResp (IBTA 13.4.5); the others set the response bit.
    let method = match request.method {
        Method::SET => Method::GET_RESP,
        Method(other) => Method(other | 0x80),
    };
    MadHeaderRepr {
        method,
        status,
        ..*request
    }
}

pub(crate) fn plain() -> SaHeader {
    SaHeader {
        rmpp: RmppHeader::INACTIVE,
        sm_key: 0,
        attribute_offset: 0,
        component_mask: 0,
    }
}

/// One well-formed segment of a table.
pub(crate) fn segment(
    request: &MadHeaderRepr,
    table: &[u8],
    attribute_offset: u16,
    number: u32,
) -> Mad {
    let segments = table.len().div_ceil(SA_DATA_LEN).max(1) as u32;
    let from = (number as usize - 1) * SA_DATA_LEN;
    let data = &table[from..table.len().min(from + SA_DATA_LEN)];
    let mut flags = RmppFlags::ACTIVE;
    flags.set(RmppFlags::FIRST, number == 1);
    flags.set(RmppFlags::LAST, number == segments);
    let payload = if number == 1 {
        table.len() + segments as usize * SaHeader::IN_PAYLOAD_LEN
    } else if number == segments {
        data.len() + SaHeader::IN_PAYLOAD_LEN
    } else {
        SEGMENT_PAYLOAD
    };
    let sa = SaHeader {
        rmpp: RmppHeader {
            version: RmppHeader::VERSION,
            rmpp_type: RmppType::DATA,
            response_time: RmppHeader::NO_RESPONSE_TIME,
            flags,
            status: RmppStatus::NORMAL,
            data1: number,
            data2: payload as u32,
        },
        attribute_offset,
        ..plain()
    };
    SaPacket::emit(&response(request, 0), &sa, data).expect("fits")
}

pub(crate) fn abort(request: &MadHeaderRepr, status: RmppStatus) -> Mad {
    let sa = SaHeader {
        rmpp: RmppHeader {
            version: RmppHeader::VERSION,
            rmpp_type: RmppType::ABORT,
            response_time: RmppHeader::NO_RESPONSE_TIME,
            flags: RmppFlags::ACTIVE,
            status,
            data1: 0,
            data2: 0,
        },
        ..plain()
    };
    SaPacket::emit(&response(request, 0), &sa, &[]).expect("fits")
}
