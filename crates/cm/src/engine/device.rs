//! Events of the devices and links that ids use: removed devices, and hardware address changes of the local interface
//! or the next hop.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use portolan_provider::cm::{EventType, IdNumber};
use portolan_provider::error::errno::ETIMEDOUT;

use crate::counters::DropReason;
use crate::engine::Cm;
use crate::hash::{Keyed, Map};
use crate::state::Event;
use crate::types::Neighbour;

/// The ids that send to each neighbour, by interface and address (`id_table` of Linux's cma).
#[derive(Debug)]
pub(crate) struct Neighbours {
    map: Map<(u32, IpAddr), BTreeSet<IdNumber>>,
}

impl Neighbours {
    pub(crate) fn new(hash: Keyed) -> Self {
        Self {
            map: Map::with_hasher(hash),
        }
    }

    /// Number of neighbours.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    fn insert(&mut self, neighbour: &Neighbour, number: IdNumber) {
        self.map.entry(neighbour.key()).or_default().insert(number);
    }

    fn remove(&mut self, neighbour: &Neighbour, number: IdNumber) {
        let key = neighbour.key();
        let Some(ids) = self.map.get_mut(&key) else {
            return;
        };
        ids.remove(&number);
        if ids.is_empty() {
            self.map.remove(&key);
        }
    }
}

impl Neighbour {
    fn key(&self) -> (u32, IpAddr) {
        (self.interface_index, self.address.to_canonical())
    }
}

impl Cm {
    /// A device was removed. Every id bound to it gets `DeviceRemoval` and can only be destroyed. Peers get no message,
    /// because they cannot be reached. Listeners on a wildcard address are bound to no device and continue. For each
    /// group that it had joined, an id first gets `MulticastError`. This scans all ids. The events, one for each id and
    /// one for each of its groups, are queued even if the queue is full.
    pub fn device_removed(&mut self, now: Duration, device_index: u32) {
        for number in self.bound_to(device_index) {
            let Some(id) = self.ids.get(number) else {
                continue;
            };
            let Some(next) = id.state.after(Event::DeviceRemoved) else {
                continue;
            };
            // Its children stay until it is destroyed, like those whose requests were not taken. No id can listen there
            // again.
            self.listeners.remove(now, id, number, now);
            self.forget_neighbour(number);
            self.enter(now, number, next);
            self.lose_groups(number);
            self.report_bare(number, EventType::DeviceRemoval, 0);
        }
    }

    /// The hardware address of a device's interface changed. Every id bound to the device gets `AddrChange`. It is only
    /// a hint and changes nothing. Linux raises it when a bond fails over. If the event queue is full, the hint is
    /// dropped and counted.
    pub fn hardware_address_changed(&mut self, device_index: u32) {
        for number in self.bound_to(device_index) {
            self.hint(
                number,
                Event::HardwareAddressChanged,
                EventType::AddrChange,
                0,
            );
        }
    }

    /// The hardware address of a neighbour changed. Every id that connects or is connected through it, and knew another
    /// address, gets `Unreachable` with `ETIMEDOUT` (`cma_netevent_callback`, Linux 6.0), once for each change. This is
    /// a hint, too: a connection stays if the peer is still the same.
    pub fn neighbour_changed(&mut self, neighbour: &Neighbour) {
        let ids = self.neighbours.map.get(&neighbour.key());
        let ids: Vec<IdNumber> = ids.into_iter().flatten().copied().collect();
        for number in ids {
            let known = self
                .ids
                .get_mut(number)
                .and_then(|id| id.neighbour.as_mut());
            let Some(known) = known else { continue };
            let before = core::mem::replace(&mut known.link_address, neighbour.link_address);
            if before != neighbour.link_address {
                let (event, status) = (EventType::Unreachable, -ETIMEDOUT);
                self.hint(number, Event::NeighbourChanged, event, status);
            }
        }
    }

    /// Reports an event that does not change the id's state.
    fn hint(&mut self, number: IdNumber, event: Event, told_as: EventType, status: i32) {
        let state = self.ids.get(number).map(|id| id.state);
        if state.and_then(|state| state.after(event)).is_none() {
            return;
        }
        match self.full() {
            Some(DropReason::EventsFull) => self.counters.drop(DropReason::EventsFull),
            _ => self.report_bare(number, told_as, status),
        }
    }

    fn bound_to(&self, device_index: u32) -> Vec<IdNumber> {
        let bound = self.ids.iter().filter(|(_, id)| {
            id.device
                .is_some_and(|device| device.device_index == device_index)
        });
        bound.map(|(number, _)| number).collect()
    }

    /// Starts reporting changes of its neighbour to the id (`cma_add_id_to_tree`).
    pub(crate) fn follow_neighbour(&mut self, number: IdNumber) {
        if let Some(neighbour) = self.ids.get(number).and_then(|id| id.neighbour.as_ref()) {
            self.neighbours.insert(neighbour, number);
        }
    }

    /// Stops reporting them.
    pub(crate) fn forget_neighbour(&mut self, number: IdNumber) {
        let neighbour = self.ids.get_mut(number).and_then(|id| id.neighbour.take());
        if let Some(neighbour) = neighbour {
            self.neighbours.remove(&neighbour, number);
        }
    }
}
