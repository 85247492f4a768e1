//! Half-open connections in the order in which they came, and by their sources.

use alloc::collections::{BTreeMap, BTreeSet};
use core::cmp::Reverse;
use core::time::Duration;

use portolan_provider::cm::IdNumber;

use crate::types::Host;

/// Requests in the order in which they came, and by the host that they came from. Each operation takes
/// a logarithm of their number.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    next_ticket: u64,
    by_ticket: BTreeMap<u64, Entry>,
    tickets: BTreeMap<IdNumber, u64>,
    by_source: BTreeMap<Host, BTreeSet<u64>>,
    /// The sources by how many requests they have; among equals the one with the oldest is last.
    by_weight: BTreeSet<(usize, Reverse<u64>, Host)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    number: IdNumber,
    source: Host,
    since: Duration,
}

/// A request that may be displaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) number: IdNumber,
    pub(crate) source: Host,
    pub(crate) since: Duration,
    /// How many requests its source has.
    pub(crate) weight: usize,
}

impl Requests {
    pub(crate) fn len(&self) -> usize {
        self.by_ticket.len()
    }

    /// The ids, the oldest first.
    pub(crate) fn ids(&self) -> impl Iterator<Item = IdNumber> {
        self.by_ticket.values().map(|entry| entry.number)
    }

    pub(crate) fn insert(&mut self, number: IdNumber, source: Host, now: Duration) {
        let (ticket, since) = (self.next_ticket, now);
        self.next_ticket += 1;
        let entry = Entry {
            number,
            source,
            since,
        };
        self.by_ticket.insert(ticket, entry);
        self.tickets.insert(number, ticket);
        self.reweigh(source, |tickets| tickets.insert(ticket));
    }

    pub(crate) fn remove(&mut self, number: IdNumber) {
        let ticket = self.tickets.remove(&number);
        let Some((ticket, entry)) =
            ticket.and_then(|ticket| Some((ticket, self.by_ticket.remove(&ticket)?)))
        else {
            return;
        };
        self.reweigh(entry.source, |tickets| tickets.remove(&ticket));
    }

    /// How many requests a source has.
    pub(crate) fn weight(&self, source: Host) -> usize {
        self.by_source.get(&source).map_or(0, BTreeSet::len)
    }

    /// The oldest request of all.
    pub(crate) fn oldest(&self) -> Option<Candidate> {
        self.candidate(*self.by_ticket.first_key_value()?.0)
    }

    /// The oldest request of the source that has most.
    pub(crate) fn oldest_of_heaviest(&self) -> Option<Candidate> {
        let (_, Reverse(ticket), _) = self.by_weight.last()?;
        self.candidate(*ticket)
    }

    fn candidate(&self, ticket: u64) -> Option<Candidate> {
        let entry = self.by_ticket.get(&ticket)?;
        Some(Candidate {
            number: entry.number,
            source: entry.source,
            since: entry.since,
            weight: self.weight(entry.source),
        })
    }

    /// Changes what a source has, and its place among the others.
    fn reweigh(&mut self, source: Host, change: impl FnOnce(&mut BTreeSet<u64>) -> bool) {
        let tickets = self.by_source.entry(source).or_default();
        let place = |tickets: &BTreeSet<u64>| {
            let oldest = *tickets.first()?;
            Some((tickets.len(), Reverse(oldest), source))
        };
        if let Some(before) = place(tickets) {
            self.by_weight.remove(&before);
        }
        change(tickets);
        match place(tickets) {
            Some(after) => {
                self.by_weight.insert(after);
            }
            None => {
                self.by_source.remove(&source);
            }
        }
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
    fn the_heaviest_source_is_known_whatever_comes_and_goes() {
        let mut requests = Requests::default();
        // Three of the first source, two of the second, one of the third.
        for (number, source) in (0..).zip([1, 2, 1, 3, 2, 1]) {
            requests.insert(IdNumber(number), host(source), Duration::ZERO);
        }
        let heaviest = |requests: &Requests| requests.oldest_of_heaviest().unwrap();
        let first = heaviest(&requests);
        assert_eq!((first.number, first.weight), (IdNumber(0), 3));
        requests.remove(IdNumber(0));
        // Equal now: the one whose request is the oldest.
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
        assert!(requests.tickets.is_empty());
    }
}
