//! A tap on the device: every packet sent and every packet taken, for captures.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

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

/// Sees every packet. Called on the data path with a queue pair locked: it must not call back into
/// the stack, and should be quick.
pub trait Tap: Send + Sync + std::fmt::Debug {
    /// One packet.
    fn packet(&self, packet: &TappedPacket<'_>);
}

/// Where the tap is plugged in; costs one load while there is none.
#[derive(Debug, Default)]
pub(super) struct TapSocket {
    plugged: AtomicBool,
    tap: RwLock<Option<Arc<dyn Tap>>>,
}

impl TapSocket {
    /// Plugs a tap in, or pulls it.
    pub(super) fn set(&self, tap: Option<Arc<dyn Tap>>) {
        let mut slot = self.tap.write().unwrap_or_else(PoisonError::into_inner);
        self.plugged.store(tap.is_some(), Ordering::Release);
        *slot = tap;
    }

    /// Whether a tap is plugged in.
    #[inline]
    pub(super) fn is_plugged(&self) -> bool {
        self.plugged.load(Ordering::Relaxed)
    }

    /// Shows the tap a packet, if there is a tap.
    #[cold]
    pub(super) fn packet(&self, packet: &TappedPacket<'_>) {
        let tap = self
            .tap
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(tap) = tap {
            tap.packet(packet);
        }
    }
}
