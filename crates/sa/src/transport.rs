//! Management datagrams of one class, through one port of a device.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use portolan_wire::mad::MAD_LEN;
use portolan_wire::{Gid, QKey, Qpn};

use crate::port::Port;

/// A management datagram as it is on the wire.
pub type Mad = [u8; MAD_LEN];

/// Sends and receives management datagrams of one class through one port.
///
/// One thread holds it: it calls [`send`](Self::send) for whatever is to go out, and waits in
/// [`receive`](Self::receive). The timers of the protocol above are that thread's own; a transport
/// whose driver keeps time as well tells of it by [`Received::SendFailed`].
///
/// A transport may change bits 32 to 63 of the transaction id on the way out, as Linux's user
/// MAD devices do (they number the agent there): who matches answers looks at the low 32 bits.
pub trait Transport: Send + fmt::Debug {
    /// What the port knows of itself at this moment. Read anew by each call.
    ///
    /// # Errors
    /// [`TransportError::Gone`] if there is no such port any more; what the system says otherwise.
    fn port(&mut self) -> Result<Port, TransportError>;

    /// Sends one datagram. Does not block.
    ///
    /// `answer_within` is zero for a datagram that no answer is expected to (answers themselves,
    /// acknowledgements, connection management). A driver that keeps track of requests delivers an answer only
    /// within that time, and reports [`Received::SendFailed`] with `ETIMEDOUT` after it; others
    /// ignore it.
    ///
    /// # Errors
    /// Nothing was sent. [`TransportError::Gone`] if the port is gone for good; anything else may
    /// pass with time.
    fn send(
        &mut self,
        to: &MadAddress,
        mad: &Mad,
        answer_within: Duration,
    ) -> Result<(), TransportError>;

    /// Waits for a datagram or a report, at most for `wait` (zero: looks only); `None` if there is
    /// none by then, or if [`Wake::wake`] was called.
    ///
    /// # Errors
    /// [`TransportError::Gone`] if the port is gone for good.
    fn receive(&mut self, wait: Duration) -> Result<Option<Received>, TransportError>;

    /// What makes [`receive`](Self::receive) return early, from any thread; `None` if nothing does.
    /// Whoever has work for the thread of a transport without one waits until it comes round, so that thread
    /// must wait in short pieces.
    fn wake(&self) -> Option<Arc<dyn Wake>>;
}

/// Makes [`Transport::receive`] return early.
pub trait Wake: Send + Sync + fmt::Debug {
    /// Ends the wait that is under way, or else the next one. Never blocks.
    fn wake(&self);
}

/// Where a datagram goes to, or came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MadAddress {
    /// LID of the other port.
    pub lid: u16,
    /// Queue pair of the other port.
    pub qpn: Qpn,
    /// Queue key that a datagram is sent with; zero for one that was received where the system does
    /// not tell.
    pub qkey: QKey,
    /// Slot of the partition key in the table of this port.
    pub pkey_index: u16,
    /// Service level, four bits.
    pub sl: u8,
    /// Low bits of this port's LID, as many as its LID mask has.
    pub path_bits: u8,
    /// The global route header, if the datagram has one.
    pub grh: Option<Grh>,
}

impl MadAddress {
    /// The general services interface (queue pair 1) of the port with this LID.
    pub const fn gsi(lid: u16, sl: u8, pkey_index: u16) -> Self {
        Self {
            lid,
            qpn: Qpn::GSI,
            qkey: QKey::GSI,
            pkey_index,
            sl,
            path_bits: 0,
            grh: None,
        }
    }
}

impl fmt::Display for MadAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LID {} QP {}", self.lid, self.qpn.value())?;
        match &self.grh {
            Some(grh) => write!(f, " GID {}", grh.gid),
            None => Ok(()),
        }
    }
}

/// The global route of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grh {
    /// GID of the other port.
    pub gid: Gid,
    /// Slot of this port's GID in its table.
    pub sgid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// What comes in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A datagram.
    Mad {
        /// Where it came from.
        from: MadAddress,
        /// The datagram.
        mad: Box<Mad>,
    },
    /// A datagram that was sent could not be delivered, or its answer did not come in time.
    SendFailed {
        /// Transaction id of what was sent; the low 32 bits are those it was sent with.
        tid: u64,
        /// The system's reason (positive): `ETIMEDOUT` if no answer came.
        errno: i32,
    },
}

/// Why a transport failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The port is gone, with its device or with what stands for it.
    #[error("{device} port {port_num} is gone: {why}")]
    Gone {
        /// RDMA device name.
        device: String,
        /// Port number, from 1.
        port_num: u8,
        /// How it was noticed.
        why: String,
    },
    /// A system call failed.
    #[error("{call}: {}", std::io::Error::from_raw_os_error(*.errno))]
    Os {
        /// The call, and what it was for.
        call: &'static str,
        /// Its errno (positive).
        errno: i32,
    },
    /// What the system gave makes no sense.
    #[error("{what}: expected {expected}, found {found}")]
    Unexpected {
        /// Which thing.
        what: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
}

impl TransportError {
    /// Whether trying again is in vain.
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }

    /// Linux's errno for it (positive).
    pub const fn errno(&self) -> i32 {
        use portolan_provider::error::errno;
        match self {
            Self::Gone { .. } => errno::ENODEV,
            Self::Os { errno, .. } => *errno,
            Self::Unexpected { .. } => errno::EIO,
        }
    }
}
