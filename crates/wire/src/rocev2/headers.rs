//! The headers of a packet as one value.

use core::fmt;

use crate::bth::{BthRepr, Opcode};
use crate::eth::{
    AethRepr, AtomicAckEthRepr, AtomicEthRepr, DethRepr, FethRepr, IethRepr, ImmDtRepr, RethRepr,
    XrcEthRepr,
};
use crate::{Error, Psn, Qpn, Result};

/// The base transport header and the extension headers that its opcode requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    /// Base transport header.
    pub bth: BthRepr,
    /// Datagram header.
    pub deth: Option<DethRepr>,
    /// XRC header.
    pub xrceth: Option<XrcEthRepr>,
    /// Flush header.
    pub feth: Option<FethRepr>,
    /// RDMA header.
    pub reth: Option<RethRepr>,
    /// Atomic request header.
    pub atomic_eth: Option<AtomicEthRepr>,
    /// Acknowledge header.
    pub aeth: Option<AethRepr>,
    /// Atomic acknowledge header.
    pub atomic_ack_eth: Option<AtomicAckEthRepr>,
    /// Immediate data.
    pub immdt: Option<ImmDtRepr>,
    /// Invalidate header.
    pub ieth: Option<IethRepr>,
}

/// Calls `$visit!(field, Repr, has, name)` for each extension header in the order of the wire.
macro_rules! for_each_extension {
    ($visit:ident) => {
        $visit!(deth, DethRepr, has_deth, "DETH");
        $visit!(xrceth, XrcEthRepr, has_xrceth, "XRCETH");
        $visit!(feth, FethRepr, has_feth, "FETH");
        $visit!(reth, RethRepr, has_reth, "RETH");
        $visit!(atomic_eth, AtomicEthRepr, has_atomic_eth, "AtomicETH");
        $visit!(aeth, AethRepr, has_aeth, "AETH");
        $visit!(
            atomic_ack_eth,
            AtomicAckEthRepr,
            has_atomic_ack_eth,
            "AtomicAckETH"
        );
        $visit!(immdt, ImmDtRepr, has_immdt, "ImmDt");
        $visit!(ieth, IethRepr, has_ieth, "IETH");
    };
}

impl From<BthRepr> for Headers {
    /// The base header alone; the caller adds the extension headers.
    fn from(bth: BthRepr) -> Headers {
        Headers {
            bth,
            deth: None,
            xrceth: None,
            feth: None,
            reth: None,
            atomic_eth: None,
            aeth: None,
            atomic_ack_eth: None,
            immdt: None,
            ieth: None,
        }
    }
}

impl Headers {
    /// Only a base header with default partition and no flags ([`BthRepr::new`]).
    pub fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Headers {
        BthRepr::new(opcode, dest_qp, psn).into()
    }

    /// Length on the wire, in bytes, determined by the opcode.
    #[expect(clippy::len_without_is_empty, reason = "headers are never empty")]
    pub const fn len(&self) -> usize {
        self.bth.opcode.headers_len()
    }

    /// Reads the headers at the front of `input`.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`]; [`Error::Unsupported`] for an unknown opcode.
    pub fn parse(input: &[u8]) -> Result<Headers> {
        let mut headers = Headers::from(BthRepr::parse(input)?);
        let opcode = headers.bth.opcode;
        let mut rest = input.get(crate::bth::LEN..).unwrap_or_default();
        macro_rules! parse {
            ($field:ident, $repr:ident, $has:ident, $name:literal) => {
                if opcode.$has() {
                    headers.$field = Some($repr::parse(rest)?);
                    rest = rest.get($repr::LEN..).unwrap_or_default();
                }
            };
        }
        for_each_extension!(parse);
        let _ = rest;
        Ok(headers)
    }

    /// Writes the headers at the front of `out`; returns their length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`], with `out` unchanged; [`Error::HeaderMismatch`] if the extension headers are not those
    /// of the opcode; [`Error::OutOfRange`] for a value wider than its field.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize> {
        self.check_extensions()?;
        let (needed, got) = (self.len(), out.len());
        let out = out.get_mut(..needed).ok_or(Error::NoRoom {
            what: "RoCEv2 headers",
            needed,
            got,
        })?;
        let mut at = self.bth.emit(out)?;
        macro_rules! emit {
            ($field:ident, $repr:ident, $has:ident, $name:literal) => {
                if let Some(header) = &self.$field {
                    at += header.emit(out.get_mut(at..).unwrap_or_default())?;
                }
            };
        }
        for_each_extension!(emit);
        Ok(at)
    }

    fn check_extensions(&self) -> Result<()> {
        let opcode = self.bth.opcode;
        macro_rules! check {
            ($field:ident, $repr:ident, $has:ident, $name:literal) => {
                if opcode.$has() != self.$field.is_some() {
                    return Err(Error::HeaderMismatch {
                        opcode: opcode.value(),
                        header: $name,
                        required: opcode.$has(),
                    });
                }
            };
        }
        for_each_extension!(check);
        Ok(())
    }
}

impl fmt::Display for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bth = &self.bth;
        write!(f, "{} qp {} psn {}", bth.opcode, bth.dest_qp, bth.psn)?;
        if let Some(deth) = &self.deth {
            write!(f, " from qp {} qkey {}", deth.src_qp, deth.qkey)?;
        }
        if let Some(xrceth) = &self.xrceth {
            write!(f, " srq 0x{:06x}", xrceth.srqn)?;
        }
        if let Some(feth) = &self.feth {
            write!(
                f,
                " placement {} selectivity {}",
                feth.placement, feth.selectivity
            )?;
        }
        if let Some(reth) = &self.reth {
            write!(
                f,
                " va 0x{:016x} rkey 0x{:08x} dma {}",
                reth.va, reth.rkey, reth.dma_len
            )?;
        }
        if let Some(atomic) = &self.atomic_eth {
            write!(f, " va 0x{:016x} rkey 0x{:08x}", atomic.va, atomic.rkey)?;
            if bth.opcode.as_rc() == Opcode::RcCompareSwap {
                write!(f, " compare {} swap {}", atomic.compare, atomic.swap_or_add)?;
            } else {
                write!(f, " add {}", atomic.swap_or_add)?;
            }
        }
        if let Some(aeth) = &self.aeth {
            write!(f, " {} msn {}", aeth.syndrome, aeth.msn)?;
        }
        if let Some(ack) = &self.atomic_ack_eth {
            write!(f, " original {}", ack.original)?;
        }
        if let Some(immdt) = &self.immdt {
            write!(f, " imm 0x{:08x}", u32::from_be_bytes(immdt.0))?;
        }
        if let Some(ieth) = &self.ieth {
            write!(f, " invalidate rkey 0x{:08x}", ieth.rkey)?;
        }
        for (set, name) in [
            (bth.ack_request, " ackreq"),
            (bth.solicited, " solicited"),
            (bth.fecn, " fecn"),
            (bth.becn, " becn"),
        ] {
            if set {
                f.write_str(name)?;
            }
        }
        Ok(())
    }
}
