//! The simulator: whole engines, connection manager and queue pairs together, on a virtual clock
//! and a network determined by a seed.
//!
//! One seed is one run. The `plan` draws everything from it: how many machines there are, which of
//! them share an address (as processes do), what they send to each other (over connections, as
//! datagrams, in multicast groups) and how bad the network is. The `world` executes the plan. The
//! `oracle` sees both ends of everything and stops the run at the first violation. A run depends on
//! no clock, no thread and no hash order, so a failed run fails again.
//!
//! ```text
//!   program ──▶ host: Cm, PortTable, QueuePair, CompletionQueue, MemoryTable
//!      ▲            │ packets, ICRC and all          ▲
//!      └── oracle ◀─┴─▶ network: delay, loss, copies, disorder, corruption, partitions
//! ```
//!
//! The simulator models what the engines leave to their host: the sockets that join groups
//! (`groups`), the channels in which events wait (`channels`), and the transport of claims and
//! datagrams between processes (`port_group`).
//!
//! Each run ends with an exchange of its own (`exchange`) for what conversations do not use:
//! atomics, unreliable connections, datagrams to groups, and receives shared by queue pairs of all
//! types. Then two programs use a stream (`streams`), and with every fourth seed a listener is
//! flooded with requests from strangers (`flood`).

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
mod one_host;
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
mod streams;
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
