//! Errors of parsing and emitting.

/// Why bytes could not be read as a header, or a header could not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input ends before the header does.
    #[error("{what} truncated: needs {needed} bytes, got {got}")]
    Truncated {
        /// The header being read.
        what: &'static str,
        /// Length of the header, in bytes.
        needed: usize,
        /// Length of the input, in bytes.
        got: usize,
    },
    /// A well-formed value that this implementation does not support.
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
        /// What the standard requires.
        expected: &'static str,
        /// The value found.
        got: u64,
    },
    /// The output buffer is too short.
    #[error("no room to write {what}: needs {needed} bytes, the buffer has {got}")]
    NoRoom {
        /// The header being written.
        what: &'static str,
        /// Required length, in bytes.
        needed: usize,
        /// Length of the buffer, in bytes.
        got: usize,
    },
    /// A value to be written is wider than its field, or longer than its area.
    #[error("{what} out of range: at most {max}, got {got}")]
    OutOfRange {
        /// The field.
        what: &'static str,
        /// The largest value that fits (for a byte area, its length).
        max: u64,
        /// The given value (or length).
        got: u64,
    },
    /// The opcode requires an extension header that is absent, or excludes one that is present.
    #[error("opcode {opcode:#04x} and {header} do not go together: {}", if *.required { "the header is missing" } else { "the header is not allowed" })]
    HeaderMismatch {
        /// The BTH opcode.
        opcode: u8,
        /// The extension header's name.
        header: &'static str,
        /// Whether the opcode requires the header.
        required: bool,
    },
}

/// The result of parsing or emitting.
pub type Result<T> = core::result::Result<T, Error>;
