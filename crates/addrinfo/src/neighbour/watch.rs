//! Watches of next hops for changes of their link-layer addresses, as a pure table: entries of the neighbour table come
//! in, watches to notify go out.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_provider::Cause;

use super::link_address::LinkAddress;
use super::pending::{Entry, NextHop};

/// Maximum number of watches of one resolver.
pub const WATCHES_MAX: usize = 65_536;

/// Callback with a next hop, its interface and its new address. It runs on the resolver's thread and should return
/// soon, because it delays lookups. It may call the resolver.
pub type Changed = Arc<dyn Fn(IpAddr, u32, LinkAddress) + Send + Sync>;

/// Every watch of a resolver.
#[derive(Default)]
pub(super) struct Watches {
    watched: HashMap<NextHop, BTreeMap<u64, Watcher>>,
    /// Number of watches.
    count: usize,
    next: u64,
    /// Next hops to query in the table.
    to_ask: Vec<NextHop>,
}

struct Watcher {
    known: LinkAddress,
    changed: Changed,
}

impl Watches {
    /// Adds a watch on the next hop for an address; returns its number.
    pub(super) fn add(
        &mut self,
        hop: NextHop,
        known: LinkAddress,
        changed: Changed,
    ) -> Result<u64, Cause> {
        if self.count >= WATCHES_MAX {
            return Err(Cause::LimitReached {
                what: "watched next hops",
                limit: WATCHES_MAX as u64,
            });
        }
        let number = self.next;
        self.next += 1;
        self.count += 1;
        let watcher = Watcher { known, changed };
        self.watched.entry(hop).or_default().insert(number, watcher);
        // The address may have changed since the caller learned it.
        self.to_ask.push(hop);
        Ok(number)
    }

    pub(super) fn remove(&mut self, hop: NextHop, number: u64) -> Option<impl Sized + use<>> {
        let watchers = self.watched.get_mut(&hop)?;
        let removed = watchers.remove(&number)?;
        self.count -= 1;
        if watchers.is_empty() {
            self.watched.remove(&hop);
        }
        Some(removed.changed)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }

    /// Handles a table entry of a next hop; returns the watches to notify.
    pub(super) fn handle_change(&mut self, hop: NextHop, entry: Entry) -> Vec<Changed> {
        let Some(address) = entry.address() else {
            return Vec::new();
        };
        let watchers = self.watched.get_mut(&hop).into_iter();
        let watchers = watchers.flat_map(BTreeMap::values_mut);
        let differing = watchers.filter(|watcher| watcher.known != address);
        let told = differing.map(|watcher| {
            watcher.known = address;
            Arc::clone(&watcher.changed)
        });
        told.collect()
    }

    /// Notifications were lost: queries all watched next hops.
    pub(super) fn handle_loss(&mut self) {
        self.to_ask = self.watched.keys().copied().collect();
    }

    /// The next hop to query in the table.
    pub(super) fn next_question(&mut self) -> Option<NextHop> {
        while let Some(hop) = self.to_ask.pop() {
            if self.watched.contains_key(&hop) {
                return Some(hop);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(last: u8) -> NextHop {
        NextHop {
            address: [192, 0, 2, last].into(),
            interface_index: 4,
        }
    }

    fn address(last: u8) -> LinkAddress {
        LinkAddress::new(&[2, 0, 0, 0, 0, last]).expect("six bytes")
    }

    fn nobody() -> Changed {
        Arc::new(|_, _, _| {})
    }

    #[test]
    fn a_watcher_gets_each_address_that_differs_from_the_one_it_knows() {
        let mut watches = Watches::default();
        let number = watches.add(hop(1), address(1), nobody()).expect("room");
        let mut told = |hop, entry| watches.handle_change(hop, entry).len();
        assert_eq!(told(hop(1), Entry::Valid(address(1))), 0, "known");
        assert_eq!(told(hop(2), Entry::Valid(address(2))), 0, "another hop");
        for entry in [Entry::Absent, Entry::Failed, Entry::Incomplete] {
            assert_eq!(told(hop(1), entry), 0, "{entry:?} is not an address");
        }
        assert_eq!(told(hop(1), Entry::Valid(address(2))), 1);
        assert_eq!(told(hop(1), Entry::Valid(address(2))), 0, "told before");
        assert_eq!(told(hop(1), Entry::Valid(address(1))), 1, "changed back");
        assert!(watches.remove(hop(1), number).is_some());
        assert!(watches.is_empty());
        let changed = watches.handle_change(hop(1), Entry::Valid(address(3)));
        assert!(changed.is_empty(), "no report after the watch ended");
    }

    #[test]
    fn the_table_is_queried_for_new_watches_and_after_losses_for_all() {
        let mut watches = Watches::default();
        let first = watches.add(hop(1), address(1), nobody()).expect("room");
        assert_eq!(watches.next_question(), Some(hop(1)));
        assert_eq!(watches.next_question(), None);
        watches.add(hop(2), address(2), nobody()).expect("room");
        watches.handle_loss();
        let _ = watches.remove(hop(1), first);
        assert_eq!(watches.next_question(), Some(hop(2)), "hop 1 has no watch");
        assert_eq!(watches.next_question(), None);
    }

    #[test]
    fn the_number_of_watches_is_bounded() {
        let mut watches = Watches::default();
        for _ in 0..WATCHES_MAX {
            watches.add(hop(1), address(1), nobody()).expect("room");
        }
        let refused = watches.add(hop(1), address(1), nobody());
        assert!(matches!(refused, Err(Cause::LimitReached { .. })));
        assert!(watches.remove(hop(1), 0).is_some());
        watches
            .add(hop(1), address(1), nobody())
            .expect("room again");
    }
}
