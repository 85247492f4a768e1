//! Limits and times of the engine.

use std::time::Duration;

use portolan_wire::sa::SA_DATA_LEN;

/// Limits and times of an [`Engine`](super::Engine).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum number of queries in flight.
    pub in_flight_max: usize,
    /// Maximum number of queries in progress, including those waiting to be sent.
    pub queries_max: usize,
    /// Time to wait for the first answer before a retry; doubles with each retry.
    pub try_first: Duration,
    /// Longest time to wait for one answer.
    pub try_max: Duration,
    /// First pause when the administrator is busy; doubles each time.
    pub busy_pause_first: Duration,
    /// Longest pause when the administrator is busy.
    pub busy_pause_max: Duration,
    /// Maximum size of a table, in bytes.
    pub table_bytes_max: usize,
    /// Maximum size of all incomplete tables together, in bytes.
    pub reassembly_bytes_max: usize,
    /// RMPP window: segments that the administrator may send before an acknowledgement, at least 1.
    pub window: u32,
    /// How long to wait for a new segment before the last acknowledgement is repeated.
    pub stall: Duration,
    /// Number of repeated acknowledgements before the table is requested again.
    pub stalls_max: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            in_flight_max: 256,
            queries_max: 16_384,
            try_first: Duration::from_millis(500),
            try_max: Duration::from_secs(4),
            busy_pause_first: Duration::from_millis(50),
            busy_pause_max: Duration::from_secs(1),
            table_bytes_max: 8 << 20,
            reassembly_bytes_max: 32 << 20,
            window: 64,
            stall: Duration::from_millis(400),
            stalls_max: 6,
        }
    }
}

impl Config {
    /// Maximum number of segments in a table.
    pub(super) fn segments_max(&self) -> u32 {
        u32::try_from(self.table_bytes_max.div_ceil(SA_DATA_LEN)).unwrap_or(u32::MAX)
    }
}
