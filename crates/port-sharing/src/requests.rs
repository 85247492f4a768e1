//! This process's requests to the coordinator. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::config::REQUESTS_MAX;

/// Maximum number of requests at which one without a waiting thread may be added.
const UNAWAITED_MAX: usize = REQUESTS_MAX / 2;

/// Number of a request of this process; never reused.
pub(super) type RequestId = u64;

/// Requests whose answers were not taken.
#[derive(Debug, Default)]
pub(super) struct Requests {
    last_id: RequestId,
    table: BTreeMap<RequestId, Request>,
}

#[derive(Debug)]
struct Request {
    payload: Vec<u8>,
    state: RequestState,
    /// Whether a thread waits for the answer.
    awaited: bool,
}

#[derive(Debug)]
enum RequestState {
    /// Not sent; due at this time.
    Unsent(Instant),
    /// Sent to the coordinator.
    Sent,
    /// Answered.
    Answered(Vec<u8>),
}

impl Requests {
    /// Adds a request, to be sent at once. `None` if there are too many.
    pub(super) fn add(&mut self, payload: &[u8], now: Instant) -> Option<RequestId> {
        self.add_one(payload, now, true, REQUESTS_MAX)
    }

    /// Adds a request without a waiting thread; it is removed when answered. Such requests leave room for those with
    /// waiting threads.
    pub(super) fn add_unawaited(&mut self, payload: &[u8], now: Instant) -> Option<RequestId> {
        self.add_one(payload, now, false, UNAWAITED_MAX)
    }

    fn add_one(
        &mut self,
        payload: &[u8],
        now: Instant,
        awaited: bool,
        limit: usize,
    ) -> Option<RequestId> {
        if self.table.len() >= limit {
            return None;
        }
        self.last_id += 1;
        let state = RequestState::Unsent(now);
        self.table.insert(
            self.last_id,
            Request {
                payload: payload.to_vec(),
                state,
                awaited,
            },
        );
        Some(self.last_id)
    }

