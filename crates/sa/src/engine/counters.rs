//! What was dropped, and why.

/// Datagrams that were not believed or not needed. They change nothing but these numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// No datagrams of subnet administration.
    pub malformed: u64,
    /// Their transaction id is that of no query: late, repeated or made up.
    pub unknown_transaction: u64,
    /// They came from somebody who was not asked.
    pub wrong_source: u64,
    /// Their method is none that answers the question.
    pub wrong_method: u64,
    /// Their attribute is not that of the question.
    pub wrong_attribute: u64,
    /// Segments that were there already.
    pub repeated_segments: u64,
    /// Segments beyond what was allowed to be sent.
    pub segments_beyond_window: u64,
    /// Questions that were sent again.
    pub retries: u64,
    /// Answers that said busy.
    pub busy: u64,
    /// Tables that were asked for again from the start.
    pub restarted_tables: u64,
}
