//! A cache of the administrator's answers.
//!
//! A path record carries no expiry time (its packet lifetime is about packets), so the cache sets
//! its own. An event that reports a change of the subnet empties the cache at once.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use portolan_wire::sa::Status;

use crate::engine::{Answer, Request};

/// Limits of the cache: age, number and bytes of answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// How long to keep a record or table.
    pub found_for: Duration,
    /// How long to keep a negative answer: an error status or an empty table.
    pub none_for: Duration,
    /// Maximum number of answers; a new one evicts the oldest.
    pub answers_max: usize,
    /// Maximum size of all answers together, in bytes.
    pub bytes_max: usize,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            found_for: Duration::from_secs(60),
            none_for: Duration::from_secs(1),
            answers_max: 4096,
            bytes_max: 16 << 20,
        }
    }
}

/// A cached answer, or the status of a negative one.
pub(crate) type Kept = Result<Arc<Answer>, Status>;

#[derive(Debug)]
pub(crate) struct Cache {
    config: CacheConfig,
    entries: HashMap<Arc<Request>, Entry>,
    /// Entry numbers in the order of insertion. An entry that was replaced since is skipped.
    oldest_first: VecDeque<(u64, Arc<Request>)>,
    next: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    until: Duration,
    kept: Kept,
}

impl Cache {
    pub(crate) fn new(config: CacheConfig) -> Self {
        Self {
            config,
            entries: HashMap::new(),
            oldest_first: VecDeque::new(),
            next: 0,
            bytes: 0,
        }
    }

    pub(crate) fn find(&mut self, now: Duration, request: &Request) -> Option<Kept> {
        let entry = self.entries.get(request)?;
        if now < entry.until {
            return Some(entry.kept.clone());
        }
        self.remove(request);
        None
    }

    pub(crate) fn keep(&mut self, now: Duration, request: Request, kept: Kept) {
        let life = match says_none(&kept) {
            true => self.config.none_for,
            false => self.config.found_for,
        };
        let size = size(&kept);
        if life.is_zero() || self.config.answers_max == 0 || size > self.config.bytes_max {
            return;
        }
        self.remove(&request);
        while self.entries.len() >= self.config.answers_max
            || self.bytes + size > self.config.bytes_max
            || self.oldest_first.len() >= 2 * self.config.answers_max
        {
            let Some((number, oldest)) = self.oldest_first.pop_front() else {
                break;
            };
            if self
                .entries
                .get(&oldest)
                .is_some_and(|entry| entry.number == number)
            {
                self.remove(&oldest);
            }
        }
        let (number, request) = (self.next, Arc::new(request));
        self.next += 1;
        self.bytes += size;
        self.oldest_first.push_back((number, request.clone()));
        let until = now.saturating_add(life);
        self.entries.insert(
            request,
            Entry {
                number,
                until,
                kept,
            },
        );
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.oldest_first.clear();
        self.bytes = 0;
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    fn remove(&mut self, request: &Request) {
        if let Some(entry) = self.entries.remove(request) {
            self.bytes -= size(&entry.kept);
        }
    }
}

/// Returns whether the answer is negative. OpenSM reports "no records" by an empty table without an
/// error status.
fn says_none(kept: &Kept) -> bool {
    match kept.as_deref() {
        Ok(Answer::Table { data, .. }) => data.is_empty(),
        Ok(Answer::Record(_)) => false,
        Err(_) => true,
    }
}

fn size(kept: &Kept) -> usize {
    match kept.as_deref() {
        Ok(Answer::Table { data, .. }) => data.len(),
        Ok(Answer::Record(record)) => record.len(),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use portolan_wire::sa::{PathRecord, Query};

    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn request(lid: u16) -> Request {
        Request::get(&Query::<PathRecord>::new().dlid(lid)).expect("fits")
    }

    fn record() -> Kept {
        Ok(Arc::new(Answer::Record(Box::new([0; 200]))))
    }

    #[test]
    fn results_are_cached_for_their_time_and_missing_results_for_a_short_time() {
        let mut cache = Cache::new(CacheConfig::default());
        cache.keep(NOW, request(1), record());
        cache.keep(NOW, request(2), Err(Status::NO_RECORDS));
        assert_eq!(cache.find(NOW, &request(3)), None);
        let soon = NOW + Duration::from_millis(999);
        assert_eq!(cache.find(soon, &request(2)), Some(Err(Status::NO_RECORDS)));
        assert_eq!(cache.find(NOW + Duration::from_secs(1), &request(2)), None);
        assert_eq!(
            cache.find(NOW + Duration::from_secs(59), &request(1)),
            Some(record())
        );
        assert_eq!(cache.find(NOW + Duration::from_secs(60), &request(1)), None);
        assert_eq!((cache.len(), cache.bytes), (0, 0));
    }

    #[test]
    fn an_empty_table_means_no_result_and_is_cached_for_the_same_short_time() {
        let mut cache = Cache::new(CacheConfig::default());
        let table = |data| Ok(Arc::new(Answer::Table { data, stride: 64 }));
        cache.keep(NOW, request(1), table(vec![0; 64]));
        cache.keep(NOW, request(2), table(Vec::new()));
        let soon = NOW + Duration::from_millis(999);
        assert_eq!(cache.find(soon, &request(2)), Some(table(Vec::new())));
        let later = NOW + Duration::from_secs(1);
        assert_eq!(cache.find(later, &request(2)), None);
        assert_eq!(cache.find(later, &request(1)), Some(table(vec![0; 64])));
    }

    #[test]
    fn answers_may_be_cached_forever() {
        let config = CacheConfig {
            found_for: Duration::MAX,
            ..CacheConfig::default()
        };
        let mut cache = Cache::new(config);
        cache.keep(NOW, request(1), record());
        assert_eq!(cache.find(1000 * NOW, &request(1)), Some(record()));
    }

    #[test]
    fn the_oldest_make_room_and_the_order_stays_bounded_when_one_is_replaced_again_and_again() {
        let config = CacheConfig {
            answers_max: 3,
            ..CacheConfig::default()
        };
        let mut cache = Cache::new(config);
        for lid in 0..5 {
            cache.keep(NOW, request(lid), record());
        }
        let kept = |cache: &mut Cache| {
            (0..6)
                .filter(|lid| cache.find(NOW, &request(*lid)).is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(kept(&mut cache), [2, 3, 4]);
        for _ in 0..100 {
            cache.keep(NOW, request(4), record());
        }
        assert!(cache.oldest_first.len() <= 6);
        assert!(cache.find(NOW, &request(4)).is_some());
        cache.clear();
        assert_eq!((cache.len(), cache.bytes), (0, 0));
    }

    #[test]
    fn the_bytes_of_all_answers_are_bounded() {
        let config = CacheConfig {
            bytes_max: 500,
            ..CacheConfig::default()
        };
        let mut cache = Cache::new(config);
        for lid in 0..5 {
            cache.keep(NOW, request(lid), record());
        }
        assert_eq!((cache.len(), cache.bytes), (2, 400));
        let table = Answer::Table {
            data: vec![0; 501],
            stride: 1,
        };
        cache.keep(NOW, request(9), Ok(Arc::new(table)));
        assert_eq!(cache.find(NOW, &request(9)), None, "too large to keep");
    }
}
