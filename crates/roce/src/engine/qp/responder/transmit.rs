//! Building the next response packet.

use alloc::vec::Vec;

use portolan_provider::verbs::{Access, RefusedMemory};
use portolan_wire::Psn;
use portolan_wire::bth::Opcode;
use portolan_wire::eth::{AethRepr, AtomicAckEthRepr, CREDITS_UNLIMITED, NakCode, Syndrome};
use portolan_wire::rocev2::Headers;

use super::replies::{Acknowledge, AtomicReply, ReadReply, Reply};
use super::{Fault, Refused, Responder};
use crate::engine::qp::context::{Context, fits};
use crate::engine::qp::outbox::Outbox;
use crate::engine::{CompactAtomicAck, Segment};

impl Responder {
    /// Whether read data are next to be sent; acknowledgements do not count.
    pub(in crate::engine::qp) fn is_streaming(&self) -> bool {
        matches!(self.replies.front(), Some(Reply::Read(_)))
    }

    /// Whether no response is pending, except possibly an acknowledgement.
    #[inline]
    pub(in crate::engine::qp) fn only_acknowledges(&self) -> bool {
        self.replies.data() == 0
    }

    /// Whether no response is pending, except possibly a positive acknowledgement.
    #[inline]
    pub(in crate::engine::qp) fn has_only_acknowledgement(&self) -> bool {
        let lone = self.replies.lone();
        lone.is_ok_and(|lone| lone.is_none_or(|acknowledge| acknowledge.is_positive()))
    }

    /// Whether no response is pending.
    #[inline]
    pub(in crate::engine::qp) fn has_answered_all(&self) -> bool {
        self.replies.is_empty()
    }

    /// Removes and returns the pending acknowledgement, if it is positive and the only pending response.
    #[inline(always)]
    pub(in crate::engine::qp) fn lone_acknowledgement(&mut self) -> Option<(Psn, AethRepr)> {
        let acknowledge = self.replies.lone().ok()??;
        if !acknowledge.is_positive() {
            return None;
        }
        self.progress_unreported = false;
        self.replies.pop_lone();
        Some((acknowledge.psn, aeth_of(&acknowledge)))
    }

    /// Removes and returns the answer to an atomic, if it is the next response.
    pub(in crate::engine::qp) fn next_atomic_ack(&mut self) -> Option<(CompactAtomicAck, u64)> {
        let Some(Reply::Atomic(AtomicReply {
            psn, original, msn, ..
        })) = self.replies.front()
        else {
            return None;
        };
        self.replies.pop_front();
        Some((CompactAtomicAck { psn, msn }, original))
    }

    /// The next response packet that the budget permits. Stores the segments of its payload in `segments`.
    pub(in crate::engine::qp) fn transmit(
        &mut self,
        cx: &Context<'_>,
        budget_bytes: usize,
        segments: &mut Vec<Segment>,
        out: &mut Outbox,
    ) -> Result<Option<Headers>, Refused> {
        segments.clear();
        match self.replies.front() {
            None => Ok(None),
            Some(Reply::Acknowledge(acknowledge)) => {
                let progress = self.progress_before(&acknowledge);
                let headers = acknowledge_headers(cx, progress.as_ref().unwrap_or(&acknowledge));
                if !fits(&headers, 0, budget_bytes) {
                    return Ok(None);
                }
                self.progress_unreported = false;
                if progress.is_none() {
                    self.replies.pop_front();
                }
                Ok(Some(headers))
            }
            Some(Reply::Atomic(atomic)) => {
                let headers = atomic_headers(cx, &atomic);
                if !fits(&headers, 0, budget_bytes) {
                    return Ok(None);
                }
                self.replies.pop_front();
                Ok(Some(headers))
            }
            Some(Reply::Read(read)) => self.transmit_read(cx, &read, budget_bytes, segments, out),
        }
    }

    /// An acknowledgement to send before a NAK for a gap. The NAK implies it, but Linux's rdma_rxe starts no second
    /// retransmission until it receives a plain acknowledgement. For a long message with several losses it would wait
    /// for its timer each time.
    fn progress_before(&self, acknowledge: &Acknowledge) -> Option<Acknowledge> {
        let is_gap = acknowledge.syndrome == Syndrome::Nak(NakCode::PsnSequenceError);
        (is_gap && self.progress_unreported).then(|| Acknowledge {
            psn: acknowledge.psn.sub(1),
            syndrome: Syndrome::Ack {
                credits: CREDITS_UNLIMITED,
            },
            msn: acknowledge.msn,
        })
    }

    fn transmit_read(
        &mut self,
        cx: &Context<'_>,
        read: &ReadReply,
        budget_bytes: usize,
        segments: &mut Vec<Segment>,
        out: &mut Outbox,
    ) -> Result<Option<Headers>, Refused> {
        let len = read.remaining.min(cx.mtu());
        let is_last = len == read.remaining;
        let headers = read_headers(cx, read, len, is_last);
        if !fits(&headers, len, budget_bytes) {
            return Ok(None);
        }
        if len > 0 {
            let access = Access::REMOTE_READ;
            let place = cx
                .memory
                .check_remote(read.pd, cx.qpn, read.rkey, read.va, len, access);
            let Ok(addr) = place else {
                // The region was removed after the request was accepted.
                let memory = RefusedMemory {
                    addr: read.va,
                    length: len,
                    rkey: read.rkey,
                };
                let psn = read.psn;
                self.replies.clear();
                return Err(self.refuse(cx, psn, Fault::ACCESS, Some(memory), out));
            };
            segments.push(Segment { addr, len });
        }
        if is_last {
            self.replies.pop_front();
        } else {
            self.replies.advance_read(len);
        }
        Ok(Some(headers))
    }
}

fn acknowledge_headers(cx: &Context<'_>, acknowledge: &Acknowledge) -> Headers {
    let mut headers = cx.headers(Opcode::RcAck, acknowledge.psn, 0);
    headers.aeth = Some(aeth_of(acknowledge));
    headers
}

fn aeth_of(acknowledge: &Acknowledge) -> AethRepr {
    AethRepr {
        syndrome: acknowledge.syndrome,
        msn: acknowledge.msn,
    }
}

fn atomic_headers(cx: &Context<'_>, atomic: &AtomicReply) -> Headers {
    let mut headers = cx.headers(Opcode::RcAtomicAck, atomic.psn, 0);
    headers.aeth = Some(AethRepr {
        syndrome: Syndrome::Ack {
            credits: CREDITS_UNLIMITED,
        },
        msn: atomic.msn,
    });
    headers.atomic_ack_eth = Some(AtomicAckEthRepr {
        original: atomic.original,
    });
    headers
}

fn read_headers(cx: &Context<'_>, read: &ReadReply, len: u32, is_last: bool) -> Headers {
    let opcode = match (read.is_first, is_last) {
        (true, true) => Opcode::RcReadResponseOnly,
        (true, false) => Opcode::RcReadResponseFirst,
        (false, false) => Opcode::RcReadResponseMiddle,
        (false, true) => Opcode::RcReadResponseLast,
    };
    let mut headers = cx.headers(opcode, read.psn, len);
    if opcode.has_aeth() {
        headers.aeth = Some(AethRepr {
            syndrome: Syndrome::Ack {
                credits: CREDITS_UNLIMITED,
            },
            msn: read.msn,
        });
    }
    headers
}
