//! Opcodes (IBTA 9.2, XRC of annex A14, RoCEv2's CNP of annex A17, FLUSH and ATOMIC WRITE of annex A19) and the
//! headers and payload of each.

use core::fmt;

/// The transport service of an opcode: its three highest bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// RoCEv2 congestion notification, outside of any transport.
    Cnp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Transport::Rc => "RC",
            Transport::Uc => "UC",
            Transport::Ud => "UD",
            Transport::Xrc => "XRC",
            Transport::Cnp => "CNP",
        })
    }
}

/// The payload that an opcode may carry, up to the path MTU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// None.
    None,
    /// Any number of bytes, including zero.
    Any,
    /// Exactly this many bytes.
    Exactly(usize),
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        /// A packet's transport and operation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Opcode {
            $($(#[$doc])* $name = $value,)*
        }

        impl Opcode {
            /// Every opcode, in the order of their values.
            pub const ALL: &[Opcode] = &[$(Opcode::$name,)*];

            #[inline]
            pub(super) const fn known(value: u8) -> Option<Opcode> {
                Some(match value {
                    $($value => Opcode::$name,)*
                    _ => return None,
                })
            }

            /// Its name in traces, such as `RC SEND Only`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Opcode::$name => $text,)*
                }
            }
        }
    };
}

