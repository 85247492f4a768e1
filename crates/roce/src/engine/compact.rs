//! A short form of the most common packets between processes that share memory: a whole send, a write with immediate
//! data, an atomic, and a positive acknowledgement. One record may contain a request and an acknowledgement.
//!
//! A record means exactly the packets that it stands for, and uses the same PSNs. So a receiver may take it directly
//! ([`QueuePair::take_send`](super::QueuePair::take_send)) or handle [those packets](Compact::send_headers), and both
//! forms may alternate. A record from another process is checked like a packet.
//!
//! A write has no bytes in the record: the writer has copied them to the receiver's memory before, or there are none. So
//! the receiver never needs packets for it ([`QueuePair::take_write`](super::QueuePair::take_write)).
//!
//! The operands of an atomic and the value in the answer to one follow the record as its payload, in the form that they
//! have in packets: few records need room for them.

use portolan_wire::bth::{BthRepr, Opcode};
use portolan_wire::eth::{
    AethRepr, AtomicAckEthRepr, AtomicEthRepr, CREDITS_UNLIMITED, ImmDtRepr, Syndrome,
};
use portolan_wire::rocev2::{Headers, pad_len};
use portolan_wire::{PKey, Psn, Qpn};

/// A send of one packet, a write or an atomic, or an acknowledgement, or both; or the answer to an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compact {
    /// The queue pair that it is for.
    pub dest_qp: Qpn,
    /// What the host adds to recognize the connection.
    pub tag: u32,
    /// The UDP source port of the packets.
    pub source_port: u16,
    /// The send.
    pub send: Option<CompactSend>,
    /// The write. A record has at most one request.
    pub write: Option<CompactWrite>,
    /// The atomic.
    pub atomic: Option<CompactAtomic>,
    /// The answer to an atomic. Such a record has nothing else.
    pub atomic_ack: Option<CompactAtomicAck>,
    /// The acknowledgement, which takes effect before the request.
    pub acknowledgement: Option<CompactAck>,
}

/// A send of one packet, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactSend {
    /// Its PSN.
    pub psn: Psn,
    /// Immediate data, in the byte order of the wire.
    pub immediate: Option<[u8; 4]>,
    /// Whether the receiver gets a solicited event.
    pub solicited: bool,
    /// Whether it requests an acknowledgement.
    pub ack_request: bool,
    /// Bytes, at most [`Compact::PAYLOAD_MAX`].
    pub len: u32,
}

/// A write with immediate data, whose bytes are in the receiver's memory already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactWrite {
    /// PSN of its first packet. It uses as many as its packets would.
    pub psn: Psn,
    /// Immediate data, in the byte order of the wire.
    pub immediate: [u8; 4],
    /// Whether the receiver gets a solicited event.
    pub solicited: bool,
    /// Whether it requests an acknowledgement at once. Otherwise the receiver may wait for a request of its own to send
    /// it with.
    pub ack_request: bool,
    /// Bytes, at most [`Compact::WRITE_MAX`].
    pub len: u32,
}

/// An atomic, without its operands ([`AtomicEthRepr`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactAtomic {
    /// Its PSN.
    pub psn: Psn,
    /// Whether it compares and swaps. Otherwise it fetches and adds.
    pub compares: bool,
}

impl CompactAtomic {
    /// The opcode of its packet.
    pub fn opcode(&self) -> Opcode {
        match self.compares {
            true => Opcode::RcCompareSwap,
            false => Opcode::RcFetchAdd,
        }
    }
}

/// The answer to an atomic, which acknowledges it, without the value ([`AtomicAckEthRepr`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactAtomicAck {
    /// PSN of the atomic.
    pub psn: Psn,
    /// Number of completed messages, 24 bits.
    pub msn: u32,
}

/// A positive acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactAck {
    /// PSN of the last request that it covers.
    pub psn: Psn,
    /// Number of completed messages, 24 bits.
    pub msn: u32,
}

