//! RoCEv2 packets: the payload of UDP datagrams to port 4791 (IBTA annex A17).

mod headers;
mod packet;

pub use headers::Headers;
pub use packet::Packet;

/// The UDP destination port of RoCEv2.
pub const UDP_PORT: u16 = 4791;

/// Maximum length of the headers, in bytes: BTH, XRCETH and AtomicETH.
pub const MAX_HEADERS_LEN: usize = 44;

/// Length of the invariant CRC at the end of a packet, in bytes.
pub const ICRC_LEN: usize = 4;

/// Bytes of padding that bring `payload_len` to a multiple of four.
#[inline]
pub const fn pad_len(payload_len: usize) -> usize {
    payload_len.wrapping_neg() % 4
}