opcodes! {
    /// RC SEND, first of several packets.
    RcSendFirst = 0x00, "RC SEND First";
    /// RC SEND, neither first nor last.
    RcSendMiddle = 0x01, "RC SEND Middle";
    /// RC SEND, last of several packets.
    RcSendLast = 0x02, "RC SEND Last";
    /// RC SEND, last of several packets, with immediate data.
    RcSendLastImm = 0x03, "RC SEND Last with Immediate";
    /// RC SEND in one packet.
    RcSendOnly = 0x04, "RC SEND Only";
    /// RC SEND in one packet, with immediate data.
    RcSendOnlyImm = 0x05, "RC SEND Only with Immediate";
    /// RC RDMA WRITE, first of several packets.
    RcWriteFirst = 0x06, "RC RDMA WRITE First";
    /// RC RDMA WRITE, neither first nor last.
    RcWriteMiddle = 0x07, "RC RDMA WRITE Middle";
    /// RC RDMA WRITE, last of several packets.
    RcWriteLast = 0x08, "RC RDMA WRITE Last";
    /// RC RDMA WRITE, last of several packets, with immediate data.
    RcWriteLastImm = 0x09, "RC RDMA WRITE Last with Immediate";
    /// RC RDMA WRITE in one packet.
    RcWriteOnly = 0x0A, "RC RDMA WRITE Only";
    /// RC RDMA WRITE in one packet, with immediate data.
    RcWriteOnlyImm = 0x0B, "RC RDMA WRITE Only with Immediate";
    /// RC RDMA READ request.
    RcReadRequest = 0x0C, "RC RDMA READ Request";
    /// RC RDMA READ response, first of several packets.
    RcReadResponseFirst = 0x0D, "RC RDMA READ Response First";
    /// RC RDMA READ response, neither first nor last.
    RcReadResponseMiddle = 0x0E, "RC RDMA READ Response Middle";
    /// RC RDMA READ response, last of several packets.
    RcReadResponseLast = 0x0F, "RC RDMA READ Response Last";
    /// RC RDMA READ response in one packet.
    RcReadResponseOnly = 0x10, "RC RDMA READ Response Only";
    /// RC acknowledge, positive or negative.
    RcAck = 0x11, "RC Acknowledge";
    /// RC acknowledge of an atomic operation, with the original value.
    RcAtomicAck = 0x12, "RC ATOMIC Acknowledge";
    /// RC compare and swap.
    RcCompareSwap = 0x13, "RC CmpSwap";
    /// RC fetch and add.
    RcFetchAdd = 0x14, "RC FetchAdd";
    /// RC SEND, last of several packets, invalidating a remote key.
    RcSendLastInv = 0x16, "RC SEND Last with Invalidate";
    /// RC SEND in one packet, invalidating a remote key.
    RcSendOnlyInv = 0x17, "RC SEND Only with Invalidate";
    /// RC FLUSH: makes earlier writes visible or persistent.
    RcFlush = 0x1C, "RC FLUSH";
    /// RC ATOMIC WRITE of eight bytes.
    RcAtomicWrite = 0x1D, "RC ATOMIC WRITE";
    /// UC SEND, first of several packets.
    UcSendFirst = 0x20, "UC SEND First";
    /// UC SEND, neither first nor last.
    UcSendMiddle = 0x21, "UC SEND Middle";
    /// UC SEND, last of several packets.
    UcSendLast = 0x22, "UC SEND Last";
    /// UC SEND, last of several packets, with immediate data.
    UcSendLastImm = 0x23, "UC SEND Last with Immediate";
    /// UC SEND in one packet.
    UcSendOnly = 0x24, "UC SEND Only";
    /// UC SEND in one packet, with immediate data.
    UcSendOnlyImm = 0x25, "UC SEND Only with Immediate";
    /// UC RDMA WRITE, first of several packets.
    UcWriteFirst = 0x26, "UC RDMA WRITE First";
    /// UC RDMA WRITE, neither first nor last.
    UcWriteMiddle = 0x27, "UC RDMA WRITE Middle";
    /// UC RDMA WRITE, last of several packets.
    UcWriteLast = 0x28, "UC RDMA WRITE Last";
    /// UC RDMA WRITE, last of several packets, with immediate data.
    UcWriteLastImm = 0x29, "UC RDMA WRITE Last with Immediate";
    /// UC RDMA WRITE in one packet.
    UcWriteOnly = 0x2A, "UC RDMA WRITE Only";
    /// UC RDMA WRITE in one packet, with immediate data.
    UcWriteOnlyImm = 0x2B, "UC RDMA WRITE Only with Immediate";
    /// UD SEND: a datagram.
    UdSendOnly = 0x64, "UD SEND Only";
    /// UD SEND with immediate data.
    UdSendOnlyImm = 0x65, "UD SEND Only with Immediate";
    /// RoCEv2 congestion notification packet.
    Cnp = 0x81, "CNP";
    /// XRC SEND, first of several packets.
    XrcSendFirst = 0xA0, "XRC SEND First";
    /// XRC SEND, neither first nor last.
    XrcSendMiddle = 0xA1, "XRC SEND Middle";
    /// XRC SEND, last of several packets.
    XrcSendLast = 0xA2, "XRC SEND Last";
    /// XRC SEND, last of several packets, with immediate data.
    XrcSendLastImm = 0xA3, "XRC SEND Last with Immediate";
    /// XRC SEND in one packet.
    XrcSendOnly = 0xA4, "XRC SEND Only";
    /// XRC SEND in one packet, with immediate data.
    XrcSendOnlyImm = 0xA5, "XRC SEND Only with Immediate";
    /// XRC RDMA WRITE, first of several packets.
    XrcWriteFirst = 0xA6, "XRC RDMA WRITE First";
    /// XRC RDMA WRITE, neither first nor last.
    XrcWriteMiddle = 0xA7, "XRC RDMA WRITE Middle";
    /// XRC RDMA WRITE, last of several packets.
    XrcWriteLast = 0xA8, "XRC RDMA WRITE Last";
    /// XRC RDMA WRITE, last of several packets, with immediate data.
    XrcWriteLastImm = 0xA9, "XRC RDMA WRITE Last with Immediate";
    /// XRC RDMA WRITE in one packet.
    XrcWriteOnly = 0xAA, "XRC RDMA WRITE Only";
    /// XRC RDMA WRITE in one packet, with immediate data.
    XrcWriteOnlyImm = 0xAB, "XRC RDMA WRITE Only with Immediate";
    /// XRC RDMA READ request.
    XrcReadRequest = 0xAC, "XRC RDMA READ Request";
    /// XRC RDMA READ response, first of several packets.
    XrcReadResponseFirst = 0xAD, "XRC RDMA READ Response First";
    /// XRC RDMA READ response, neither first nor last.
    XrcReadResponseMiddle = 0xAE, "XRC RDMA READ Response Middle";
    /// XRC RDMA READ response, last of several packets.
    XrcReadResponseLast = 0xAF, "XRC RDMA READ Response Last";
    /// XRC RDMA READ response in one packet.
    XrcReadResponseOnly = 0xB0, "XRC RDMA READ Response Only";
    /// XRC acknowledge, positive or negative.
    XrcAck = 0xB1, "XRC Acknowledge";
    /// XRC acknowledge of an atomic operation, with the original value.
    XrcAtomicAck = 0xB2, "XRC ATOMIC Acknowledge";
    /// XRC compare and swap.
    XrcCompareSwap = 0xB3, "XRC CmpSwap";
    /// XRC fetch and add.
    XrcFetchAdd = 0xB4, "XRC FetchAdd";
    /// XRC SEND, last of several packets, invalidating a remote key.
    XrcSendLastInv = 0xB6, "XRC SEND Last with Invalidate";
    /// XRC SEND in one packet, invalidating a remote key.
    XrcSendOnlyInv = 0xB7, "XRC SEND Only with Invalidate";
}