/// Bits of the high byte of the second word.
pub(super) const SEND: u32 = 1 << 24;
pub(super) const IMMEDIATE: u32 = 1 << 25;
pub(super) const SOLICITED: u32 = 1 << 26;
pub(super) const ACK_REQUEST: u32 = 1 << 27;
pub(super) const ACKNOWLEDGEMENT: u32 = 1 << 28;
pub(super) const WRITE: u32 = 1 << 29;
pub(super) const ATOMIC: u32 = 1 << 30;
pub(super) const ATOMIC_ACK: u32 = 1 << 31;
/// PSNs, queue pair numbers and message numbers.
pub(super) const LOW: u32 = 0x00FF_FFFF;

impl Compact {
    /// Words of the form in memory.
    pub const WORDS: usize = 8;
    /// Maximum length of a send: the largest path MTU.
    pub const PAYLOAD_MAX: u32 = 4096;
    /// Maximum length of a write: that of a message.
    pub const WRITE_MAX: u32 = 1 << 31;
    /// Length of an atomic's operands.
    pub const OPERANDS_LEN: u32 = AtomicEthRepr::LEN as u32;
    /// Length of the value in the answer to an atomic.
    pub const VALUE_LEN: u32 = AtomicAckEthRepr::LEN as u32;

    /// A record for a queue pair to which its parts are to be added.
    #[inline(always)]
    pub fn to(dest_qp: Qpn) -> Self {
        Self {
            dest_qp,
            tag: 0,
            source_port: 0,
            send: None,
            write: None,
            atomic: None,
            atomic_ack: None,
            acknowledgement: None,
        }
    }

    /// The form in memory, in the byte order of the host.
    #[inline(always)]
    pub fn emit(&self) -> [u32; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        words[1] = self.dest_qp.value();
        if let Some(send) = &self.send {
            words[0] = send.len;
            words[1] |= SEND;
            words[1] |= if send.solicited { SOLICITED } else { 0 };
            words[1] |= if send.ack_request { ACK_REQUEST } else { 0 };
            words[2] = send.psn.value();
            if let Some(immediate) = send.immediate {
                words[1] |= IMMEDIATE;
                words[3] = u32::from_ne_bytes(immediate);
            }
        }
        if let Some(write) = &self.write {
            words[0] = write.len;
            words[1] |= WRITE | IMMEDIATE;
            words[1] |= if write.solicited { SOLICITED } else { 0 };
            words[1] |= if write.ack_request { ACK_REQUEST } else { 0 };
            words[2] = write.psn.value();
            words[3] = u32::from_ne_bytes(write.immediate);
        }
        if let Some(atomic) = &self.atomic {
            words[0] = Self::OPERANDS_LEN;
            words[1] |= ATOMIC;
            words[2] = atomic.psn.value();
            words[3] = atomic.compares.into();
        }
        if let Some(answer) = &self.atomic_ack {
            words[0] = Self::VALUE_LEN;
            words[1] |= ATOMIC_ACK;
            words[4] = answer.psn.value();
            words[5] = answer.msn;
        }
        if let Some(acknowledgement) = &self.acknowledgement {
            words[1] |= ACKNOWLEDGEMENT;
            words[4] = acknowledgement.psn.value();
            words[5] = acknowledgement.msn;
        }
        words[6] = self.tag;
        words[7] = self.source_port.into();
        words
    }

    /// The short form of a packet, if it has one. `payload_len` is the length of its payload.
    pub fn of_packet(headers: &Headers, payload_len: usize) -> Option<Self> {
        let bth = &headers.bth;
        let mut compact = Self::to(bth.dest_qp);
        let len = u32::try_from(payload_len).ok();
        match (bth.opcode, headers.aeth) {
            (Opcode::RcSendOnly | Opcode::RcSendOnlyImm, _) => {
                compact.send = Some(CompactSend {
                    psn: bth.psn,
                    immediate: headers.immdt.map(|immdt| immdt.0),
                    solicited: bth.solicited,
                    ack_request: bth.ack_request,
                    len: len.filter(|len| *len <= Self::PAYLOAD_MAX)?,
                });
            }
            (Opcode::RcAck, Some(aeth)) if matches!(aeth.syndrome, Syndrome::Ack { .. }) => {
                compact.acknowledgement = Some(CompactAck {
                    psn: bth.psn,
                    msn: aeth.msn,
                });
            }
            (Opcode::RcCompareSwap | Opcode::RcFetchAdd, _) if payload_len == 0 => {
                compact.atomic = Some(CompactAtomic {
                    psn: bth.psn,
                    compares: bth.opcode == Opcode::RcCompareSwap,
                });
            }
            (Opcode::RcAtomicAck, Some(aeth))
                if payload_len == 0 && matches!(aeth.syndrome, Syndrome::Ack { .. }) =>
            {
                compact.atomic_ack = Some(CompactAtomicAck {
                    psn: bth.psn,
                    msn: aeth.msn,
                });
            }
            _ => return None,
        }
        Some(compact)
    }

