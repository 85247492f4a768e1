//! Why a capture file could not be read.

/// The result of reading a capture file.
pub(crate) type Result<T> = std::result::Result<T, CaptureError>;

/// Why a capture file could not be read. Offsets are bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaptureError {
    /// The first four bytes are those of no capture format.
    #[error(
        "not a capture file: it starts with {0:02x?}, which is the magic number of neither pcap nor pcapng"
    )]
    Unrecognized([u8; 4]),
    /// A capture in a form that is not read here.
    #[error("{what}: {advice}")]
    Unsupported {
        /// What was found.
        what: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// The file ends inside something.
    #[error(
        "the file ends inside a {what}: {needed} bytes expected at offset {offset}, {got} left"
    )]
    Cut {
        /// What was being read.
        what: &'static str,
        /// Where it starts.
        offset: u64,
        /// Its length.
        needed: usize,
        /// What the file still had.
        got: usize,
    },
    /// A length that no capture program writes.
    #[error("{what} at offset {offset} claims {len} bytes; at most {max} are read")]
    TooLong {
        /// What was being read.
        what: &'static str,
        /// Where it starts.
        offset: u64,
        /// Its claimed length.
        len: usize,
        /// The bound.
        max: usize,
    },
    /// Contents that contradict the format.
    #[error("{what} at offset {offset} is malformed: {why}")]
    Malformed {
        /// What was being read.
        what: &'static str,
        /// Where it starts.
        offset: u64,
        /// What is wrong with it.
        why: String,
    },
    /// The operating system could not read.
    #[error("cannot read")]
    Io(#[from] std::io::Error),
}
