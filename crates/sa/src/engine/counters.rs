//! Counters of dropped datagrams and of retries.

/// Counts dropped datagrams by reason. A dropped datagram changes nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Not valid datagrams of subnet administration.
    pub malformed: u64,
    /// The transaction id matches no query: late, repeated or forged.
    pub unknown_transaction: u64,
    /// The source is not the queried administrator.
    pub wrong_source: u64,
    /// The method does not answer the query.
    pub wrong_method: u64,
    /// The attribute is not the query's.
    pub wrong_attribute: u64,
    /// Segments received before.
    pub repeated_segments: u64,
    /// Segments beyond the window.
    pub segments_beyond_window: u64,
    /// Queries sent again.
    pub retries: u64,
    /// Busy answers.
    pub busy: u64,
    /// Tables requested again from the start.
    pub restarted_tables: u64,
}