    /// Takes the requests to send now, in the order in which they were added, and marks them as sent. A postponed
    /// request holds back later ones, which may depend on it.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<(RequestId, Vec<u8>)> {
        let mut due = Vec::new();
        for (id, request) in &mut self.table {
            let RequestState::Unsent(at) = request.state else {
                continue;
            };
            if at > now {
                break;
            }
            request.state = RequestState::Sent;
            due.push((*id, request.payload.clone()));
        }
        due
    }

    /// The coordinator answered. `false` if no thread is waiting for the answer.
    pub(super) fn answered(&mut self, id: RequestId, response: Vec<u8>) -> bool {
        let Some(request) = self.table.get_mut(&id) else {
            return false;
        };
        if matches!(request.state, RequestState::Answered(_)) {
            return false;
        }
        if !request.awaited {
            self.table.remove(&id);
            return false;
        }
        request.state = RequestState::Answered(response);
        true
    }

    /// The coordinator asks for the request again later.
    pub(super) fn postponed(&mut self, id: RequestId, after: Duration, now: Instant) {
        if let Some(request) = self.table.get_mut(&id)
            && matches!(request.state, RequestState::Sent)
        {
            request.state = RequestState::Unsent(now + after);
        }
    }

    /// The coordinator was lost: all unanswered requests go to the next one.
    pub(super) fn coordinator_lost(&mut self, now: Instant) {
        for request in self.table.values_mut() {
            if matches!(request.state, RequestState::Sent) {
                request.state = RequestState::Unsent(now);
            }
        }
    }

    /// Takes the answer, if it has arrived.
    pub(super) fn take_answer(&mut self, id: RequestId) -> Option<Vec<u8>> {
        if !matches!(self.table.get(&id)?.state, RequestState::Answered(_)) {
            return None;
        }
        match self.table.remove(&id)?.state {
            RequestState::Answered(response) => Some(response),
            RequestState::Unsent(_) | RequestState::Sent => None,
        }
    }

    /// Its thread stopped waiting.
    pub(super) fn give_up(&mut self, id: RequestId) {
        self.table.remove(&id);
    }

    /// When the next request is due: the first one that is not sent.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let at = |request: &Request| match request.state {
            RequestState::Unsent(at) => Some(at),
            RequestState::Sent | RequestState::Answered(_) => None,
        };
        self.table.values().find_map(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_sent_once_and_answered_once() {
        let now = Instant::now();
        let mut requests = Requests::default();
        let id = requests.add(b"claim", now).unwrap();
        assert_eq!(requests.next_timeout(), Some(now));
        assert_eq!(requests.take_due(now), [(id, b"claim".to_vec())]);
        assert!(requests.take_due(now).is_empty());
        assert_eq!(requests.take_answer(id), None);
        assert!(requests.answered(id, b"yes".to_vec()));
        assert!(!requests.answered(id, b"no".to_vec()));
        assert_eq!(requests.take_answer(id), Some(b"yes".to_vec()));
        assert_eq!(requests.take_answer(id), None);
    }

    #[test]
    fn an_unanswered_request_goes_to_the_next_coordinator() {
        let now = Instant::now();
        let mut requests = Requests::default();
        let (first, second) = (
            requests.add(b"1", now).unwrap(),
            requests.add(b"2", now).unwrap(),
        );
        requests.take_due(now);
        requests.answered(first, Vec::new());
        requests.coordinator_lost(now);
        assert_eq!(requests.take_due(now), [(second, b"2".to_vec())]);
    }

    #[test]
    fn a_postponed_request_waits() {
        let now = Instant::now();
        let after = Duration::from_millis(5);
        let mut requests = Requests::default();
        let id = requests.add(b"1", now).unwrap();
        requests.take_due(now);
        requests.postponed(id, after, now);
        assert!(requests.take_due(now).is_empty());
        assert_eq!(requests.next_timeout(), Some(now + after));
        assert_eq!(requests.take_due(now + after).len(), 1);
    }

    #[test]
    fn a_postponed_request_is_sent_before_later_ones() {
        let now = Instant::now();
        let after = Duration::from_millis(5);
        let mut requests = Requests::default();
        let release = requests.add_unawaited(b"release", now).unwrap();
        requests.take_due(now);
        requests.postponed(release, after, now);
        let claim = requests.add(b"claim", now).unwrap();
        assert!(requests.take_due(now).is_empty());
        assert_eq!(requests.next_timeout(), Some(now + after));
        let both = [(release, b"release".to_vec()), (claim, b"claim".to_vec())];
        assert_eq!(requests.take_due(now + after), both);
        assert_eq!(requests.next_timeout(), None);
    }

    #[test]
    fn a_request_without_a_waiter_is_sent_until_it_is_answered() {
        let now = Instant::now();
        let mut requests = Requests::default();
        let id = requests.add_unawaited(b"release", now).unwrap();
        assert_eq!(requests.take_due(now), [(id, b"release".to_vec())]);
        requests.coordinator_lost(now);
        assert_eq!(requests.take_due(now), [(id, b"release".to_vec())]);
        assert!(!requests.answered(id, Vec::new()), "no thread waits");
        assert!(requests.table.is_empty());
    }

    #[test]
    fn the_number_of_requests_is_bounded_and_giving_up_makes_room() {
        let now = Instant::now();
        let mut requests = Requests::default();
        let ids: Vec<_> = (0..REQUESTS_MAX)
            .map(|_| requests.add(b"", now).unwrap())
            .collect();
        assert_eq!(requests.add(b"", now), None);
        requests.give_up(ids[0]);
        assert!(requests.add(b"", now).is_some());
        assert!(
            !requests.answered(ids[0], Vec::new()),
            "an answer without a waiting thread"
        );
    }

    #[test]
    fn requests_without_a_waiter_leave_room_for_others() {
        let now = Instant::now();
        let mut requests = Requests::default();
        while requests.add_unawaited(b"release", now).is_some() {}
        assert_eq!(requests.table.len(), UNAWAITED_MAX);
        assert!(requests.add(b"claim", now).is_some());
    }
}
