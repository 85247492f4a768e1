//! The outcome of a transfer.

use std::fmt;

use portolan_provider::Error;

use crate::sys::Buffer;

/// A successful transfer.
///
/// ```
/// # let (server, client) = portolan::doc_pair()?;
/// let mut buffer = client.buffer_from(b"one")?;
/// for text in [b"two", b"six"] {
///     buffer.copy_from_slice(text);
///     buffer = client.send(buffer)?.wait()?.buffer;
///     assert_eq!(&server.receive()?[..], text);
/// }
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Done {
    /// The posted buffer; the first one of a gather list.
    pub buffer: Buffer,
    /// The other buffers of a gather list, in order.
    pub more: Box<[Buffer]>,
    /// Number of bytes received, read, sent or written.
    pub length: usize,
    /// Immediate data of a receive.
    pub immediate: Option<u32>,
}

impl Done {
    /// The previous value of the peer's memory after an atomic, as a number in host byte order: the
    /// first eight bytes of the buffer. Undefined for other transfers; `None` if the buffer is
    /// shorter.
    pub fn original(&self) -> Option<u64> {
        let word = self.buffer.first_chunk()?;
        Some(u64::from_ne_bytes(*word))
    }
}

/// A transfer that failed or could not be posted.
///
/// ```
/// use portolan::Options;
/// # let (server, client) = portolan::doc_pair()?;
///
/// // The connection's options permit no inline data.
/// let failed = client.send_inline(b"ahoy").unwrap_err();
/// println!("{}", failed.error);
/// // It converts into the error, for `?`.
/// let error = portolan::Error::from(failed);
/// # drop((server, error));
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Failed {
    /// The cause.
    pub error: Error,
    /// The buffer; its contents are undefined if it was the destination. `None` if the device
    /// failed with the work still posted: the device then keeps the buffer.
    pub buffer: Option<Buffer>,
    /// The other buffers of a gather list, in order.
    pub more: Box<[Buffer]>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Failed {
    /// The cause of [`Failed::error`], whose text this type prints.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<Failed> for std::io::Error {
    fn from(failed: Failed) -> Self {
        failed.error.into()
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}
