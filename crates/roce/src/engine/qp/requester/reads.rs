//! Outstanding RDMA reads and atomics.

use alloc::collections::VecDeque;

/// One RDMA READ or ATOMIC request: the numbers of its response packets.
///
/// A read's work request is sent as several of these. A request keeps its bounds once sent. A retransmission may start
/// later, but the responder's record must contain the repeated range (Linux `duplicate_request`), and only the original
/// bounds guarantee that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadRequest {
    pub(super) first: u64,
    pub(super) end: u64,
}

/// Requests sent and not completely answered, oldest first; at most `max_rd_atomic`.
#[derive(Debug, Default)]
pub(super) struct Reads {
    requests: VecDeque<ReadRequest>,
}

impl Reads {
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn push(&mut self, request: ReadRequest) {
        self.requests.push_back(request);
    }

    pub(super) fn oldest(&self) -> Option<ReadRequest> {
        self.requests.front().copied()
    }

    /// The request that packet `number` answers. Linear in the few outstanding ones, and only called to retransmit.
    pub(super) fn containing(&self, number: u64) -> Option<ReadRequest> {
        let mut requests = self.requests.iter().copied();
        requests.find(|request| (request.first..request.end).contains(&number))
    }

    /// Removes the requests that are answered once all packets before `una` have arrived.
    pub(super) fn complete_to(&mut self, una: u64) {
        while self
            .requests
            .front()
            .is_some_and(|request| request.end <= una)
        {
            self.requests.pop_front();
        }
    }

    pub(super) fn clear(&mut self) {
        self.requests.clear();
    }
}