impl Opcode {
    /// Its value on the wire.
    #[inline]
    pub const fn value(self) -> u8 {
        self as u8
    }

    /// The transport service.
    #[inline]
    pub const fn transport(self) -> Transport {
        match self.value() >> 5 {
            0 => Transport::Rc,
            1 => Transport::Uc,
            3 => Transport::Ud,
            5 => Transport::Xrc,
            _ => Transport::Cnp,
        }
    }

    /// The RC opcode of the same operation, if this is an XRC opcode; otherwise the opcode itself.
    #[inline]
    pub const fn as_rc(self) -> Opcode {
        if !matches!(self.transport(), Transport::Xrc) {
            return self;
        }
        match Opcode::known(self.value() & 0x1F) {
            Some(rc) => rc,
            None => self,
        }
    }

    /// The XRC opcode of the same operation, if this is an RC opcode that XRC has; otherwise the opcode itself.
    #[inline]
    pub const fn as_xrc(self) -> Opcode {
        match (self.transport(), Opcode::known(self.value() | 0xA0)) {
            (Transport::Rc, Some(xrc)) => xrc,
            _ => self,
        }
    }

    /// True for packets the requester sends. CNP is neither request nor response.
    #[inline]
    pub const fn is_request(self) -> bool {
        !self.is_response() && !matches!(self, Opcode::Cnp)
    }

