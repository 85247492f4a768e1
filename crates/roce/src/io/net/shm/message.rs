//! The messages of a link, apart from those that make it.

/// First byte of each message; another number is another protocol.
pub(super) const VERSION: u8 = 3;
/// Second byte of a request for a memory file, which the file's number follows, and of the answer, which carries the file.
pub(super) const FILE: u8 = 1;
/// Second byte of a message that wakes the other process: there are packets for it, or room for its own.
pub(super) const RING: u8 = 2;

/// Requests a memory file, or passes it.
pub(super) fn file_message(number: u32) -> [u8; 6] {
    let [a, b, c, d] = number.to_ne_bytes();
    [VERSION, FILE, a, b, c, d]
}
