//! A tap on the device: every packet sent and every packet taken, for captures.

use std::cell::Cell;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use portolan_threads::lock::RwLock;
use portolan_wire::icrc::{self, Flow};

/// Which way a packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Handed to the kernel to send.
    Sent,
    /// Taken from the network with a valid ICRC.
    Received,
}

/// A packet as a tap sees it.
#[derive(Clone, Copy, Debug)]
pub struct TappedPacket<'a> {
    /// Which way it went.
    pub direction: Direction,
    /// Source address and UDP port.
    pub source: SocketAddr,
    /// Destination address and UDP port.
    pub destination: SocketAddr,
    /// The IPv4 identification that the ICRC covers; 0 for IPv6.
    pub identification: u16,
    /// IPv4 type of service or IPv6 traffic class; 0 for packets received.
    pub traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit; 0 if not known, or the system's default.
    pub hop_limit: u8,
    /// The UDP payload: BTH to ICRC.
    pub payload: &'a [u8],
    /// When it was sent or taken, by the wall clock.
    pub time: SystemTime,
}

/// Sees every packet. It is called on the data path with locks held, so it should be quick. Verbs and calls of the stack made
/// from within it fail with `Unsupported`. If it panics it is pulled, and nothing else happens.
pub trait Tap: Send + Sync + std::fmt::Debug {
    /// One packet.
    fn packet(&self, packet: &TappedPacket<'_>);
}

/// Where the tap is plugged in; costs one load while there is none.
#[derive(Debug, Default)]
pub(crate) struct TapSocket {
    plugged: AtomicBool,
    tap: RwLock<Option<Arc<dyn Tap>>>,
}

impl TapSocket {
    /// Plugs a tap in, or pulls it.
    pub(crate) fn set(&self, tap: Option<Arc<dyn Tap>>) {
        let mut slot = self.tap.write();
        EVER_PLUGGED.fetch_or(tap.is_some(), Ordering::Relaxed);
        self.plugged.store(tap.is_some(), Ordering::Release);
        *slot = tap;
    }

    /// Whether a tap is plugged in.
    #[inline]
    pub(crate) fn is_plugged(&self) -> bool {
        self.plugged.load(Ordering::Relaxed)
    }

    /// Shows the tap a packet, if there is a tap.
    #[cold]
    pub(crate) fn packet(&self, packet: &TappedPacket<'_>) {
        let tap = self.tap.read().clone();
        let Some(tap) = tap else { return };
        WITHIN.set(true);
        let shown = catch_unwind(AssertUnwindSafe(|| tap.packet(packet)));
        WITHIN.set(false);
        if shown.is_err() {
            tracing::error!("the tap panicked: it is pulled");
            self.pull(&tap);
        }
    }

    /// Pulls a tap unless another has taken its place.
    fn pull(&self, tap: &Arc<dyn Tap>) {
        let mut slot = self.tap.write();
        if slot.as_ref().is_some_and(|now| Arc::ptr_eq(now, tap)) {
            *slot = None;
            self.plugged.store(false, Ordering::Release);
        }
    }
}

/// A packet that went through memory without an ICRC, with the one that it would have.
pub(crate) fn with_icrc(flow: &Flow, identification: u16, packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    // It fails only of packets that are shorter than an ICRC, which are shown as they are.
    let _ = icrc::append(flow, identification, &mut packet);
    packet
}

/// Whether this process has ever had a tap: where it has not, nothing asks [`WITHIN`], which takes a call in a shared library.
static EVER_PLUGGED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread is within a tap.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is within a tap.
#[inline]
pub(crate) fn is_within() -> bool {
    EVER_PLUGGED.load(Ordering::Relaxed) && WITHIN.get()
}
