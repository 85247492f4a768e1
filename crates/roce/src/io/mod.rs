//! The software device: UDP, threads, locks and memory around the [engine](crate::engine).
//!
//! One [`Stack`] per process holds everything: a device for each network interface that has an
//! address, the queue pairs of all of them, and the sockets. Packets are RoCEv2 on UDP port 4791,
//! which the processes of a host share through a [`group`].
//!
//! # Who drives
//!
//! A program that posts builds and sends its packets in its own thread. One that polls a completion
//! queue takes packets from the sockets in its own thread, too. For everybody else there is one
//! progress thread, which leaves the sockets alone while a poller is at work; it also minds timers,
//! full send buffers, multicast, and the group. See `turns` for how they hand over.
//!
//! # Locks
//!
//! In this order, each optional:
//!
//! 1. the receive lock (`Shared::receiver`): who reads the sockets;
//! 2. the multicast groups', then the users of one group, locked for reading while a datagram is
//!    delivered;
//! 3. a queue pair's lock (`QpCore::state`), one at a time;
//! 4. the memory table's, for reading: held from the engine's check of a key to the end of the copy
//!    it allowed. Deregistering takes it for writing, with no other lock held; binding and
//!    invalidating a memory window, with the queue pair's;
//! 5. a completion queue's lock, or a shared receive queue's, one at a time;
//! 6. leaves, under which nothing else is locked: a completion channel's events, the timers, a
//!    socket's waiting packets, the list of queue pairs that owe an answer, a device's address table and events, a shard of the table of queue
//!    pairs.
//!
//! Nothing of the caller's ([`Gsi`], [`group::HubService`]) is called with one of these held, but
//! for a [`Tap`]. No lock is shared by two queue pairs on the way of a post or of a poll, but for
//! reading.
//!
//! # Memory that is unmapped while registered
//!
//! Registration verifies that the range is mapped with the rights asked for and fails with
//! `BadMemory` otherwise. To unmap it, or to take rights from it, before it is deregistered breaks
//! the caller's promise ([`Pd::register`](portolan_provider::traits::Pd::register)): the next
//! access is a fault, SIGSEGV or SIGBUS, in whichever thread drives the device, just as if the
//! program had made the access itself. Memory of an adapter would have been pinned; here it is not,
//! and a page that is unmapped and mapped anew is the new page.
#![allow(unsafe_code)]

pub mod group;

mod ah;
mod async_events;
mod async_listener;
mod channel;
mod clock;
mod config;
mod counters;
mod cq;
mod datagram;
mod device;
mod drive;
mod fork;
mod gauge;
mod gsi;
mod heard;
mod hotplug;
mod interface_monitor;
mod interfaces;
mod linger;
mod mapping;
mod memory_access;
mod mr;
mod multicast;
mod mw;
mod owed;
mod path;
mod pd;
mod preview;
mod progress;
mod qp;
mod rand;
mod readiness;
mod receive;
mod receive_batch;
mod send_batch;
mod shared;
mod sockopt;
mod srq;
mod stack;
mod sync;
mod table;
mod tap;
mod thread;
mod timers;
mod transmit;
mod turns;
mod vigil;

pub use ah::SoftAh;
pub use async_listener::AsyncListener;
pub use channel::SoftChannel;
pub use config::{Limits, StackConfig};
pub use counters::Counters;
pub use cq::SoftCq;
pub use device::SoftDevice;
pub use gsi::{Gsi, MadOptions, ReceivedMad};
pub use hotplug::DeviceChange;
pub use mr::SoftMr;
pub use multicast::GroupMembership;
pub use mw::SoftMw;
pub use pd::SoftPd;
pub use preview::{DevicePreview, preview};
pub use qp::SoftQp;
pub use readiness::Readiness;
pub use srq::SoftSrq;
pub use stack::{Objects, Stack};
pub use tap::{Direction, Tap, TappedPacket};
