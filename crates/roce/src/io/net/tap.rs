//! A tap for captures: sees every packet that the device sends or receives.

use std::cell::Cell;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use portolan_threads::lock::RwLock;
use portolan_wire::icrc::{self, Flow};

/// The direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Passed to the kernel to send.
    Sent,
    /// Received from the network with a valid ICRC.
    Received,
}

/// A packet seen by a tap.
#[derive(Clone, Copy, Debug)]
pub struct TappedPacket<'a> {
    /// Its direction.
    pub direction: Direction,
    /// Source address and UDP port.
    pub source: SocketAddr,
    /// Destination address and UDP port.
    pub destination: SocketAddr,
    /// The IPv4 identification that the ICRC covers; 0 for IPv6.
    pub identification: u16,
    /// IPv4 type of service or IPv6 traffic class; 0 for packets received.
    pub traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit; 0 if unknown, or the system's default.
    pub hop_limit: u8,
    /// The UDP payload: BTH to ICRC.
    pub payload: &'a [u8],
    /// The wall-clock time when it was sent or received.
    pub time: SystemTime,
}

/// Sees every packet.
///
/// It is called on the data path with locks held, so it should be quick. Verbs and calls of the stack from within it
/// fail with `Unsupported`. If it panics, it is removed; nothing else happens.
pub trait Tap: Send + Sync + std::fmt::Debug {
    /// Sees one packet.
    fn packet(&self, packet: &TappedPacket<'_>);
}

/// Holds the tap. It costs one load while none is set.
#[derive(Debug, Default)]
pub(crate) struct TapSocket {
    plugged: AtomicBool,
    tap: RwLock<Option<Arc<dyn Tap>>>,
}

impl TapSocket {
    /// Sets or removes the tap.
    pub(crate) fn set(&self, tap: Option<Arc<dyn Tap>>) {
        let mut slot = self.tap.write();
        EVER_PLUGGED.fetch_or(tap.is_some(), Ordering::Relaxed);
        self.plugged.store(tap.is_some(), Ordering::Release);
        *slot = tap;
    }

    /// Whether a tap is set.
    #[inline]
    pub(crate) fn is_plugged(&self) -> bool {
        self.plugged.load(Ordering::Relaxed)
    }

    /// Shows a packet to the tap, if one is set.
    #[cold]
    pub(crate) fn packet(&self, packet: &TappedPacket<'_>) {
        let tap = self.tap.read().clone();
        let Some(tap) = tap else { return };
        WITHIN.set(true);
        let shown = catch_unwind(AssertUnwindSafe(|| tap.packet(packet)));
        WITHIN.set(false);
        if shown.is_err() {
            tracing::error!("the tap panicked: it is removed");
            self.pull(&tap);
        }
    }

    /// Removes a tap unless another one has replaced it.
    fn pull(&self, tap: &Arc<dyn Tap>) {
        let mut slot = self.tap.write();
        if slot.as_ref().is_some_and(|now| Arc::ptr_eq(now, tap)) {
            *slot = None;
            self.plugged.store(false, Ordering::Release);
        }
    }
}

/// Appends the ICRC that a packet through memory would have.
pub(crate) fn with_icrc(flow: &Flow, identification: u16, packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    // Fails only for packets shorter than an ICRC, which are shown unchanged.
    let _ = icrc::append(flow, identification, &mut packet);
    packet
}

/// Whether this process has ever had a tap. If not, nothing reads [`WITHIN`], whose access is a function call in a
/// shared library.
static EVER_PLUGGED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread is within a tap.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Whether this process has ever had a tap.
#[inline]
pub(crate) fn was_ever_plugged() -> bool {
    EVER_PLUGGED.load(Ordering::Relaxed)
}

/// Whether the calling thread is within a tap.
pub(crate) fn is_within() -> bool {
    was_ever_plugged() && WITHIN.get()
}
