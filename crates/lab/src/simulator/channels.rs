//! The event channels of a process: queues of events, and the migration of ids between them.
//!
//! The engine has no channels; this models the layer above it. The rules:
//!
//! - Events of an id are taken once each, in the order of their arrival, also while the id
//!   migrates.
//! - Waiting events are dropped when their id or membership is destroyed.
//!
//! Each channel has its own thread, so events of different ids overtake each other.

use std::collections::{BTreeMap, VecDeque};

use portolan_provider::cm::{CmEvent, EventType, IdNumber};

use super::failure::{Violation, ensure};
use super::library::{Mutant, is_planted};

/// Channels of a process.
pub(super) const CHANNELS: usize = 3;

/// A channel, as an index.
pub(super) type Channel = usize;

#[derive(Debug, Default)]
pub(super) struct Channels {
    queues: [VecDeque<Waiting>; CHANNELS],
    /// Channels of ids that are not on the first channel.
    places: BTreeMap<IdNumber, Channel>,
    counts: BTreeMap<Source, Counts>,
}

/// A waiting event and its number among the events of its source.
#[derive(Debug)]
struct Waiting {
    event: CmEvent,
    number: u64,
}

/// A source of events. Events of one source keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Id(IdNumber),
    Membership(u64),
}

impl Source {
    fn of(event: &CmEvent) -> Self {
        if is_of_group(event) {
            Self::Membership(event.uid.0)
        } else {
            Self::Id(event.id)
        }
    }
}

/// Events of a source, counted since its creation.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    queued: u64,
    taken: u64,
}

/// Whether the event belongs to a membership (named by its `uid`) and not to the id.
pub(super) fn is_of_group(event: &CmEvent) -> bool {
    use EventType::{MulticastError, MulticastJoin};
    matches!(event.event, MulticastJoin | MulticastError)
}

impl Channels {
    /// Queues an event on the channel of `id`: the event's own id, or the listener for a request.
    /// The id of a request starts on the listener's channel.
    pub(super) fn push(&mut self, id: IdNumber, event: CmEvent) -> Channel {
        let channel = self.channel_of(id);
        if event.id != id {
            self.places.insert(event.id, channel);
        }
        let counts = self.counts.entry(Source::of(&event)).or_default();
        counts.queued += 1;
        let number = counts.queued;
        self.queues[channel].push_back(Waiting { event, number });
        channel
    }

    /// Takes the next event of a channel and checks that events of its source stay in order.
    pub(super) fn take(&mut self, channel: Channel) -> Result<Option<CmEvent>, Violation> {
        let Some(Waiting { event, number }) = self.queues[channel].pop_front() else {
            return Ok(None);
        };
        let counts = self.counts.entry(Source::of(&event)).or_default();
        ensure!(
            number == counts.taken + 1,
            "{} of {} is number {number}, but {} were taken",
            event.event,
            event.id,
            counts.taken
        );
        counts.taken = number;
        let place = self.channel_of(event.id);
        ensure!(
            place == channel,
            "{} of {} is taken from channel {channel}, but the id is on {place}",
            event.event,
            event.id
        );
        Ok(Some(event))
    }

    /// Moves an id and its waiting events to another channel. Returns the number of moved events.
    pub(super) fn migrate(
        &mut self,
        id: IdNumber,
        to: Channel,
        belongs: impl Fn(&CmEvent) -> bool,
    ) -> usize {
        let from = self.channel_of(id);
        if from == to {
            return 0;
        }
        self.places.insert(id, to);
        let waiting = std::mem::take(&mut self.queues[from]);
        let moves = |event: &CmEvent| {
            let is_request = event.event == EventType::ConnectRequest;
            let is_left = is_planted(Mutant::EventsLeftBehind)
                || is_request && is_planted(Mutant::RequestsLeftBehind);
            belongs(event) && !is_left
        };
        let (moved, kept): (VecDeque<_>, _) =
            waiting.into_iter().partition(|one| moves(&one.event));
        if is_planted(Mutant::RequestsLeftBehind) {
            let requests = kept.iter().filter(|one| belongs(&one.event));
            self.places.extend(requests.map(|one| (one.event.id, to)));
        }
        self.queues[from] = kept;
        for one in &moved {
            // The id of a request follows the request.
            self.places.insert(one.event.id, to);
        }
        let count = moved.len();
        self.queues[to].extend(moved);
        count
    }

    /// Drops waiting events whose id or membership is gone.
    pub(super) fn purge(&mut self, is_gone: impl Fn(&CmEvent) -> bool) {
        for queue in &mut self.queues {
            for one in queue.iter().filter(|one| is_gone(&one.event)) {
                self.counts.remove(&Source::of(&one.event));
                if !is_of_group(&one.event) {
                    self.places.remove(&one.event.id);
                }
            }
            queue.retain(|one| !is_gone(&one.event));
        }
    }

    /// Forgets an id. Its number may be reused.
    pub(super) fn forget(&mut self, id: IdNumber) {
        self.places.remove(&id);
        self.counts.remove(&Source::Id(id));
    }

    /// Forgets a membership.
    pub(super) fn forget_membership(&mut self, name: u64) {
        self.counts.remove(&Source::Membership(name));
    }

    pub(super) fn waiting(&self) -> impl Iterator<Item = &CmEvent> {
        self.queues.iter().flatten().map(|one| &one.event)
    }

    /// Number of entries in all tables.
    pub(super) fn len(&self) -> usize {
        self.waiting().count() + self.places.len() + self.counts.len()
    }

    pub(super) fn channel_of(&self, id: IdNumber) -> Channel {
        self.places.get(&id).copied().unwrap_or_default()
    }
}
