//! The variable-content areas of messages.

use core::fmt;
use core::ops::Deref;

use crate::bytes::Value;
use crate::{Error, Result};

/// The private data of a message: `N` bytes, the consumer's data followed by zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const N: usize>([u8; N]);

impl<const N: usize> PrivateData<N> {
    /// Length of the area, in bytes.
    pub const LEN: usize = N;

    /// No private data: all zero.
    pub const EMPTY: PrivateData<N> = PrivateData([0; N]);

    /// The whole area.
    pub const fn new(bytes: [u8; N]) -> Self {
        PrivateData(bytes)
    }

    /// An area that begins with `data`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if `data` is longer than the area.
    pub fn from_slice(data: &[u8]) -> Result<Self> {
        Ok(PrivateData(pad("private data length", data)?))
    }

    /// The whole area.
    pub const fn as_array(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> Value for PrivateData<N> {
    const LEN: usize = N;

    fn read(bytes: &[u8]) -> Self {
        PrivateData(Value::read(bytes))
    }

    fn write(&self, what: &'static str, bytes: &mut [u8]) -> Result<()> {
        self.0.write(what, bytes)
    }
}

impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<const N: usize> Deref for PrivateData<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<const N: usize> fmt::Debug for PrivateData<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateData<{N}>(")?;
        fmt_hex(&self.0, f)?;
        f.write_str(")")
    }
}

/// Additional information of a reject, a SIDR response or an alternate path response: up to 72
/// bytes with a length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AdditionalInfo {
    /// The stated length. It comes from the wire and may exceed the area;
    /// [`as_slice`](AdditionalInfo::as_slice) returns the actual data.
    pub len: u8,
    /// The whole area.
    pub bytes: [u8; AdditionalInfo::LEN],
}

impl AdditionalInfo {
    /// Length of the area, in bytes.
    pub const LEN: usize = 72;

    /// None.
    pub const EMPTY: AdditionalInfo = AdditionalInfo {
        len: 0,
        bytes: [0; AdditionalInfo::LEN],
    };

    /// Creates the area from `data`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if it is longer than the area.
    pub fn from_slice(data: &[u8]) -> Result<Self> {
        Ok(AdditionalInfo {
            bytes: pad("additional information length", data)?,
            len: data.len() as u8,
        })
    }

    /// The valid bytes: the stated length, at most the whole area.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or(&self.bytes)
    }
}

impl Default for AdditionalInfo {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl fmt::Debug for AdditionalInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdditionalInfo({}: ", self.len)?;
        fmt_hex(&self.bytes, f)?;
        f.write_str(")")
    }
}

fn pad<const N: usize>(what: &'static str, data: &[u8]) -> Result<[u8; N]> {
    let mut area = [0; N];
    area.get_mut(..data.len())
        .ok_or(Error::OutOfRange {
            what,
            max: N as u64,
            got: data.len() as u64,
        })?
        .copy_from_slice(data);
    Ok(area)
}

/// Writes hex digits without the trailing zeros.
fn fmt_hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
    for byte in bytes.iter().take(used) {
        write!(f, "{byte:02x}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_fills_the_area_fits_and_one_byte_more_is_an_error() {
        let data = PrivateData::<92>::from_slice(&[7; 92]).unwrap();
        assert_eq!(*data, [7; 92]);
        assert_eq!(
            PrivateData::<92>::from_slice(&[7; 93]),
            Err(Error::OutOfRange {
                what: "private data length",
                max: 92,
                got: 93
            })
        );
    }

    #[test]
    fn shorter_data_is_followed_by_zeros() {
        let data = PrivateData::<8>::from_slice(&[1, 2]).unwrap();
        assert_eq!(*data, [1, 2, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_stated_length_beyond_the_area_shows_the_area_only() {
        let info = AdditionalInfo {
            len: 127,
            ..AdditionalInfo::EMPTY
        };
        assert_eq!(info.as_slice().len(), AdditionalInfo::LEN);
    }
}
