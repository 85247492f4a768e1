//! The errors of parsing and emitting.

/// Why bytes could not be read as a header, or a header could not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input ends before the header does.
    #[error("{what} truncated: needs {needed} bytes, got {got}")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Bytes that the header takes.
        needed: usize,
        /// Bytes that were there.
        got: usize,
    },
    /// A value that is well formed, but that this implementation does not speak.
    #[error("{what} {got:#x} is not supported")]
    Unsupported {
        /// The field.
        what: &'static str,
        /// Its value.
        got: u64,
    },
    /// A value that contradicts the standard.
    #[error("{what} malformed: expected {expected}, got {got:#x}")]
    Malformed {
        /// The field.
        what: &'static str,
        /// What the standard asks for.
        expected: &'static str,
        /// What was there.
        got: u64,
    },
    /// The output buffer is shorter than what is to be written.
    #[error("no room to write {what}: needs {needed} bytes, the buffer has {got}")]
    NoRoom {
        /// What was being written.
        what: &'static str,
        /// Bytes that it takes.
        needed: usize,
        /// Bytes that the buffer has.
        got: usize,
    },
    /// A value to be written is wider than its field, or longer than its area.
    #[error("{what} out of range: at most {max}, got {got}")]
    OutOfRange {
        /// The field.
        what: &'static str,
        /// The largest value it holds (for a byte area, its length).
        max: u64,
        /// The value (or length) that was given.
        got: u64,
    },
    /// The opcode to be written calls for an extension header that is absent, or excludes one that
    /// is present.
    #[error("opcode {opcode:#04x} and {header} do not go together: {}", if *.required { "the header is missing" } else { "the header is not allowed" })]
    HeaderMismatch {
        /// The BTH opcode.
        opcode: u8,
        /// The extension header's name.
        header: &'static str,
        /// True if the opcode requires the header.
        required: bool,
    },
}

/// The result of parsing or emitting.
pub type Result<T> = core::result::Result<T, Error>;
