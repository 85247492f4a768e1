//! The invariant CRC (IBTA 7.8.1, annex A17), which covers a packet from its IP header to its
//! padding, and its verification when the IP header is only partly known.
//!
//! It is the CRC-32 of Ethernet over eight bytes of ones, the IP header, the UDP header, and the
//! UDP payload up to the ICRC. Ones replace the fields that may change in transit:
//!
//! * IPv4: type of service, time to live and header checksum;
//! * IPv6: traffic class, flow label and hop limit;
//! * the UDP checksum;
//! * byte 4 of the BTH.
//!
//! The ICRC is stored little-endian.
//!
//! # The hidden identification
//!
//! The ICRC covers the IPv4 identification, which a receiver that owns only a UDP socket does not
//! see. A CRC is linear: the unknown 16 bits, followed by known bytes, add a known multiple of
//! themselves to the CRC of the same packet with identification zero. So one pass with
//! identification zero gives a difference. One multiplication takes that difference back through
//! the bytes after the field. The result is the only identification that could have produced the
//! received ICRC, provided that it is confined to the field's 16 bits. This confinement is the
//! remaining check: a corrupt packet passes with probability 2^-16, compared with 2^-32 for a full
//! check.

mod flow;
mod hasher;
mod unshift;

pub use flow::{Flow, FlowV4, FlowV6};
pub use hasher::IcrcHasher;

use crate::rocev2::ICRC_LEN;

/// What a receiver knows about the IPv4 identification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identification {
    /// Known, in host order; all 32 bits of the ICRC are checked. IPv6 has no such field and
    /// ignores the value.
    Known(u16),
    /// Hidden from the receiver: 16 bits of the ICRC are checked, all 32 over IPv6.
    Hidden,
    /// Hidden, with this likely value in host order. A wrong guess only costs time.
    Guessed(u16),
}

/// The ICRC is correct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcrcOk {
    /// The IPv4 identification, known or recovered; zero over IPv6.
    pub identification: u16,
}

/// The ICRC is wrong or missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IcrcError {
    /// The packet is corrupt, or its flow differs from the given one.
    #[error("ICRC mismatch: packet carries {carried:#010x}, computed {computed:#010x}")]
    Mismatch {
        /// The ICRC in the packet.
        carried: u32,
        /// The expected ICRC, computed with the known or guessed identification, or with zero if it
        /// is hidden.
        computed: u32,
    },
    /// The packet is too short for an ICRC.
    #[error("ICRC missing: needs {ICRC_LEN} bytes, got {got}")]
    Truncated {
        /// Length of the input, in bytes.
        got: usize,
    },
}

/// Computes the ICRC of a packet. `udp_payload` is the UDP payload without the ICRC; `ip_id` is the
/// IPv4 identification in host order (ignored over IPv6).
///
/// The payload must not exceed UDP's limit; the length fields hold its low 16 bits.
pub fn compute(flow: &Flow, ip_id: u16, udp_payload: &[u8]) -> u32 {
    let mut hasher = IcrcHasher::start(flow, udp_payload.len() + ICRC_LEN, ip_id);
    hasher.update(udp_payload);
    hasher.finish()
}

/// Computes the ICRC of `udp_payload` and stores it in its last four bytes, which are reserved for
/// it.
///
/// # Errors
///
/// [`IcrcError::Truncated`] if the payload is shorter than four bytes.
pub fn append(flow: &Flow, ip_id: u16, udp_payload: &mut [u8]) -> Result<(), IcrcError> {
    let got = udp_payload.len();
    let (body, icrc) = udp_payload
        .split_last_chunk_mut::<ICRC_LEN>()
        .ok_or(IcrcError::Truncated { got })?;
    *icrc = compute(flow, ip_id, body).to_le_bytes();
    Ok(())
}

/// Checks the ICRC in the last four bytes of `udp_payload`.
///
/// # Errors
///
/// [`IcrcError::Mismatch`] and [`IcrcError::Truncated`].
pub fn verify(
    flow: &Flow,
    identification: Identification,
    udp_payload: &[u8],
) -> Result<IcrcOk, IcrcError> {
    let (body, icrc) = udp_payload
        .split_last_chunk::<ICRC_LEN>()
        .ok_or(IcrcError::Truncated {
            got: udp_payload.len(),
        })?;
    let carried = u32::from_le_bytes(*icrc);
    let assumed = match (flow, identification) {
        (Flow::V4(_), Identification::Known(ip_id) | Identification::Guessed(ip_id)) => ip_id,
        _ => 0,
    };
    let computed = compute(flow, assumed, body);
    if carried == computed {
        return Ok(IcrcOk {
            identification: assumed,
        });
    }
    if let (Flow::V4(_), Identification::Hidden | Identification::Guessed(_)) =
        (flow, identification)
        && let Some(error) = recover_identification(carried ^ computed, body.len())
    {
        return Ok(IcrcOk {
            identification: assumed ^ error,
        });
    }
    Err(IcrcError::Mismatch { carried, computed })
}

/// Recovers the IPv4 identification from `difference`, the XOR of the received ICRC and the
/// computed one.
///
/// Returns the XOR of the packet's identification and the one assumed in the computation; `None` if
/// no identification explains the difference. `body_len` is the length of the UDP payload without
/// the ICRC.
fn recover_identification(difference: u32, body_len: usize) -> Option<u16> {
    /// Bytes from the start of the identification to the end of the UDP header.
    const TAIL: usize = 16 + 8;
    let origin = unshift::unshift_bytes(difference, TAIL + body_len);
    // The CRC processes bytes from the low end, so the first byte is the lowest.
    u16::try_from(origin).ok().map(u16::swap_bytes)
}
