//! Counters of the stack: packets, and drops by reason.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::io::net::tap::TapSocket;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A reading of the stack's counters since it was started.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The counters, shared by all threads.
        #[derive(Debug, Default)]
        pub(crate) struct CounterCells {
            $(pub(crate) $name: Cell,)*
        }

        impl CounterCells {
            pub(crate) fn read(&self) -> Counters {
                Counters { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }

        impl Counters {
            /// Name and value of each counter.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Packets passed to the kernel, or to another process of this host through memory.
    sent_packets,
    /// Bytes of UDP payload of the sent packets.
    sent_bytes,
    /// Packets received with a valid ICRC.
    received_packets,
    /// Bytes of UDP payload of the received packets.
    received_bytes,
    /// Sent packets that went through memory.
    sent_through_memory,
    /// Received packets that came through memory.
    received_through_memory,
    /// One-sided requests executed in the memory of another process, without a packet.
    carried_out_in_memory,
    /// Calls of `sendmsg` and `sendmmsg`.
    send_calls,
    /// Calls of `recvmmsg` that returned datagrams.
    receive_calls,
    /// Packets that the kernel refused to send (no route, too long for the link).
    send_refused,
    /// Times that packets had to wait because a socket's send buffer was full.
    send_blocked,
    /// Packets dropped: shorter than their headers, unknown opcode, wrong length.
    dropped_malformed,
    /// Packets dropped: the ICRC does not match.
    dropped_icrc,
    /// Packets dropped: no queue pair of that number.
    dropped_no_queue_pair,
    /// Packets dropped: source or destination differs from the queue pair's connection.
    dropped_spoofed,
    /// Datagrams dropped: longer than the receive buffer.
    dropped_truncated,
    /// Management datagrams dropped: wrong Q_Key, opcode or length.
    dropped_mad,
    /// Packets for queue pairs of another process, forwarded to it.
    strays,
    /// Completions lost because a completion queue was full.
    completion_overflows,
    /// Asynchronous events lost because they were not taken.
    async_overflows,
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Cell(AtomicU64);

impl Cell {
    /// Adds one.
    #[inline]
    pub(crate) fn up(&self) {
        self.add(1);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds `count`.
    #[inline]
    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Packets and bytes through rings, which one thread at a time counts.
#[derive(Debug, Default)]
pub(crate) struct RingTraffic {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl RingTraffic {
    /// Adds packets. The caller holds the lock that all other callers hold, so no locked instruction is needed.
    #[inline]
    pub(crate) fn add(&self, packets: usize, bytes: usize) {
        for (cell, count) in [(&self.packets, packets), (&self.bytes, bytes)] {
            cell.store(
                cell.load(Ordering::Relaxed) + count as u64,
                Ordering::Relaxed,
            );
        }
    }

    /// Packets and bytes.
    pub(crate) fn read(&self) -> (u64, u64) {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        (read(&self.packets), read(&self.bytes))
    }
}

/// Counters and tap of the data path.
#[derive(Debug, Default)]
pub(crate) struct Monitor {
    pub(crate) counters: CounterCells,
    /// What arrived in rings. The receiver's lock protects it.
    pub(crate) from_rings: RingTraffic,
    pub(crate) tap: TapSocket,
}

impl Monitor {
    /// Number of packets received and sent.
    pub(crate) fn packets(&self) -> u64 {
        self.counters.received_packets.get() + self.counters.sent_packets.get()
    }

    /// Counts a sent datagram of `packets` packets.
    #[inline]
    pub(crate) fn sent(&self, packets: u16, bytes: usize) {
        self.counters.sent_packets.add(usize::from(packets));
        self.counters.sent_bytes.add(bytes);
    }
}