    /// Headers of the packet that the send stands for.
    pub fn send_headers(&self) -> Option<Headers> {
        let send = self.send?;
        let opcode = match send.immediate {
            Some(_) => Opcode::RcSendOnlyImm,
            None => Opcode::RcSendOnly,
        };
        let mut bth = BthRepr::new(opcode, self.dest_qp, send.psn);
        bth.pkey = PKey::DEFAULT;
        bth.pad_count = pad_len(send.len as usize) as u8;
        bth.solicited = send.solicited;
        bth.ack_request = send.ack_request;
        Some(Headers {
            immdt: send.immediate.map(ImmDtRepr),
            ..bth.into()
        })
    }

    /// Headers of the packet that the acknowledgement stands for.
    pub fn ack_headers(&self) -> Option<Headers> {
        let CompactAck { psn, msn } = self.acknowledgement?;
        Some(self.answer_headers(Opcode::RcAck, psn, msn))
    }

    /// Headers of the packet that an atomic with these operands stands for.
    pub fn atomic_headers(&self, operands: &AtomicEthRepr) -> Option<Headers> {
        let atomic = self.atomic?;
        let mut bth = BthRepr::new(atomic.opcode(), self.dest_qp, atomic.psn);
        bth.pkey = PKey::DEFAULT;
        bth.ack_request = true;
        Some(Headers {
            atomic_eth: Some(*operands),
            ..bth.into()
        })
    }

    /// Headers of the packet that the answer to an atomic with this value stands for.
    pub fn atomic_ack_headers(&self, value: &AtomicAckEthRepr) -> Option<Headers> {
        let CompactAtomicAck { psn, msn } = self.atomic_ack?;
        Some(Headers {
            atomic_ack_eth: Some(*value),
            ..self.answer_headers(Opcode::RcAtomicAck, psn, msn)
        })
    }