    /// True for packets the responder sends: read responses and acknowledgements.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.is_read_response() || matches!(self.as_rc(), Opcode::RcAck | Opcode::RcAtomicAck)
    }

    /// True for the first of several packets of a message.
    #[inline]
    pub const fn is_first(self) -> bool {
        use Opcode::*;
        matches!(
            self.as_rc(),
            RcSendFirst | RcWriteFirst | RcReadResponseFirst | UcSendFirst | UcWriteFirst
        )
    }

    /// True for a packet inside a message.
    #[inline]
    pub const fn is_middle(self) -> bool {
        use Opcode::*;
        matches!(
            self.as_rc(),
            RcSendMiddle | RcWriteMiddle | RcReadResponseMiddle | UcSendMiddle | UcWriteMiddle
        )
    }

    /// True for the last of several packets of a message.
    #[inline]
    pub const fn is_last(self) -> bool {
        use Opcode::*;
        matches!(
            self.as_rc(),
            RcSendLast
                | RcSendLastImm
                | RcSendLastInv
                | RcWriteLast
                | RcWriteLastImm
                | RcReadResponseLast
                | UcSendLast
                | UcSendLastImm
                | UcWriteLast
                | UcWriteLastImm
        )
    }

    /// True for a single-packet message of any operation.
    #[inline]
    pub const fn is_only(self) -> bool {
        !self.is_first() && !self.is_middle() && !self.is_last()
    }

    /// True if a message starts here: first or only.
    #[inline]
    pub const fn starts_message(self) -> bool {
        self.is_first() || self.is_only()
    }

    /// True if a message ends here: last or only.
    #[inline]
    pub const fn ends_message(self) -> bool {
        self.is_last() || self.is_only()
    }

    /// True for SEND, any part and variant.
    #[inline]
    pub const fn is_send(self) -> bool {
        matches!(self.value() & 0x1F, 0x00..=0x05 | 0x16 | 0x17) && !matches!(self, Opcode::Cnp)
    }

    /// True for RDMA WRITE, any part. ATOMIC WRITE is a different operation.
    #[inline]
    pub const fn is_write(self) -> bool {
        matches!(self.value() & 0x1F, 0x06..=0x0B)
    }

    /// True for RDMA READ responses.
    #[inline]
    pub const fn is_read_response(self) -> bool {
        matches!(self.as_rc().value(), 0x0D..=0x10)
    }

    /// True for compare and swap, and fetch and add.
    #[inline]
    pub const fn is_atomic(self) -> bool {
        self.has_atomic_eth()
    }

    /// True if a DETH follows: every datagram.
    #[inline]
    pub const fn has_deth(self) -> bool {
        matches!(self.transport(), Transport::Ud)
    }

    /// True if an XRCETH follows: every request of XRC.
    #[inline]
    pub const fn has_xrceth(self) -> bool {
        matches!(self.transport(), Transport::Xrc) && self.is_request()
    }

    /// True if a FETH follows: FLUSH.
    #[inline]
    pub const fn has_feth(self) -> bool {
        matches!(self, Opcode::RcFlush)
    }

    /// True if a RETH follows: the start of a write, a read request, FLUSH, ATOMIC WRITE.
    #[inline]
    pub const fn has_reth(self) -> bool {
        (self.is_write() && self.starts_message())
            || matches!(
                self.as_rc(),
                Opcode::RcReadRequest | Opcode::RcFlush | Opcode::RcAtomicWrite
            )
    }

    /// True if an AtomicETH follows: compare and swap, fetch and add.
    #[inline]
    pub const fn has_atomic_eth(self) -> bool {
        matches!(self.as_rc(), Opcode::RcCompareSwap | Opcode::RcFetchAdd)
    }

    /// True if an AETH follows: acknowledgements and all read responses except middle ones.
    #[inline]
    pub const fn has_aeth(self) -> bool {
        self.is_response() && !self.is_middle()
    }

    /// True if an AtomicAckETH follows.
    #[inline]
    pub const fn has_atomic_ack_eth(self) -> bool {
        matches!(self.as_rc(), Opcode::RcAtomicAck)
    }

    /// True if immediate data follows.
    #[inline]
    pub const fn has_immdt(self) -> bool {
        use Opcode::*;
        matches!(
            self.as_rc(),
            RcSendLastImm
                | RcSendOnlyImm
                | RcWriteLastImm
                | RcWriteOnlyImm
                | UcSendLastImm
                | UcSendOnlyImm
                | UcWriteLastImm
                | UcWriteOnlyImm
                | UdSendOnlyImm
        )
    }

    /// True if an IETH (the key to invalidate) follows.
    #[inline]
    pub const fn has_ieth(self) -> bool {
        matches!(self.as_rc(), Opcode::RcSendLastInv | Opcode::RcSendOnlyInv)
    }

    /// The payload that follows the headers.
    #[inline]
    pub const fn payload(self) -> Payload {
        match self.as_rc() {
            Opcode::RcReadRequest
            | Opcode::RcAck
            | Opcode::RcAtomicAck
            | Opcode::RcCompareSwap
            | Opcode::RcFetchAdd
            | Opcode::RcFlush => Payload::None,
            Opcode::RcAtomicWrite => Payload::Exactly(8),
            // Sixteen reserved bytes (IBTA annex A17).
            Opcode::Cnp => Payload::Exactly(16),
            _ => Payload::Any,
        }
    }

    /// True if payload may follow the headers.
    #[inline]
    pub const fn has_payload(self) -> bool {
        !matches!(self.payload(), Payload::None)
    }

    /// Length of the headers in bytes: BTH and this opcode's extension headers.
    #[inline]
    pub const fn headers_len(self) -> usize {
        /// Lengths by opcode value. Computed at compile time, because every packet needs one.
        const LENS: [u8; 256] = {
            let mut lens = [0; 256];
            let mut index = 0;
            while index < Opcode::ALL.len() {
                let opcode = Opcode::ALL[index];
                lens[opcode.value() as usize] = opcode.sum_of_headers() as u8;
                index += 1;
            }
            lens
        };
        LENS[self.value() as usize] as usize
    }

    const fn sum_of_headers(self) -> usize {
        use crate::eth;
        let mut len = super::LEN;
        if self.has_deth() {
            len += eth::DethRepr::LEN;
        }
        if self.has_xrceth() {
            len += eth::XrcEthRepr::LEN;
        }
        if self.has_feth() {
            len += eth::FethRepr::LEN;
        }
        if self.has_reth() {
            len += eth::RethRepr::LEN;
        }
        if self.has_atomic_eth() {
            len += eth::AtomicEthRepr::LEN;
        }
        if self.has_aeth() {
            len += eth::AethRepr::LEN;
        }
        if self.has_atomic_ack_eth() {
            len += eth::AtomicAckEthRepr::LEN;
        }
        if self.has_immdt() {
            len += eth::ImmDtRepr::LEN;
        }
        if self.has_ieth() {
            len += eth::IethRepr::LEN;
        }
        len
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
