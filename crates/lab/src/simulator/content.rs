//! Message contents: slices of one table of noise. Each byte in transit can be compared with the
//! expected byte without keeping a copy of the message.

use std::sync::OnceLock;

use super::rng::Rng;

/// Contents begin at an offset below this.
const OFFSETS: usize = 1 << 18;

/// Largest contiguous content: the messages of one side, and one that is longer than all of them by the plan's fault.
pub(super) const CONTENT_BYTES_MAX: usize = 512 << 10;

/// Bytes of the table.
const TABLE_BYTES: usize = OFFSETS + CONTENT_BYTES_MAX;

fn table() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut rng = Rng::new(0x504f_5254_4f4c_414e);
        let words = (0..TABLE_BYTES / 8).map(|_| rng.next_u64().to_le_bytes());
        words.flatten().collect()
    })
}

/// An offset in the table, where a content begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Noise(usize);

impl Noise {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        Self(rng.below(OFFSETS as u64) as usize)
    }

    /// The content that begins `offset` bytes later.
    pub(super) fn after(self, offset: usize) -> Self {
        Self(self.0 + offset)
    }

    /// Its first `len` bytes.
    ///
    /// # Panics
    /// If `len` exceeds what is left of the table. The plan asks for at most [`CONTENT_BYTES_MAX`].
    pub(super) fn bytes(self, len: usize) -> &'static [u8] {
        &table()[self.0..][..len]
    }
}

/// A message's bytes: pieces of contents in sequence.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    pieces: Vec<(Noise, u32)>,
}

impl Content {
    pub(super) fn push(&mut self, noise: Noise, len: u32) {
        self.pieces.push((noise, len));
    }

    /// Whether `bytes` are the content at `offset`.
    pub(super) fn matches(&self, offset: u64, bytes: &[u8]) -> bool {
        let (mut skip, mut rest) = (offset as usize, bytes);
        for (noise, len) in &self.pieces {
            let len = *len as usize;
            if skip >= len {
                skip -= len;
                continue;
            }
            let part = (len - skip).min(rest.len());
            if noise.after(skip).bytes(part) != &rest[..part] {
                return false;
            }
            rest = &rest[part..];
            skip = 0;
            if rest.is_empty() {
                return true;
            }
        }
        rest.is_empty()
    }

    /// The whole content.
    pub(super) fn to_vec(&self) -> Vec<u8> {
        let pieces = self.pieces.iter();
        let pieces: Vec<&[u8]> = pieces
            .map(|(noise, len)| noise.bytes(*len as usize))
            .collect();
        // Piece by piece: copying byte by byte would dominate the simulation's time.
        pieces.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_several_pieces_is_compared_across_their_borders() {
        let mut rng = Rng::new(7);
        let mut content = Content::default();
        for len in [10, 0, 1, 300] {
            content.push(Noise::draw(&mut rng), len);
        }
        let bytes = content.to_vec();
        for start in 0..bytes.len() {
            assert!(content.matches(start as u64, &bytes[start..]));
        }
        assert!(!content.matches(1, &bytes[..20]));
        assert!(
            !content.matches(300, &bytes[..20]),
            "longer than the content"
        );
    }
}
