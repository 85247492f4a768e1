//! Limits and timer defaults of the engine.

use core::time::Duration;

/// Largest number of ids one engine can hold: an [`IdNumber`] keeps 20 bits for the slot.
///
/// [`IdNumber`]: portolan_provider::cm::IdNumber
pub const MAX_IDS: u32 = 1 << 20;

/// Settings of an engine. The defaults are Linux's.
///
/// Exponents are IBTA time codes, 4.096 µs × 2^n, read as Linux's ib_cm reads them
/// ([`time_of_exponent`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum number of ids, including those of connection requests; at most [`MAX_IDS`].
    pub max_ids: u32,
    /// Maximum backlog of a listener; also used for a backlog of 0 or less (`net.rdma_ucm.max_backlog`).
    pub max_backlog: u32,
    /// Maximum number of half-open connections of a listener, at least 1. These are requests that are not accepted yet,
    /// and accepted requests without an RTU. Beyond the limit, a new request displaces an old one. A listener's limit
    /// is its backlog, but not less than [`min_half_open_per_listener`](Self::min_half_open_per_listener).
    pub max_half_open_per_listener: usize,
    /// Minimum of that limit for a listener with a short backlog. A backlog limits the requests that the owner leaves
    /// waiting, not the peers that are slow to confirm.
    pub min_half_open_per_listener: usize,
    /// Maximum number of half-open connections of all listeners together; at least 1.
    pub max_half_open: usize,
    /// Time in which a half-open connection cannot be displaced, because its RTU may be on the way. If all are younger,
    /// a new request is dropped and its sender repeats it.
    pub half_open_grace: Duration,
    /// How long a request is held if no id listens, but a listener just closed or an id was just bound. Then the request
    /// is refused. With 0 it is refused at once, as on Linux.
    pub listener_wait: Duration,
    /// How long a listener is expected after one has closed or an id was bound. perftest closes its listener for a
    /// second.
    pub expected_listener_memory: Duration,
    /// Maximum number of expected listeners; beyond it the oldest is forgotten.
    pub max_expected_listeners: usize,
    /// Maximum number of held requests; further requests are refused.
    pub max_held_requests: usize,
    /// Maximum number of events waiting for [`Cm::poll_event`](crate::Cm::poll_event). While the queue is full,
    /// messages that would raise an event are dropped, as if the network had lost them.
    pub max_events_queued: usize,
    /// Maximum number of messages waiting for [`Cm::poll_transmit`](crate::Cm::poll_transmit).
    pub max_transmits_queued: usize,
    /// How long a peer may take to answer (`CMA_CM_RESPONSE_TIMEOUT`), exponent.
    pub response_timeout_exp: u8,
    /// How often an unanswered message is sent again (`CMA_MAX_CM_RETRIES`, 4 bits).
    pub max_cm_retries: u8,
    /// The first retransmission follows after the kernel's interval divided by 2^n. Each interval then doubles until it
    /// equals the kernel's. The number of sends and the total time do not change. 0 uses the kernel's constant
    /// interval.
    pub retry_backoff_shift: u8,
    /// Maximum lifetime of a packet in the network (`CMA_IBOE_PACKET_LIFETIME`), exponent.
    pub packet_lifetime_exp: u8,
    /// The time that our MRA messages request (`CMA_CM_MRA_SETTING`), exponent.
    pub mra_timeout_exp: u8,
    /// Maximum time that a peer can request, exponent. It limits the response time, the time after an MRA, and
    /// time-wait. Linux accepts all wire values, up to two and a half hours.
    pub longest_grant_exp: u8,
    /// Minimum time to wait for a peer's answer, exponent. Without it, a request that states a response time of zero
    /// would cause 16 replies within as many milliseconds, to an address that may be forged.
    pub shortest_response_exp: u8,
    /// Maximum number of destroyed connections to remember until their time-wait ends, so that a late copy of a request
    /// does not look new. Beyond it the oldest is forgotten. The same limit holds for kept rejections, and for kept
    /// answers to SIDR requests.
    pub max_timewait_remembered: usize,
    /// Maximum number of multicast memberships of all ids together.
    pub max_memberships: u32,
    /// Maximum number of messages in one burst; at least 1. The default fits twice into an ordinary socket receive
    /// buffer of 208 KiB.
    pub pace_burst: u32,
    /// Interval between bursts.
    pub pace_interval: Duration,
    /// High byte of every local communication id. Processes that share a UDP port use it to find the receiver of a
    /// message.
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
            listener_wait: Duration::from_millis(500),
            expected_listener_memory: Duration::from_secs(5),
            max_expected_listeners: 256,
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

/// An IBTA time code as ib_cm interprets it (`cm_convert_to_ms`): 2^(n − 8) ms, at least 1 ms. That is
/// 2.4 % less than 4.096 µs × 2^n.
pub const fn time_of_exponent(exponent: u8) -> Duration {
    let exponent = if exponent > 31 { 31 } else { exponent };
    Duration::from_millis(1 << exponent.saturating_sub(8))
}

/// The local ACK timeout for a device and path, as an exponent (`cm_ack_timeout`): ack delay + 2 × lifetime. The sum of
/// two powers is the larger one, rounded up if the other is at least half of it.
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
