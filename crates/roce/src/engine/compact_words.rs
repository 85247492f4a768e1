//! A record in the short form as it is in memory.
//!
//! A receiver reads its parts where it needs them. As a [`Compact`], all parts would be copied first.

use portolan_wire::eth::{AethRepr, ImmDtRepr, RethRepr};
use portolan_wire::rocev2::ICRC_LEN;
use portolan_wire::{Psn, Qpn};

use super::compact::{
    ACK_REQUEST, ACKNOWLEDGEMENT, ATOMIC, ATOMIC_ACK, Compact, CompactAck, CompactAtomic,
    CompactAtomicAck, CompactSend, CompactWrite, IMMEDIATE, LOW, SEND, SOLICITED, WRITE,
};

impl Compact {
    /// Parses the form in memory. `None` if no sender writes it.
    pub fn parse(words: &[u32; Self::WORDS]) -> Option<Self> {
        CompactWords::check(*words).map(|words| words.whole())
    }

    /// The number of packets that it stands for, and the bytes of their UDP payload. A write counts as one without data.
    pub fn traffic(&self) -> (usize, usize) {
        CompactWords::of(self).traffic()
    }
}

/// A [`Compact`] in the form in memory. A sender may have written it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactWords([u32; Compact::WORDS]);

impl CompactWords {
    /// Checks the form in memory. `None` if no sender writes it.
    #[inline]
    pub fn check(words: [u32; Compact::WORDS]) -> Option<Self> {
        const OF_MESSAGES: u32 = IMMEDIATE | SOLICITED | ACK_REQUEST;
        let [len, kind, psn, immediate, ack_psn, msn, _, port] = words;
        let has = |bit| kind & bit != 0;
        let is_valid = match kind & (SEND | WRITE | ATOMIC | ATOMIC_ACK) {
            SEND => len <= Compact::PAYLOAD_MAX,
            WRITE => len <= Compact::WRITE_MAX && has(IMMEDIATE),
            0 => has(ACKNOWLEDGEMENT) && len == 0 && !has(OF_MESSAGES),
            ATOMIC => len == Compact::OPERANDS_LEN && immediate <= 1 && !has(OF_MESSAGES),
            ATOMIC_ACK => {
                let is_alone = psn == 0 && immediate == 0 && !has(OF_MESSAGES | ACKNOWLEDGEMENT);
                len == Compact::VALUE_LEN && is_alone
            }
            _ => false,
        } && (psn | ack_psn | msn) <= LOW
            && port <= u32::from(u16::MAX);
        is_valid.then_some(Self(words))
    }

    /// The form in memory of a record that this process writes.
    #[inline(always)]
    pub fn of(compact: &Compact) -> Self {
        Self(compact.emit())
    }

    /// The words, in the byte order of the host.
    #[inline]
    pub fn words(&self) -> &[u32; Compact::WORDS] {
        &self.0
    }

    #[inline]
    fn has(&self, bit: u32) -> bool {
        self.0[1] & bit != 0
    }

    /// The queue pair that it is for.
    #[inline]
    pub fn dest_qp(&self) -> Qpn {
        Qpn::new(self.0[1] & LOW)
    }

    /// What the host adds to recognize the connection.
    #[inline]
    pub fn tag(&self) -> u32 {
        self.0[6]
    }

    /// Bytes that follow the record.
    #[inline]
    pub fn payload_len(&self) -> u32 {
        match self.has(SEND | ATOMIC | ATOMIC_ACK) {
            true => self.0[0],
            false => 0,
        }
    }

    /// Whether its writer says that it has copied bytes to the receiver's memory.
    #[inline]
    pub fn has_placed_bytes(&self) -> bool {
        self.is_write() && self.0[0] > 0
    }

    /// Whether its request is a write.
    #[inline]
    pub fn is_write(&self) -> bool {
        self.has(WRITE)
    }

