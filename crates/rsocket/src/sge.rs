//! Memory by address, key and length.

/// Memory of one side, for the other to write to (`struct rs_sge`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// First byte, as a virtual address of its owner.
    pub addr: u64,
    /// Remote key.
    pub key: u32,
    /// Bytes; entries, for a table.
    pub length: u32,
}

impl Sge {
    /// Bytes of the encoded form.
    pub const LEN: usize = 16;

    /// Encodes the entry, in the byte order of the side whose memory it is written to.
    pub fn encode(&self, big_endian: bool) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let (addr, key, length) = match big_endian {
            true => (
                self.addr.to_be_bytes(),
                self.key.to_be_bytes(),
                self.length.to_be_bytes(),
            ),
            false => (
                self.addr.to_le_bytes(),
                self.key.to_le_bytes(),
                self.length.to_le_bytes(),
            ),
        };
        bytes[..8].copy_from_slice(&addr);
        bytes[8..12].copy_from_slice(&key);
        bytes[12..].copy_from_slice(&length);
        bytes
    }

    /// Parses an entry.
    pub fn decode(bytes: [u8; Self::LEN], big_endian: bool) -> Self {
        let addr: [u8; 8] = core::array::from_fn(|at| bytes[at]);
        let word = |from: usize| -> [u8; 4] { core::array::from_fn(|at| bytes[from + at]) };
        match big_endian {
            true => Self {
                addr: u64::from_be_bytes(addr),
                key: u32::from_be_bytes(word(8)),
                length: u32::from_be_bytes(word(12)),
            },
            false => Self {
                addr: u64::from_le_bytes(addr),
                key: u32::from_le_bytes(word(8)),
                length: u32::from_le_bytes(word(12)),
            },
        }
    }
}
