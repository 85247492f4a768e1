//! Limits and timer defaults of the engine.

use core::time::Duration;

/// Largest number of ids one engine can hold: an [`IdNumber`] keeps 20 bits for the slot.
///
/// [`IdNumber`]: portolan_provider::cm::IdNumber
pub const MAX_IDS: u32 = 1 << 20;

/// Settings of an engine. The default is what Linux uses.
///
/// Exponents are IBTA time codes, 4.096 µs × 2^n, read as Linux's ib_cm reads them
/// ([`time_of_exponent`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Ids that may exist at once, those of connection requests included; at most [`MAX_IDS`].
    pub max_ids: u32,
    /// Largest backlog of a listener, and what a backlog of 0 or less means
    /// (`net.rdma_ucm.max_backlog`).
    pub max_backlog: u32,
    /// Connection requests of a listener whose senders have not confirmed yet that they are there: those
    /// taken in, and those accepted without an RTU since; at least 1. A new request beyond it displaces
    /// an old one. A listener has as many places as its backlog, but
    /// [`min_half_open_per_listener`](Self::min_half_open_per_listener) if that is less.
    pub max_half_open_per_listener: usize,
    /// The places of a listener with a short backlog: a backlog says how many requests its owner leaves
    /// waiting, not how many peers are slow to confirm.
    pub min_half_open_per_listener: usize,
    /// The same of all listeners together; at least 1.
    pub max_half_open: usize,
    /// How long a half-open connection has its place for sure: within it an RTU may be on its way. If
    /// all are younger a new request is dropped, and its sender repeats it.
    pub half_open_grace: Duration,
    /// How long a request for a listener that has closed is held in case that it opens again; then it is
    /// refused. 0 refuses it at once, as Linux does.
    pub relisten_wait: Duration,
    /// How long a closed listener is remembered so. perftest has none for a second.
    pub closed_listener_memory: Duration,
    /// Closed listeners that are remembered; beyond it the oldest is forgotten.
    pub max_closed_listeners: usize,
    /// Requests that are held at once; further ones are refused.
    pub max_held_requests: usize,
    /// Events that may wait for [`Cm::poll_event`](crate::Cm::poll_event). While it is full,
    /// messages that would raise an event are dropped as if the network had lost them.
    pub max_events_queued: usize,
    /// Messages that may wait for [`Cm::poll_transmit`](crate::Cm::poll_transmit).
    pub max_transmits_queued: usize,
    /// How long a peer may take to answer (`CMA_CM_RESPONSE_TIMEOUT`), exponent.
    pub response_timeout_exp: u8,
    /// How often an unanswered message is sent again (`CMA_MAX_CM_RETRIES`, 4 bits).
    pub max_cm_retries: u8,
    /// The first repetition comes after the kernel's interval divided by 2^n, and each interval is
    /// twice the one before until it is the kernel's. Number of sends and the moment of giving up do
    /// not change. 0 repeats at the kernel's constant interval.
    pub retry_backoff_shift: u8,
    /// How long a packet may travel (`CMA_IBOE_PACKET_LIFETIME`), exponent.
    pub packet_lifetime_exp: u8,
    /// The time our message receipt acknowledgements ask for (`CMA_CM_MRA_SETTING`), exponent.
    pub mra_timeout_exp: u8,
    /// The longest time that is granted to a peer, whatever it asks for: to answer, to be waited for
    /// after its MRA, and for its late packets; exponent. Linux grants all that the wire can say, up
    /// to two and a half hours.
    pub longest_grant_exp: u8,
    /// The shortest time in which a peer's answer is awaited, however little it grants itself;
    /// exponent. A request that grants its sender no time would have every reply sent 16 times within
    /// as many milliseconds, to an address that may be somebody else's.
    pub shortest_response_exp: u8,
    /// How many destroyed connections are remembered until their time-wait ends, so that a late copy
    /// of their request does not look like a new one. When it is full the oldest is forgotten.
    pub max_timewait_remembered: usize,
    /// Multicast memberships that may exist at once, those of all ids together.
    pub max_memberships: u32,
    /// Messages that leave at once; at least 1. The default is what an ordinary socket's receive buffer
    /// of 208 KiB holds, with room for as many again.
    pub pace_burst: u32,
    /// How long after a burst the next may leave.
    pub pace_interval: Duration,
    /// High byte of every local communication id, by which processes that share a UDP port tell whose
    /// a message is.
    pub comm_id_block: u8,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_ids: 65_536,
            max_backlog: 1024,
            max_half_open_per_listener: 1024,
            min_half_open_per_listener: 512,
            max_half_open: 4096,
            half_open_grace: Duration::from_millis(250),
            relisten_wait: Duration::from_millis(500),
            closed_listener_memory: Duration::from_secs(5),
            max_closed_listeners: 64,
            max_held_requests: 64,
            max_events_queued: 16_384,
            max_transmits_queued: 16_384,
            response_timeout_exp: 20,
            max_cm_retries: 15,
            retry_backoff_shift: 3,
            packet_lifetime_exp: 18,
            mra_timeout_exp: 24,
            longest_grant_exp: 24,
            shortest_response_exp: 14,
            max_timewait_remembered: 16_384,
            max_memberships: 8192,
            pace_burst: 128,
            pace_interval: Duration::from_millis(1),
            comm_id_block: 0,
        }
    }
}

/// An IBTA time code as ib_cm takes it (`cm_convert_to_ms`): 2^(n − 8) ms, at least 1 ms. That is
/// 2.4 % less than 4.096 µs × 2^n.
pub const fn time_of_exponent(exponent: u8) -> Duration {
    let exponent = if exponent > 31 { 31 } else { exponent };
    Duration::from_millis(1 << exponent.saturating_sub(8))
}

/// The local ACK timeout for a device and path, as an exponent (`cm_ack_timeout`):
/// ack delay + 2 × lifetime, where the sum of two powers is the larger one, rounded up if the other
/// is at least half of it.
pub(crate) const fn ack_timeout_exp(ack_delay_exp: u8, packet_lifetime_exp: u8) -> u8 {
    let round_trip = packet_lifetime_exp.saturating_add(1);
    let (larger, smaller) = if round_trip >= ack_delay_exp {
        (round_trip, ack_delay_exp)
    } else {
        (ack_delay_exp, round_trip)
    };
    let exponent = larger.saturating_add((smaller >= larger.saturating_sub(1)) as u8);
    if exponent > 31 { 31 } else { exponent }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_the_kernels_milliseconds() {
        assert_eq!(time_of_exponent(20), Duration::from_millis(4096));
        assert_eq!(
            time_of_exponent(18) * 2 + time_of_exponent(20),
            Duration::from_millis(6144)
        );
        assert_eq!(time_of_exponent(0), Duration::from_millis(1));
        assert_eq!(time_of_exponent(255), time_of_exponent(31));
    }

    #[test]
    fn the_ack_timeout_of_rxe_is_17_or_19() {
        // ACK delay 15 with the packet lifetimes of Linux 6.17 and of older kernels.
        assert_eq!(ack_timeout_exp(15, 16), 17);
        assert_eq!(ack_timeout_exp(15, 18), 19);
        assert_eq!(ack_timeout_exp(31, 31), 31);
    }
}
