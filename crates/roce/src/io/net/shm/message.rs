//! The messages of an established link.

/// First byte of each message: the version of the protocol.
pub(super) const VERSION: u8 = 10;
/// Second byte of a request for a memory file, followed by the file's number, and of the reply, which carries the
/// file.
pub(super) const FILE: u8 = 1;
/// Second byte of a message that wakes the other process: there are packets for it, or room for its own.
pub(super) const RING: u8 = 2;

/// Requests a memory file, or accompanies one.
pub(super) fn file_message(number: u32) -> [u8; 6] {
    let [a, b, c, d] = number.to_ne_bytes();
    [VERSION, FILE, a, b, c, d]
}
