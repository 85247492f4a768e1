//! rping's test data: a text followed by rolling characters.

/// The rolling characters: `A` to `z`, including everything in between.
const FIRST: u8 = b'A';
const LAST: u8 = b'z';

/// Fills `buffer` for the iteration `ping`, counted from 0.
///
/// The text is `rdma-ping-<ping>: `. The characters after it start one further with every iteration. The last byte is
/// zero, because rping's server writes back a C string: data with no other zero comes back whole.
pub(crate) fn fill(buffer: &mut [u8], ping: u64) {
    let Some((last, data)) = buffer.split_last_mut() else {
        return;
    };
    *last = 0;
    let text = format!("rdma-ping-{ping}: ");
    let span = u64::from(LAST - FIRST) + 1;
    // The remainder is less than the span, which fits into a byte.
    let start = FIRST + (ping % span) as u8;
    let rolling = (FIRST..=LAST).cycle().skip(usize::from(start - FIRST));
    for (byte, value) in data.iter_mut().zip(text.bytes().chain(rolling)) {
        *byte = value;
    }
}

/// A difference between two buffers that should be equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "data mismatch at byte {at} of {len}: sent 0x{sent:02x}, got 0x{got:02x} back; {differing} bytes differ"
)]
pub(crate) struct Mismatch {
    /// First byte that differs.
    pub(crate) at: usize,
    /// Bytes compared.
    pub(crate) len: usize,
    /// The byte sent there.
    pub(crate) sent: u8,
    /// The byte received.
    pub(crate) got: u8,
    /// Number of different bytes.
    pub(crate) differing: usize,
}

/// Compares the sent data with the answer.
///
/// # Errors
///
/// [`Mismatch`] with the position; missing or extra bytes count as different.
pub(crate) fn compare(sent: &[u8], got: &[u8]) -> Result<(), Mismatch> {
    if sent == got {
        return Ok(());
    }
    let differing = |(_, (a, b)): &(usize, (&u8, &u8))| a != b;
    let pairs = || sent.iter().zip(got).enumerate();
    let common = sent.len().min(got.len());
    let at = pairs().find(differing).map_or(common, |(at, _)| at);
    let byte = |buffer: &[u8]| buffer.get(at).copied().unwrap_or_default();
    Err(Mismatch {
        at,
        len: sent.len(),
        sent: byte(sent),
        got: byte(got),
        differing: pairs().filter(differing).count() + sent.len().abs_diff(got.len()),
    })
}
