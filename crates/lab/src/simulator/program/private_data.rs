//! The private data of requests and replies. They identify the sender, so that the oracle need not
//! trust the wire, and continue with bytes that must arrive unchanged.

use crate::simulator::failure::{Violation, ensure, violation};
use crate::simulator::oracle::EndpointIndex;

/// Bytes that identify the sender.
const NAMES_LEN: usize = 8;

/// The private data of an endpoint of a conversation.
pub(super) fn compose(conversation: usize, endpoint: EndpointIndex, extra: usize) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(NAMES_LEN + extra);
    bytes.extend_from_slice(&(conversation as u32).to_le_bytes());
    bytes.extend_from_slice(&(endpoint as u32).to_le_bytes());
    bytes.extend(filler(conversation, extra));
    bytes.into()
}

/// Bytes that depend on the conversation alone.
pub(super) fn filler(conversation: usize, len: usize) -> impl Iterator<Item = u8> {
    (0..len).map(move |at| (at * 37 + conversation * 11 + 1) as u8)
}

/// Returns the conversation and the endpoint.
pub(super) fn names(data: &[u8]) -> Result<(usize, EndpointIndex), Violation> {
    let number = |at: usize| {
        let bytes = data.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes) as usize)
    };
    let both = number(0).zip(number(4));
    both.ok_or_else(|| violation!("private data of {} bytes has no names", data.len()))
}

/// Checks that `data` begins with `sent` and is zero after it.
pub(super) fn check(data: &[u8], sent: impl Iterator<Item = u8>) -> Result<(), Violation> {
    let mut sent = sent;
    for (at, byte) in data.iter().enumerate() {
        let expected = sent.next().unwrap_or(0);
        ensure!(
            *byte == expected,
            "private data: byte {at} is {byte:#x}, not {expected:#x}"
        );
    }
    ensure!(
        sent.next().is_none(),
        "private data was cut to {} bytes",
        data.len()
    );
    Ok(())
}
