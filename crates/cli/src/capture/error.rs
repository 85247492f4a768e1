//! Why a capture file could not be read.

/// The result of reading a capture file.
pub(crate) type Result<T> = std::result::Result<T, CaptureError>;

/// Why a capture file could not be read. Offsets are bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaptureError {
    /// The file has no bytes.
    #[error("the file is empty: no capture has a length of 0")]
    Empty,
    /// The first four bytes are those of no capture format.
    #[error(
        "not a capture file: it starts with {0:02x?}, which is the magic number of neither pcap nor pcapng"
    )]
    Unrecognized([u8; 4]),
    /// A capture in a form that is not read here.
    #[error("{what}: {advice}")]
    Unsupported {
        /// What was found.
        what: &'static str,
        /// What to do about it.
        advice: &'static str,
    },
    /// The file ends inside something.
    #[error("the file ends inside a {what} at offset {offset}: {missing} bytes are missing")]
    Cut {
        /// What was being read.
        what: &'static str,
        /// Where it starts.
        offset: u64,
        /// What it still needs, at least.
        missing: usize,
    },
    /// A length that no capture program writes.
    #[error("the {what} at offset {offset} claims {len} bytes; at most {max} are read")]
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
    #[error("the {what} at offset {offset} is malformed: {why}")]
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
