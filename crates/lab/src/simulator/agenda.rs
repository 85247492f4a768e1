//! Upcoming tasks, ordered by time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use portolan_cm::{MembershipNumber, QueryNumber, ResolvedAddress};
use portolan_provider::cm::IdNumber;

use super::AgentKey;
use super::channels::Channel;
use super::packet::Datagram;
use super::port_group::Process;

/// Something that happens.
#[derive(Debug)]
pub(super) enum Task {
    /// A datagram reaches the address of a port group.
    Arrive {
        to: usize,
        datagram: Datagram,
    },
    /// A task of a machine. It is void if the machine has crashed since.
    OnHost {
        host: usize,
        boot: u32,
        task: HostTask,
    },
    StartConversation(usize),
    /// The programs of a conversation lose patience.
    GiveUp(usize),
    /// An ending whose time is fixed, independent of the conversation.
    End(usize),
    /// A region of a conversation is deregistered.
    Revoke(usize),
    CloseListener(usize),
    StartInquiry(usize),
    /// The asker destroys its id, answered or not.
    WithdrawInquiry(usize),
    CloseService(usize),
    StartMember(usize),
    Stall(usize),
    Crash(usize),
    Restart(usize),
    Cut(usize),
    Heal(usize),
}

/// A task of a machine's programs or of its tables.
#[derive(Debug)]
pub(super) enum HostTask {
    /// The thread of a channel takes an event.
    TakeEvent(Channel),
    /// The program moves an id to another channel.
    Migrate {
        key: AgentKey,
        to: Channel,
    },
    /// The coordinator forwarded a management datagram.
    TakeDatagram(Datagram),
    /// The process stands for election as coordinator, if there is none.
    StandForElection,
    /// The process registers its claims with the new coordinator.
    Register,
    /// This process is the coordinator and notices a member's death.
    SeeDeparture(Process),
    /// The coordinator has announced a death: no process has this block.
    TakeDeathNotice(u8),
    /// A process that has just started opens its listeners.
    Open,
    AnswerQuery {
        id: IdNumber,
        query: QueryNumber,
        answer: Result<ResolvedAddress, i32>,
    },
    /// The program answers the request behind an id.
    Answer(AgentKey),
    /// The sockets have joined a group or failed to. `name` is the program's name for the
    /// membership.
    AnswerJoin {
        name: AgentKey,
        membership: MembershipNumber,
        succeeds: bool,
        /// Whether the program leaves before it learns the result.
        leaves: bool,
    },
    /// The program joins one of its planned groups.
    Join {
        key: AgentKey,
        number: usize,
    },
    /// The program leaves a group.
    Leave(AgentKey),
    /// The program answers the question behind an id.
    Reply(AgentKey),
    Establish(AgentKey),
    PostSends(AgentKey),
    PostReceives(AgentKey),
    Disconnect(AgentKey),
    Destroy(AgentKey),
    /// A queue pair continues sending.
    Send(u32),
    /// The program polls its completion queues.
    Poll(u32),
}

/// Tasks by time. Tasks at the same time run in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<Entry>>,
    added: u64,
}

#[derive(Debug)]
struct Entry {
    at: Duration,
    number: u64,
    task: Task,
}

impl Agenda {
    pub(super) fn add(&mut self, at: Duration, task: Task) {
        self.added += 1;
        self.heap.push(Reverse(Entry {
            at,
            number: self.added,
            task,
        }));
    }

    pub(super) fn next_at(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    pub(super) fn pop(&mut self) -> Option<Task> {
        self.heap.pop().map(|Reverse(entry)| entry.task)
    }
}

impl Entry {
    fn key(&self) -> (Duration, u64) {
        (self.at, self.number)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}
