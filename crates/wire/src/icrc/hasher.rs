//! Incremental computation of the ICRC.

use core::fmt;

use crc32fast::Hasher;

use super::{Flow, FlowV4, FlowV6};
use crate::bth;

/// CRC-32 of eight bytes of ones, the start of every ICRC. They stand for InfiniBand's link header,
/// which RoCEv2 lacks.
const CRC_OF_EIGHT_ONES: u32 = 0x2144_DF1C;

const UDP_HEADER_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const PROTOCOL_UDP: u8 = 17;
const ONES: u8 = 0xFF;

/// Longest masked prefix: IPv6, UDP and BTH.
const PREFIX_LEN_MAX: usize = IPV6_LEN + UDP_HEADER_LEN + bth::LEN;

/// Computes an ICRC over a UDP payload in several pieces.
#[derive(Clone)]
pub struct IcrcHasher {
    crc: Hasher,
    /// The masked headers, hashed at once when the BTH is complete: small updates are slow.
    prefix: [u8; PREFIX_LEN_MAX],
    filled: usize,
    prefix_len: usize,
}

impl IcrcHasher {
    /// Starts a packet. `udp_payload_len` is the length of the UDP payload in bytes, including the
    /// ICRC's four; `ip_id` is the IPv4 identification in host order (ignored over IPv6).
    ///
    /// Then pass the UDP payload without the ICRC to [`update`](IcrcHasher::update).
    pub fn start(flow: &Flow, udp_payload_len: usize, ip_id: u16) -> IcrcHasher {
        let udp_len = udp_payload_len + UDP_HEADER_LEN;
        let mut prefix = [0; PREFIX_LEN_MAX];
        let filled = match flow {
            Flow::V4(flow) => fill(&mut prefix, &ipv4_prefix(flow, udp_len, ip_id)),
            Flow::V6(flow) => fill(&mut prefix, &ipv6_prefix(flow, udp_len)),
        };
        IcrcHasher {
            crc: Hasher::new_with_initial(CRC_OF_EIGHT_ONES),
            prefix,
            filled,
            prefix_len: filled + bth::LEN,
        }
    }

    /// Adds the next bytes of the UDP payload.
    pub fn update(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if self.filled < self.prefix_len {
            let room = self
                .prefix
                .get_mut(self.filled..self.prefix_len)
                .unwrap_or_default();
            let taken = fill(room, bytes);
            self.filled += taken;
            rest = bytes.get(taken..).unwrap_or_default();
            if self.filled == self.prefix_len {
                self.hash_prefix();
            }
        }
        if !rest.is_empty() {
            self.crc.update(rest);
        }
    }

    /// The ICRC, to be stored little-endian.
    pub fn finish(mut self) -> u32 {
        if self.filled < self.prefix_len {
            self.hash_prefix();
        }
        self.crc.finalize()
    }

    fn hash_prefix(&mut self) {
        let prefix = self.prefix.get_mut(..self.filled).unwrap_or_default();
        let variant_at = self.prefix_len - bth::LEN + bth::VARIANT_BYTE;
        if let Some(byte) = prefix.get_mut(variant_at) {
            *byte = ONES;
        }
        self.crc.update(prefix);
    }
}

impl fmt::Debug for IcrcHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IcrcHasher").finish_non_exhaustive()
    }
}

/// Copies as much of `from` as fits into `to`; returns its length.
fn fill(to: &mut [u8], from: &[u8]) -> usize {
    let len = to.len().min(from.len());
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    len
}

/// Sets bytes of a prefix. Constant arguments leave no check.
#[inline(always)]
fn set<const N: usize, const LEN: usize>(prefix: &mut [u8; N], at: usize, bytes: [u8; LEN]) {
    prefix[at..at + LEN].copy_from_slice(&bytes);
}

// Ones stand for what routers may change, and for the checksums.

fn ipv4_prefix(flow: &FlowV4, udp_len: usize, ip_id: u16) -> [u8; IPV4_LEN + UDP_HEADER_LEN] {
    const VERSION_AND_HEADER_WORDS: u8 = 0x45;
    const DONT_FRAGMENT: u16 = 0x4000;
    let flags = if flow.dont_fragment { DONT_FRAGMENT } else { 0 };
    let mut prefix = [ONES; _];
    set(&mut prefix, 0, [VERSION_AND_HEADER_WORDS]);
    set(&mut prefix, 2, ((IPV4_LEN + udp_len) as u16).to_be_bytes());
    set(&mut prefix, 4, ip_id.to_be_bytes());
    set(&mut prefix, 6, flags.to_be_bytes());
    set(&mut prefix, 9, [PROTOCOL_UDP]);
    set(&mut prefix, 12, flow.src.octets());
    set(&mut prefix, 16, flow.dst.octets());
    set(&mut prefix, 20, flow.src_port.to_be_bytes());
    set(&mut prefix, 22, flow.dst_port.to_be_bytes());
    set(&mut prefix, 24, (udp_len as u16).to_be_bytes());
    prefix
}

fn ipv6_prefix(flow: &FlowV6, udp_len: usize) -> [u8; IPV6_LEN + UDP_HEADER_LEN] {
    const VERSION_AND_ONES: u8 = 0x6F;
    let mut prefix = [ONES; _];
    set(&mut prefix, 0, [VERSION_AND_ONES]);
    set(&mut prefix, 4, (udp_len as u16).to_be_bytes());
    set(&mut prefix, 6, [PROTOCOL_UDP]);
    set(&mut prefix, 8, flow.src.octets());
    set(&mut prefix, 24, flow.dst.octets());
    set(&mut prefix, 40, flow.src_port.to_be_bytes());
    set(&mut prefix, 42, flow.dst_port.to_be_bytes());
    set(&mut prefix, 44, (udp_len as u16).to_be_bytes());
    prefix
}
