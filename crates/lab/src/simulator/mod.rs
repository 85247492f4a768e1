//! The simulator: whole engines, connection manager and queue pairs together, on a virtual clock and
//! a network that follows from a seed.
//!
//! One seed is one run. The `plan` draws from it how many machines there are and which of them share
//! an address, as processes do, what they say to each other (on connections, by datagrams, in multicast
//! groups) and how bad the network is; the `world` lets it happen; the `oracle`, which sees both
//! ends of everything, stops the run at the first thing that must not be. Nothing else enters a run:
//! no clock, no thread, no order that depends on a hash. So a run that failed fails again.
//!
//! ```text
//!   program ──▶ host: Cm, PortTable, QueuePair, CompletionQueue, MemoryTable
//!      ▲            │ packets, ICRC and all          ▲
//!      └── oracle ◀─┴─▶ network: delay, loss, copies, disorder, corruption, partitions
//! ```
//!
//! What the engines leave to others is modelled: the host's sockets that join groups (`groups`), the
//! channels that events wait in (`channels`), and what carries claims and datagrams between processes
//! (`port_group`).
//!
//! What conversations do not try has an exchange of its own at the end of each run (`exchange`): atomics,
//! unreliable connections, datagrams to groups and receives that queue pairs of all types share. So has a
//! listener that strangers flood with requests (`flood`).

mod agenda;
mod campaign;
mod channels;
mod content;
mod datagrams;
mod device;
mod drive;
mod exchange;
mod failure;
mod flood;
mod groups;
mod host;
pub mod library;
mod misfortune;
mod mutants;
mod network;
mod oracle;
mod packet;
mod plan;
mod port_group;
mod program;
mod ram;
mod report;
mod rng;
mod run;
mod sharing;
mod trace;
mod world;

pub use campaign::{Campaign, News, Summary, run_many};
pub use failure::{Failure, Violation};
pub use mutants::{Hunt, Mutant, SEEDS_TO_CATCH, check_mutants, hunt};
pub use plan::Class;
pub use report::Report;
pub use run::{TRACE_LINES, run_seed, trace_seed};

/// A program's name for an id of its own; never used twice in a run.
type AgentKey = u64;
