//! Protocol violations of a peer.

/// A violation of the protocol by the peer. The stream has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The private data is too short.
    #[error("the peer's private data has {found} bytes; rsockets need {needed}")]
    ShortConnData {
        /// Bytes needed.
        needed: usize,
        /// Bytes found.
        found: usize,
    },
    /// The version is unknown.
    #[error(
        "the peer speaks another protocol, or version {0} of the rsocket protocol instead of 1"
    )]
    Version(u8),
    /// The peer's table has no entry.
    #[error("the peer's target table has no entry")]
    EmptyTable,
    /// The peer sent more bytes than it was offered room for.
    #[error("the peer announced {announced} bytes and had room for {room}")]
    Overrun {
        /// Bytes that it announced.
        announced: u32,
        /// Bytes of room that it had.
        room: u32,
    },
    /// The peer sent more messages than it had credits for.
    #[error("the peer sent more messages than its {credits} credits")]
    OverCredit {
        /// Messages that may be unread.
        credits: u16,
    },
    /// The peer sent data after it had ended its direction.
    #[error("the peer sent data after it had ended its direction")]
    DataAfterEnd,
    /// The message is of an unknown kind.
    #[error("the peer sent message {0:#010x}, which has no meaning")]
    UnknownMessage(u32),
    /// The peer named an entry beyond the iomap.
    #[error("the peer updated entry {index} of an iomap of {size}")]
    BeyondIomap {
        /// The entry.
        index: u32,
        /// Number of entries.
        size: u16,
    },
}
