//! A transport for management datagrams of one class, through one port of a device.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use portolan_wire::mad::MAD_LEN;
use portolan_wire::{Gid, QKey, Qpn};

use crate::port::Port;

/// A management datagram in wire format.
pub type Mad = [u8; MAD_LEN];

/// Sends and receives management datagrams of one class through one port.
///
/// One thread owns the transport: it calls [`send`](Self::send) for each outgoing datagram and
/// waits in [`receive`](Self::receive). That thread also keeps the timers of the protocol above. A
/// transport whose driver has its own timers reports a timeout by [`Received::SendFailed`].
///
/// A transport may replace bits 32 to 63 of the transaction id on sending: Linux's user MAD devices
/// put the agent's number there. Match answers by the low 32 bits.
pub trait Transport: Send + fmt::Debug {
    /// The port's current attributes. Each call reads them from the system.
    ///
    /// # Errors
    /// [`TransportError::Gone`] if the port no longer exists; otherwise the system's error.
    fn port(&mut self) -> Result<Port, TransportError>;

    /// Sends one datagram. Does not block.
    ///
    /// `answer_within` is zero for a datagram that expects no answer (answers themselves,
    /// acknowledgements, connection management). A driver that tracks requests delivers an answer
    /// only within that time, and then reports [`Received::SendFailed`] with `ETIMEDOUT`. Other
    /// drivers ignore it.
    ///
    /// # Errors
    /// Nothing was sent. [`TransportError::Gone`] means that the port is gone for good; other
    /// errors may be temporary.
    fn send(
        &mut self,
        to: &MadAddress,
        mad: &Mad,
        answer_within: Duration,
    ) -> Result<(), TransportError>;

    /// Waits for a datagram or a report for at most `wait` (zero: polls once). Returns `None` on a
    /// timeout and after [`Wake::wake`].
    ///
    /// # Errors
    /// [`TransportError::Gone`] if the port is gone for good.
    fn receive(&mut self, wait: Duration) -> Result<Option<Received>, TransportError>;

    /// Returns a handle that interrupts [`receive`](Self::receive) from any thread; `None` if the
    /// transport has none.
    ///
    /// Without one, new work waits until `receive` returns, so the thread must wait in short
    /// pieces.
    fn wake(&self) -> Option<Arc<dyn Wake>>;
}

/// Makes [`Transport::receive`] return early.
pub trait Wake: Send + Sync + fmt::Debug {
    /// Ends the wait in progress, or the next one. Never blocks.
    fn wake(&self);
}

/// Destination or source of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MadAddress {
    /// LID of the other port.
    pub lid: u16,
    /// Queue pair of the other port.
    pub qpn: Qpn,
    /// Queue key of a sent datagram; zero for a received one if the system does not report it.
    pub qkey: QKey,
    /// Index in this port's partition key table.
    pub pkey_index: u16,
    /// Service level, four bits.
    pub sl: u8,
    /// Low bits of this port's LID, as many as the LID mask control (LMC).
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
    /// Index in this port's GID table.
    pub sgid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// An incoming datagram or report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A datagram.
    Mad {
        /// Where it came from.
        from: MadAddress,
        /// The datagram.
        mad: Box<Mad>,
    },
    /// A sent datagram could not be delivered, or its answer did not arrive in time.
    SendFailed {
        /// Transaction id of the sent datagram; only the low 32 bits are unchanged.
        tid: u64,
        /// The system's errno (positive): `ETIMEDOUT` if no answer arrived.
        errno: i32,
    },
}

/// Why a transport failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The port is gone, with its device or with the emulator behind it.
    #[error("{device} port {port_num} is gone: {why}")]
    Gone {
        /// RDMA device name.
        device: String,
        /// Port number, from 1.
        port_num: u8,
        /// What the transport observed.
        why: String,
    },
    /// A system call failed.
    #[error("{call}: {}", std::io::Error::from_raw_os_error(*.errno))]
    Os {
        /// The call and its purpose.
        call: &'static str,
        /// Its errno (positive).
        errno: i32,
    },
    /// The system returned an invalid value.
    #[error("{what}: expected {expected}, found {found}")]
    Unexpected {
        /// Which value.
        what: &'static str,
        /// The expected value.
        expected: String,
        /// The value found.
        found: String,
    },
}

impl TransportError {
    /// Returns whether a retry cannot succeed.
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }

    /// The errno (positive) of this error on Linux.
    pub const fn errno(&self) -> i32 {
        use portolan_provider::error::errno;
        match self {
            Self::Gone { .. } => errno::ENODEV,
            Self::Os { errno, .. } => *errno,
            Self::Unexpected { .. } => errno::EIO,
        }
    }
}
