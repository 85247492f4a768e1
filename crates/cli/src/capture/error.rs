//! Why a capture file could not be read.

/// The result of reading a capture file.
pub(crate) type Result<T> = std::result::Result<T, CaptureError>;

/// Why a capture file could not be read. Offsets are bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaptureError {
    /// The file has no bytes.
    #[error("the file is empty: no capture has a length of 0")]
    Empty,
    /// The first four bytes are not a known magic number.
    #[error(
        "not a capture file: it starts with {0:02x?}, which is the magic number of neither pcap nor pcapng"
    )]
    Unrecognized([u8; 4]),
    /// A capture in an unsupported form.
    #[error("{what}: {advice}")]
    Unsupported {
        /// The unsupported feature.
        what: &'static str,
        /// The remedy.
        advice: &'static str,
    },
    /// The file is truncated within a structure.
    #[error("the file ends inside a {what} at offset {offset}: {missing} bytes are missing")]
    Cut {
        /// The structure being read.
        what: &'static str,
        /// Where it starts.
        offset: u64,
        /// Minimum number of missing bytes.
        missing: usize,
    },
    /// A length that no capture program writes.
    #[error("the {what} at offset {offset} claims {len} bytes; at most {max} are read")]
    TooLong {
        /// The structure being read.
        what: &'static str,
        /// Where it starts.
        offset: u64,
        /// Its stated length.
        len: usize,
        /// The bound.
        max: usize,
    },
    /// Contents that contradict the format.
    #[error("the {what} at offset {offset} is malformed: {why}")]
    Malformed {
        /// The structure being read.
        what: &'static str,
        /// Where it starts.
        offset: u64,
        /// The defect.
        why: String,
    },
    /// The operating system could not read.
    #[error("cannot read")]
    Io(#[from] std::io::Error),
}
