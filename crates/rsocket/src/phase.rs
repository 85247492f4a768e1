//! The phases of a stream, and what changes them.

/// The phase of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The peer's private data is not known.
    Unconnected,
    /// At least one direction may carry data.
    Open,
    /// Both directions have ended in order.
    Disconnected,
    /// The connection broke.
    Failed,
}

/// Which direction to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// What the peer sends.
    Read,
    /// What this side sends.
    Write,
    /// Both.
    Both,
}

/// The effect of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Data, or the end of the peer's direction: wakes a reader.
    Readable,
    /// Room at the peer: wakes a writer.
    Writable,
    /// Nothing for the program.
    Nothing,
}
