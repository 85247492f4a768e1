//! RoCEv2 packets: what a UDP datagram to port 4791 carries (IBTA annex A17).

mod headers;
mod packet;

pub use headers::Headers;
pub use packet::Packet;

/// The UDP destination port of RoCEv2.
pub const UDP_PORT: u16 = 4791;

/// The most bytes the headers take: BTH and AtomicETH.
pub const MAX_HEADERS_LEN: usize = 40;

/// Bytes of the invariant CRC at the packet's end.
pub const ICRC_LEN: usize = 4;

/// Bytes of padding that bring `payload_len` to a multiple of four.
pub const fn pad_len(payload_len: usize) -> usize {
    payload_len.wrapping_neg() % 4
}
