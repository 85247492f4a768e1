//! When packets may go another way than those before.

use super::QueuePair;

impl QueuePair {
    /// Whether packets sent from now on may overtake earlier ones: nothing that a peer would miss is in flight.
    pub fn can_change_way(&self) -> bool {
        match self.service.reliable() {
            Some(halves) => halves.requester.under_way() == 0,
            // Without acknowledgements, earlier packets may still be on their way.
            None => !self.service.has_begun(),
        }
    }

    /// Makes an RC queue pair begin no request until nothing is in flight, so that it [can change](Self::can_change_way). What
    /// is begun is completed, and the peer is asked for acknowledgements. Has no effect without a local ACK timeout.
    pub fn wait_to_change_way(&mut self, waits: bool) {
        if let Some(halves) = self.service.reliable_mut() {
            halves.requester.changes_way = waits;
        }
    }

    /// Whether the queue pair has no acknowledgements, has a request, and has not begun one before.
    pub fn is_about_to_start(&self) -> bool {
        self.service.is_about_to_start()
    }
}
