//! The engine's bounds and times.

use std::time::Duration;

use portolan_wire::sa::SA_DATA_LEN;

/// Bounds and times of an [`Engine`](super::Engine).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most queries that the administrator is asked at one time.
    pub in_flight_max: usize,
    /// Most queries under way, those that wait for their turn included.
    pub queries_max: usize,
    /// How long the first answer is waited for before the question is sent again; each time twice as
    /// long as before.
    pub try_first: Duration,
    /// The longest that one answer is waited for.
    pub try_max: Duration,
    /// How long to wait when the administrator is busy; each time twice as long.
    pub busy_pause_first: Duration,
    /// The longest of these pauses.
    pub busy_pause_max: Duration,
    /// Longest table, bytes.
    pub table_bytes_max: usize,
    /// Most bytes of all tables that are not whole yet.
    pub reassembly_bytes_max: usize,
    /// Segments that the administrator may send before it waits for an acknowledgement, at least 1.
    pub window: u32,
    /// How long no new segment may come before the last acknowledgement is repeated.
    pub stall: Duration,
    /// How often that is done before the table is asked for again.
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
    /// Most segments of a table.
    pub(super) fn segments_max(&self) -> u32 {
        u32::try_from(self.table_bytes_max.div_ceil(SA_DATA_LEN)).unwrap_or(u32::MAX)
    }
}