    fn answer_headers(&self, opcode: Opcode, psn: Psn, msn: u32) -> Headers {
        let mut bth = BthRepr::new(opcode, self.dest_qp, psn);
        bth.pkey = PKey::DEFAULT;
        let syndrome = Syndrome::Ack {
            credits: CREDITS_UNLIMITED,
        };
        Headers {
            aeth: Some(AethRepr { syndrome, msn }),
            ..bth.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::CompactWords;
    use portolan_wire::rocev2::ICRC_LEN;
    use proptest::option::of;
    use proptest::prelude::*;

    fn compacts() -> impl Strategy<Value = Compact> {
        let psn = || (0..=LOW).prop_map(Psn::new);
        let send = (
            psn(),
            any::<Option<[u8; 4]>>(),
            any::<(bool, bool)>(),
            0..=Compact::PAYLOAD_MAX,
        )
            .prop_map(
                |(psn, immediate, (solicited, ack_request), len)| CompactSend {
                    psn,
                    immediate,
                    solicited,
                    ack_request,
                    len,
                },
            );
        let write = (
            psn(),
            any::<([u8; 4], bool, bool)>(),
            0..=Compact::WRITE_MAX,
        )
            .prop_map(
                |(psn, (immediate, solicited, ack_request), len)| CompactWrite {
                    psn,
                    immediate,
                    solicited,
                    ack_request,
                    len,
                },
            );
        let ack = (psn(), 0..=LOW).prop_map(|(psn, msn)| CompactAck { psn, msn });
        let atomic =
            (psn(), any::<bool>()).prop_map(|(psn, compares)| CompactAtomic { psn, compares });
        let atomic_ack = (psn(), 0..=LOW).prop_map(|(psn, msn)| CompactAtomicAck { psn, msn });
        let none = Compact::to(Qpn::new(0));
        let parts = prop_oneof![
            Just(none),
            send.prop_map(move |send| Compact {
                send: Some(send),
                ..none
            }),
            write.prop_map(move |write| Compact {
                write: Some(write),
                ..none
            }),
            atomic.prop_map(move |atomic| Compact {
                atomic: Some(atomic),
                ..none
            }),
        ];
        let with_ack = (parts, of(ack.clone()), ack).prop_map(|(parts, ack, if_alone)| {
            let is_alone = parts == Compact::to(Qpn::new(0));
            Compact {
                acknowledgement: if is_alone { Some(if_alone) } else { ack },
                ..parts
            }
        });
        let answer = atomic_ack.prop_map(move |answer| Compact {
            atomic_ack: Some(answer),
            ..none
        });
        let record = prop_oneof![with_ack, answer];
        (0..=LOW, any::<(u32, u16)>(), record).prop_map(|(dest, (tag, source_port), record)| {
            Compact {
                dest_qp: Qpn::new(dest),
                tag,
                source_port,
                ..record
            }
        })
    }

    const OPERANDS: AtomicEthRepr = AtomicEthRepr {
        va: 1,
        rkey: 2,
        swap_or_add: 3,
        compare: 4,
    };
    const VALUE: AtomicAckEthRepr = AtomicAckEthRepr { original: 5 };

    proptest! {
        #[test]
        fn a_record_survives_memory(compact in compacts()) {
            prop_assert_eq!(Compact::parse(&compact.emit()), Some(compact));
        }

        #[test]
        fn the_form_in_memory_means_the_same_as_its_parts(compact in compacts()) {
            let words = CompactWords::check(compact.emit()).unwrap();
            let is_placed = compact.write.is_some_and(|write| write.len > 0);
            prop_assert_eq!(words.has_placed_bytes(), is_placed);
            let of_send = compact.send.map(|send| send.len);
            let of_atomic = compact.atomic.map(|_| Compact::OPERANDS_LEN);
            let of_answer = compact.atomic_ack.map(|_| Compact::VALUE_LEN);
            let len = of_send.or(of_atomic).or(of_answer);
            prop_assert_eq!(words.payload_len(), len.unwrap_or(0));
        }

        #[test]
        fn what_parses_is_what_a_sender_writes(words in any::<[u32; 8]>(), kind in 0u32..256) {
            let mut words = words;
            words[1] = words[1] & LOW | kind << 24;
            for word in [0, 2, 4, 5, 7] {
                words[word] >>= 16;
            }
            if let Some(compact) = Compact::parse(&words) {
                let again = compact.emit();
                prop_assert_eq!(Compact::parse(&again), Some(compact));
                prop_assert_eq!((words[0], words[1]), (again[0], again[1]));
            }
        }

        #[test]
        fn a_record_is_the_short_form_of_its_packets(compact in compacts()) {
            let compact = Compact { write: None, ..compact };
            let mut merged = Compact {
                tag: compact.tag,
                source_port: compact.source_port,
                ..Compact::to(compact.dest_qp)
            };
            let (mut packets, mut bytes) = (0, 0);
            let len = compact.send.map_or(0, |send| send.len as usize);
            for (headers, len) in [
                (compact.send_headers(), len),
                (compact.atomic_headers(&OPERANDS), 0),
                (compact.atomic_ack_headers(&VALUE), 0),
                (compact.ack_headers(), 0),
            ] {
                let Some(headers) = headers else { continue };
                let short = Compact::of_packet(&headers, len).unwrap();
                merged.send = merged.send.or(short.send);
                merged.atomic = merged.atomic.or(short.atomic);
                merged.atomic_ack = merged.atomic_ack.or(short.atomic_ack);
                merged.acknowledgement = merged.acknowledgement.or(short.acknowledgement);
                packets += 1;
                bytes += headers.len() + len + pad_len(len) + ICRC_LEN;
            }
            prop_assert_eq!(merged, compact);
            prop_assert_eq!(compact.traffic(), (packets, bytes));
        }
    }
}
