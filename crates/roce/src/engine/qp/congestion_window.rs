//! The window: limits the bytes in flight.

use crate::engine::FlowConfig;
use crate::engine::mutant::{Mutant, is_planted};

/// A window in bytes, as in TCP (RFC 5681) and for the same reason: the capacity of the path and of the peer's socket
/// buffer is unknown, and only packet loss shows it. The window doubles each round trip until the first loss, then
/// grows by one packet each round trip. A loss halves it, a timeout resets it to its minimum.
#[derive(Debug)]
pub(super) struct CongestionWindow {
    size: u32,
    /// Window size at which doubling ends.
    threshold: u32,
    min: u32,
    max: u32,
    /// Acknowledged bytes not yet turned into growth.
    credit: u32,
    /// Losses of packets numbered below this belong to one event, which shrinks the window only once.
    recovery_end: u64,
}

impl CongestionWindow {
    pub(super) fn new(flow: &FlowConfig) -> Self {
        let max = flow.window_max_bytes.max(1);
        let min = flow.window_min_bytes.clamp(1, max);
        Self {
            size: flow.window_initial_bytes.clamp(min, max),
            threshold: max,
            min,
            max,
            credit: 0,
            recovery_end: 0,
        }
    }

    pub(super) fn bytes(&self) -> u32 {
        self.size
    }

    /// Bytes that may be sent in addition to those in flight. An empty window always has room for one packet.
    pub(super) fn room(&self, in_flight: u64, mtu: u32) -> u64 {
        if is_planted(Mutant::WindowIgnored) {
            return u32::MAX.into();
        }
        if in_flight == 0 {
            u64::from(self.size.max(mtu))
        } else {
            u64::from(self.size).saturating_sub(in_flight)
        }
    }

    /// `acked` bytes were acknowledged, of `in_flight` bytes in flight. A window that was not full does not grow,
    /// because that proves nothing.
    pub(super) fn on_ack(&mut self, acked: u64, in_flight: u64, mtu: u32) {
        if in_flight < u64::from(self.size / 2) {
            return;
        }
        let acked = u32::try_from(acked).unwrap_or(u32::MAX);
        if self.size < self.threshold {
            self.size = self.size.saturating_add(acked).min(self.max);
            return;
        }
        self.credit = self.credit.saturating_add(acked);
        if self.credit >= self.size {
            self.credit = 0;
            self.size = self.size.saturating_add(mtu).min(self.max);
        }
    }

    /// The packet numbered `lost` was lost; `next` is the next number to be sent for the first time.
    pub(super) fn on_loss(&mut self, lost: u64, next: u64) {
        if lost >= self.recovery_end {
            self.recovery_end = next;
            self.threshold = (self.size / 2).max(self.min);
            self.size = self.threshold;
            self.credit = 0;
        }
    }

    /// No answer arrived in time.
    pub(super) fn on_timeout(&mut self, next: u64) {
        self.on_loss(self.recovery_end, next);
        self.size = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u32 = 1024;

    fn window() -> CongestionWindow {
        CongestionWindow::new(&FlowConfig::default())
    }

    fn full(window: &CongestionWindow) -> u64 {
        u64::from(window.bytes())
    }

    #[test]
    fn it_doubles_each_round_trip_until_its_maximum() {
        let mut window = window();
        let mut sizes = alloc::vec![window.bytes()];
        for _ in 0..3 {
            window.on_ack(full(&window), full(&window), MTU);
            sizes.push(window.bytes());
        }
        let kib: alloc::vec::Vec<u32> = sizes.iter().map(|size| size >> 10).collect();
        assert_eq!(kib, [64, 128, 256, 256]);
    }

    #[test]
    fn several_losses_of_one_flight_halve_it_once() {
        let mut window = window();
        window.on_loss(3, 50);
        window.on_loss(10, 60);
        assert_eq!(window.bytes(), 32 << 10);
        window.on_loss(50, 100);
        assert_eq!(window.bytes(), 16 << 10);
    }

    #[test]
    fn after_a_loss_it_grows_by_a_packet_each_round_trip() {
        let mut window = window();
        window.on_loss(0, 10);
        window.on_ack(full(&window), full(&window), MTU);
        assert_eq!(window.bytes(), (32 << 10) + MTU);
    }

    #[test]
    fn it_never_falls_below_its_minimum_and_always_lets_one_packet_through() {
        let mut window = window();
        for next in 1..100 {
            window.on_timeout(next);
        }
        assert_eq!(window.bytes(), FlowConfig::default().window_min_bytes);
        assert!(window.room(0, 1 << 20) >= 1 << 20);
        assert_eq!(window.room(u64::MAX, MTU), 0);
    }

    #[test]
    fn a_window_that_was_not_in_use_does_not_grow() {
        let mut window = window();
        for _ in 0..1000 {
            window.on_ack(100, 100, MTU);
        }
        assert_eq!(window.bytes(), 64 << 10);
    }
}