    /// The send.
    #[inline]
    pub fn send(&self) -> Option<CompactSend> {
        self.has(SEND).then(|| CompactSend {
            psn: Psn::new(self.0[2]),
            immediate: self.has(IMMEDIATE).then(|| self.0[3].to_ne_bytes()),
            solicited: self.has(SOLICITED),
            ack_request: self.has(ACK_REQUEST),
            len: self.0[0],
        })
    }

    /// The write.
    #[inline]
    pub fn write(&self) -> Option<CompactWrite> {
        self.is_write().then(|| CompactWrite {
            psn: Psn::new(self.0[2]),
            immediate: self.0[3].to_ne_bytes(),
            solicited: self.has(SOLICITED),
            ack_request: self.has(ACK_REQUEST),
            len: self.0[0],
        })
    }

    /// Whether it is a request that the receiver's program knows nothing of.
    #[inline]
    pub fn is_one_sided(&self) -> bool {
        self.has(ATOMIC)
    }

    /// Whether it is for an atomic or answers one.
    #[inline]
    pub fn is_atomic(&self) -> bool {
        self.has(ATOMIC | ATOMIC_ACK)
    }

    /// The atomic, whose operands are the payload.
    pub fn atomic(&self) -> Option<CompactAtomic> {
        self.has(ATOMIC).then(|| CompactAtomic {
            psn: Psn::new(self.0[2]),
            compares: self.0[3] != 0,
        })
    }

    /// The answer to an atomic, whose value is the payload.
    pub fn atomic_ack(&self) -> Option<CompactAtomicAck> {
        self.has(ATOMIC_ACK).then(|| CompactAtomicAck {
            psn: Psn::new(self.0[4]),
            msn: self.0[5],
        })
    }

    /// The acknowledgement, which takes effect before the request.
    #[inline]
    pub fn acknowledgement(&self) -> Option<CompactAck> {
        self.has(ACKNOWLEDGEMENT).then(|| CompactAck {
            psn: Psn::new(self.0[4]),
            msn: self.0[5],
        })
    }

    /// All parts.
    pub fn whole(&self) -> Compact {
        Compact {
            dest_qp: self.dest_qp(),
            tag: self.tag(),
            // The form was checked.
            source_port: self.0[7] as u16,
            send: self.send(),
            write: self.write(),
            atomic: self.atomic(),
            atomic_ack: self.atomic_ack(),
            acknowledgement: self.acknowledgement(),
        }
    }

    /// As [`Compact::traffic`].
    #[inline]
    pub fn traffic(&self) -> (usize, usize) {
        let [packets, bytes] = TRAFFIC[(self.0[1] >> 24) as usize];
        let payload = (self.payload_len() as usize).next_multiple_of(4);
        (packets.into(), usize::from(bytes) + payload)
    }
}

/// The packets that each kind of record stands for, and the bytes of their headers and ICRCs.
const TRAFFIC: [[u8; 2]; 256] = {
    let mut traffic = [[0; 2]; 256];
    let mut index = 0;
    while index < traffic.len() {
        traffic[index] = traffic_of((index as u32) << 24);
        index += 1;
    }
    traffic
};

const fn traffic_of(kind: u32) -> [u8; 2] {
    const PACKET: usize = portolan_wire::bth::LEN + ICRC_LEN;
    let (mut packets, mut bytes) = (0, 0);
    if kind & (SEND | WRITE | ATOMIC | ATOMIC_ACK) != 0 {
        packets += 1;
        bytes += PACKET;
    }
    if kind & WRITE != 0 {
        bytes += RethRepr::LEN;
    }
    if kind & IMMEDIATE != 0 {
        bytes += ImmDtRepr::LEN;
    }
    if kind & ATOMIC_ACK != 0 {
        bytes += AethRepr::LEN;
    }
    if kind & ACKNOWLEDGEMENT != 0 {
        packets += 1;
        bytes += PACKET + AethRepr::LEN;
    }
    [packets, bytes as u8]
}
