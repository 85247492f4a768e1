//! Half-open connections, in order of arrival and by source.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use core::cmp::Reverse;
use core::time::Duration;

use portolan_provider::cm::IdNumber;

use crate::hash::NumberMap;
use crate::types::Host;

/// Requests in order of arrival and by source host. An operation takes O(log n) time on average, where n is the number
/// of hosts.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    next_ticket: u64,
    entries: NumberMap<IdNumber, Entry>,
    arrivals: Arrivals,
    by_source: BTreeMap<Host, Arrivals>,
    /// The sources by number of requests. Among equals, the source with the oldest request is last.
    by_weight: BTreeSet<(usize, Reverse<Ticket>, Host)>,
}

/// Number of a request in order of arrival.
type Ticket = u64;

#[derive(Clone, Copy, Debug)]
struct Entry {
    ticket: Ticket,
    source: Host,
    since: Duration,
}

/// A request that may be displaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) number: IdNumber,
    pub(crate) source: Host,
    pub(crate) since: Duration,
    /// Number of requests of its source.
    pub(crate) weight: usize,
}

/// Requests in order of arrival. Removed entries stay until they reach the front or become too many.
#[derive(Debug, Default)]
struct Arrivals {
    queue: VecDeque<(Ticket, IdNumber)>,
    /// Number of entries that are not removed. The first entry, if any, is one of them.
    live: usize,
}

impl Arrivals {
    /// Removed entries are purged when they outnumber live ones by this many.
    const SLACK: usize = 16;

    fn push(&mut self, ticket: Ticket, number: IdNumber) {
        self.queue.push_back((ticket, number));
        self.live += 1;
    }

    /// Records that an entry was removed.
    fn forget_one(&mut self, entries: &NumberMap<IdNumber, Entry>) {
        self.live -= 1;
        let is_live = |&(ticket, number): &(Ticket, IdNumber)| {
            entries
                .get(&number)
                .is_some_and(|entry| entry.ticket == ticket)
        };
        if self.queue.len() > 2 * self.live + Self::SLACK {
            self.queue.retain(is_live);
        }
        while self.queue.front().is_some_and(|first| !is_live(first)) {
            self.queue.pop_front();
        }
    }

    fn oldest(&self) -> Option<(Ticket, IdNumber)> {
        self.queue.front().copied()
    }

    /// Position of its source among the sources.
    fn place(&self, source: Host) -> Option<(usize, Reverse<Ticket>, Host)> {
        let (oldest, _) = self.oldest()?;
        Some((self.live, Reverse(oldest), source))
    }
}

impl Requests {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The ids, the oldest first.
    pub(crate) fn ids(&self) -> impl Iterator<Item = IdNumber> {
        let arrivals = self.arrivals.queue.iter();
        arrivals.filter_map(|(ticket, number)| {
            let entry = self.entries.get(number)?;
            (entry.ticket == *ticket).then_some(*number)
        })
    }

    pub(crate) fn insert(&mut self, number: IdNumber, source: Host, now: Duration) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let entry = Entry {
            ticket,
            source,
            since: now,
        };
        self.entries.insert(number, entry);
        self.arrivals.push(ticket, number);
        let of_source = self.by_source.entry(source).or_default();
        if let Some(before) = of_source.place(source) {
            self.by_weight.remove(&before);
        }
        of_source.push(ticket, number);
        self.by_weight.extend(of_source.place(source));
    }

    pub(crate) fn remove(&mut self, number: IdNumber) {
        let Some(entry) = self.entries.remove(&number) else {
            return;
        };
        self.arrivals.forget_one(&self.entries);
        let source = entry.source;
        let Some(of_source) = self.by_source.get_mut(&source) else {
            return;
        };
        if let Some(before) = of_source.place(source) {
            self.by_weight.remove(&before);
        }
        of_source.forget_one(&self.entries);
        match of_source.place(source) {
            Some(after) => {
                self.by_weight.insert(after);
            }
            None => {
                self.by_source.remove(&source);
            }
        }
    }

    /// Number of requests of a source.
    pub(crate) fn weight(&self, source: Host) -> usize {
        self.by_source
            .get(&source)
            .map_or(0, |arrivals| arrivals.live)
    }

    /// The oldest request of all.
    pub(crate) fn oldest(&self) -> Option<Candidate> {
        self.candidate(&self.arrivals)
    }

    /// The oldest request of the source with the most requests.
    pub(crate) fn oldest_of_heaviest(&self) -> Option<Candidate> {
        let (_, _, source) = self.by_weight.last()?;
        self.candidate(self.by_source.get(source)?)
    }

    fn candidate(&self, arrivals: &Arrivals) -> Option<Candidate> {
        let (_, number) = arrivals.oldest()?;
        let entry = self.entries.get(&number)?;
        Some(Candidate {
            number,
            source: entry.source,
            since: entry.since,
            weight: self.weight(entry.source),
        })
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;

    fn host(number: u8) -> Host {
        Host::Ip(IpAddr::from([10, 0, 0, number]))
    }

    #[test]
    fn the_heaviest_source_is_known_as_requests_come_and_go() {
        let mut requests = Requests::default();
        // Three requests of the first source, two of the second, one of the third.
        for (number, source) in (0..).zip([1, 2, 1, 3, 2, 1]) {
            requests.insert(IdNumber(number), host(source), Duration::ZERO);
        }
        let heaviest = |requests: &Requests| requests.oldest_of_heaviest().unwrap();
        let first = heaviest(&requests);
        assert_eq!((first.number, first.weight), (IdNumber(0), 3));
        requests.remove(IdNumber(0));
        // Now equal, so the source with the oldest request counts.
        assert_eq!(heaviest(&requests).number, IdNumber(1));
        requests.remove(IdNumber(1));
        assert_eq!(heaviest(&requests).number, IdNumber(2));
        assert_eq!(requests.weight(host(2)), 1);
        for number in 2..6 {
            requests.remove(IdNumber(number));
            requests.remove(IdNumber(number));
        }
        assert_eq!(requests.len(), 0);
        assert!(requests.by_source.is_empty() && requests.by_weight.is_empty());
        assert!(requests.arrivals.queue.is_empty());
    }

    #[test]
    fn removed_entries_are_forgotten_even_after_one_that_stays() {
        let mut requests = Requests::default();
        requests.insert(IdNumber(0), host(1), Duration::ZERO);
        for number in 1..10_000 {
            requests.insert(IdNumber(number), host(1), Duration::ZERO);
            requests.remove(IdNumber(number));
            assert!(requests.arrivals.queue.len() <= 2 + Arrivals::SLACK);
        }
        requests.insert(IdNumber(1), host(2), Duration::ZERO);
        assert!(requests.ids().eq([IdNumber(0), IdNumber(1)]));
        assert_eq!(requests.oldest().unwrap().number, IdNumber(0));
        requests.remove(IdNumber(0));
        assert_eq!(requests.oldest().unwrap().number, IdNumber(1));
        assert_eq!(requests.oldest_of_heaviest().unwrap().source, host(2));
    }
}
