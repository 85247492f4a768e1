//! Private data of the connection protocol, as an error keeps it.

use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;

/// The private data of a message: the whole field, zero-padded as on the wire.
///
/// `Debug` prints it as a byte string without the padding.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PrivateData(Vec<u8>);

impl PrivateData {
    /// The bytes up to the last one that is not zero. A program whose data may end in zeros sends their length, too.
    pub fn without_padding(&self) -> &[u8] {
        let end = self.0.iter().rposition(|byte| *byte != 0);
        &self.0[..end.map_or(0, |last| last + 1)]
    }

    /// A clause for an error's text.
    pub(super) fn clause(&self) -> impl fmt::Display {
        Clause(self)
    }
}

/// The length of private data, and the data if it is text without characters that control a terminal.
struct Clause<'a>(&'a PrivateData);

impl fmt::Display for Clause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let data = self.0.without_padding();
        match data.len() {
            0 => return Ok(()),
            1 => f.write_str(", with 1 byte of private data")?,
            length => write!(f, ", with {length} bytes of private data")?,
        }
        match core::str::from_utf8(data) {
            Ok(text) if text.chars().all(is_printable) => write!(f, ": {text:?}"),
            _ => Ok(()),
        }
    }
}

/// Whether `Debug` prints a character as itself, except for quotation marks and backslashes.
fn is_printable(character: char) -> bool {
    matches!(character, '"' | '\'' | '\\') || character.escape_debug().eq([character])
}

impl Deref for PrivateData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for PrivateData {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<&[u8]> for PrivateData {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.without_padding().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    #[test]
    fn it_is_printed_without_its_padding() {
        let mut field = b"busy\n\xff".to_vec();
        field.resize(148, 0);
        let data = PrivateData::from(field);
        assert_eq!(format!("{data:?}"), r#"b"busy\n\xff""#);
        assert_eq!(data.len(), 148);
        assert_eq!(format!("{:?}", PrivateData::from(&[0; 148][..])), r#"b"""#);
    }
}
