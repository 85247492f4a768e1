//! The software device: UDP, threads, locks and memory around the [engine](crate::engine).
//!
//! One [`Stack`] per process holds everything: a device for each network interface that has an
//! address, the queue pairs of all of them, and the sockets. Packets are RoCEv2 on UDP port 4791,
//! which the processes of a host share through a [port group](portolan_port_sharing).
//!
//! # Rooms
//!
//! Each uses only those above it, and the engine:
//!
//! * `net`: packets to and from sockets and rings in memory, and the machine's interfaces. It knows no queue pair.
//! * `polling`: when to look for packets, when to wait, and when to acknowledge. It knows numbers of
//!   queue pairs, and times.
//! * `host`: queue pairs under their locks. It brings packets to their engines and does what these ask
//!   for (`settle`).
//! * `verbs`: the objects that a program holds.
//! * `thread`, the progress thread, and `stack`, which puts everything together.
//!
//! # Who drives
//!
//! A program that posts builds and sends its packets in its own thread. One that polls a completion
//! queue takes packets from the sockets in its own thread, too. For everybody else there is one
//! progress thread, which leaves the sockets alone while a poller is at work; it also minds timers,
//! full send buffers, multicast, and the group. See `polling` for what it does
//! when.
//!
//! # Locks
//!
//! In this order, each optional. It follows the rooms: reading sockets, then the host's objects from
//! queue pairs down to what they share, then leaves.
//!
//! 1. the receive lock (`Host::receiver`): its holder reads the sockets;
//! 2. the multicast groups', then the users of one group, locked for reading while a datagram is
//!    delivered;
//! 3. a queue pair's lock (`QpCore::state`), one at a time;
//! 4. the memory table's, for reading: held from the engine's check of a key to the end of the copy
//!    it allowed. Deregistering and changing a region take it for writing, with no other lock held but
//!    the region's own; binding and invalidating a memory window, with the queue pair's;
//! 5. a completion queue's lock, or a shared receive queue's, one at a time;
//! 6. leaves, under which nothing else is locked: a completion channel's events, the deadlines, a
//!    socket's or ring's waiting packets (and then the ring's writing end), the table of links, the
//!    lists of queue pairs noted for later, a device's address table and events, an XRC domain's
//!    queues, a shard of the table of queue pairs, the keys that peers may use by themselves (and then
//!    those peers), the memory files, a peer's memory files (locked for reading while one is copied).
//!
//! Nothing of the caller's ([`Gsi`], [`portolan_port_sharing::CoordinatorService`]) is called with one of these
//! held, except a [`Tap`]. Posting and polling share no lock between two queue pairs, except for
//! reading.
//!
//! # Memory that is unmapped while registered
//!
//! Registration verifies that the range is mapped with the rights asked for and fails with
//! `BadMemory` otherwise. To unmap it, or to take rights from it, before it is deregistered breaks
//! the caller's promise ([`Pd::register`](portolan_provider::traits::Pd::register)): the next
//! access is a fault, SIGSEGV or SIGBUS, in whichever thread drives the device, just as if the
//! program had made the access itself. Memory of an adapter would have been pinned; here it is not,
//! and a page that is unmapped and mapped anew is the new page. Datagrams (UD) are placed by the kernel,
//! which passes memory over that is not mapped: a program cannot know that no more of them come.

mod config;
mod gsi;
mod host;
mod net;
mod polling;
mod stack;
mod thread;
mod verbs;

pub use config::{Limits, StackConfig};
pub use gsi::{Gsi, MadOptions, ReceivedMad};
pub use host::async_listener::AsyncListener;
pub use host::hotplug::DeviceChange;
pub use host::membership::MulticastMembership;
pub use host::way::{Way, WhySocket};
pub use net::counters::Counters;
pub use net::readiness::Readiness;
pub use net::tap::{Direction, Tap, TappedPacket};
pub use stack::{Objects, Stack};
pub use verbs::ah::SoftAh;
pub use verbs::channel::SoftChannel;
pub use verbs::cq::SoftCq;
pub use verbs::device::SoftDevice;
pub use verbs::mr::SoftMr;
pub use verbs::mw::SoftMw;
pub use verbs::pd::SoftPd;
pub use verbs::preview::{DevicePreview, preview};
pub use verbs::qp::SoftQp;
pub use verbs::srq::SoftSrq;
pub use verbs::xrcd::SoftXrcd;
