//! DETH, XRCETH and immediate data.

use crate::bytes::{Builder, Fields, header};
use crate::{QKey, Qpn, Result};

/// Datagram extended transport header (IBTA 9.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DethRepr {
    /// The destination's queue key.
    pub qkey: QKey,
    /// The sender's queue pair.
    pub src_qp: Qpn,
}

header!(DethRepr, "DETH", 8);

impl DethRepr {
    fn from_fields(f: Fields<'_, 8>) -> Self {
        DethRepr {
            qkey: QKey(f.u32::<0>()),
            src_qp: Qpn::new(f.u24::<5>()),
        }
    }

    fn build(&self, b: &mut Builder<8>) -> Result<()> {
        b.u32::<0>(self.qkey.0)
            .u24::<5>("DETH source QP", self.src_qp.value())?;
        Ok(())
    }
}

/// XRC extended transport header (IBTA annex A14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XrcEthRepr {
    /// The shared receive queue that the request is for, 24 bits.
    pub srqn: u32,
}

header!(XrcEthRepr, "XRCETH", 4);

impl XrcEthRepr {
    fn from_fields(f: Fields<'_, 4>) -> Self {
        XrcEthRepr { srqn: f.u24::<1>() }
    }

    fn build(&self, b: &mut Builder<4>) -> Result<()> {
        b.u24::<1>("XRCETH SRQ", self.srqn)?;
        Ok(())
    }
}

/// Immediate data (IBTA 9.3): four bytes in network order, as in the verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImmDtRepr(pub [u8; 4]);

header!(ImmDtRepr, "ImmDt", 4);

impl ImmDtRepr {
    fn from_fields(f: Fields<'_, 4>) -> Self {
        ImmDtRepr(*f.0)
    }

    fn build(&self, b: &mut Builder<4>) -> Result<()> {
        b.array::<0, 4>(&self.0);
        Ok(())
    }
}
