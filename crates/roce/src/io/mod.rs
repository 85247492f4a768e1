//! The software device: UDP, threads, locks and memory around the [engine](crate::engine).
//!
//! Each process has one [`Stack`]. It contains a device for each network interface that has an address, the queue
//! pairs of all devices, and the sockets. Packets are RoCEv2 on UDP port 4791, which the processes of a host share
//! through a [port group](portolan_port_sharing).
//!
//! # Layers
//!
//! Each uses only the ones above it, and the engine:
//!
//! * `net`: packets to and from sockets and rings in memory, and the machine's interfaces. It does not know queue
//!   pairs.
//! * `polling`: when to poll and when to wait. It knows only numbers of queue pairs, and times.
//! * `host`: queue pairs under their locks. It passes packets to their engines, executes what the engines request
//!   (`settle`), and decides when to acknowledge.
//! * `verbs`: the objects that a program holds.
//! * `management`: the group's datagrams, and which thread waits for them.
//! * `thread`, the progress thread, and `stack`, which assembles everything.
//!
//! # Which thread does the work
//!
//! A program that posts builds and sends its packets in its own thread. A program that polls a completion queue reads
//! packets from the sockets in its own thread.
//!
//! A thread that waits for an event of the connection manager handles management datagrams (`management`). A thread that
//! waits for a stream reads the rings (`host::ring_wait`).
//!
//! One progress thread does the rest. It does not read the sockets while a poller is active. It also handles timers,
//! full send buffers, multicast, and the group. `polling` has its rules.
//!
//! # Locks
//!
//! Take locks in this order; each is optional. The order follows the layers: the receive lock, the host's objects
//! from queue pairs down to what they share, then leaves.
//!
//! 1. The receive lock (`Host::receiver`). Its holder reads the sockets.
//! 2. The multicast groups, then the users of one group, locked for reading while a datagram is delivered.
//! 3. One queue pair (`QpCore::state`).
//! 4. The memory table, for reading, from the engine's check of a key to the end of the copy. Deregistering and
//!    changing a region lock the table for writing, and hold only the region's own lock. Binding and invalidating a
//!    memory window lock it for writing while they hold the queue pair's lock.
//! 5. One completion queue, or one shared receive queue.
//! 6. Leaves, under which nothing else is locked: a completion channel's events, the deadlines, a socket's or ring's
//!    waiting packets (and then the ring's writing end), the table of links, the queue pairs that wait for one, the
//!    bells of a waiting thread, the lists of queue pairs noted for later, a device's address table and events, an XRC
//!    domain's queues, a shard of the table of queue pairs, the keys that peers may use directly (and then those peers),
//!    the memory files.
//!
//! Those of 1, 3, 4, completion queues, and a ring's writing end are [biased](portolan_threads::biased): a thread that alone
//! polls and posts takes them without locked instructions.
//!
//! The caller's traits ([`Gsi`], [`portolan_port_sharing::CoordinatorService`]) are called without any of these
//! locks, except a [`Tap`]. Two queue pairs share no lock on the path of a post or poll, except for reading.
//!
//! # Memory that is unmapped while registered
//!
//! Registration verifies that the range is mapped with the requested rights, and fails with `BadMemory` otherwise. To
//! unmap the range, or to reduce its rights, before deregistration breaks the caller's promise
//! ([`Pd::register`](portolan_provider::traits::Pd::register)). The next access is then a SIGSEGV or SIGBUS in the
//! thread that drives the device, as if the program had made the access itself.
//!
//! An adapter would have pinned the memory. Here it is not pinned: if a page is unmapped and mapped again, accesses
//! go to the new page. Datagrams (UD) are an exception: the kernel copies them and skips unmapped memory, because a
//! program cannot know when the last one has arrived.

mod config;
mod gsi;
mod host;
mod management;
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
pub use management::{Attendance, EventWaiter};
pub use net::counters::Counters;
pub use net::rand::random;
pub use net::readiness::{LazyReadiness, Readiness};
pub use net::shm::program_memory::{WhyUnreadable, may_call_process_vm};
pub use net::tap::{Direction, Tap, TappedPacket};
pub use polling::attendance::Nudge;
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
