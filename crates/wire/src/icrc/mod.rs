//! The invariant CRC (IBTA 7.8.1, annex A17), which covers a packet from its IP header to its
//! padding, and how to check it when the IP header is only partly known.
//!
//! It is the CRC-32 of Ethernet over: eight bytes of ones, the IP header, the UDP header, and the
//! UDP payload up to the ICRC, where ones replace the fields that may change on the way: type of
//! service, time to live and header checksum of IPv4; traffic class, flow label and hop limit of
//! IPv6; the UDP checksum; byte 4 of the BTH. It is stored little-endian.
//!
//! # The hidden identification
//!
//! The IPv4 identification is covered, and a receiver that owns only a UDP socket does not see it.
//! A CRC is linear: the unknown 16 bits, followed by known bytes, add a known multiple of
//! themselves to the CRC of the same packet with identification zero. So one pass with zero, and
//! one multiplication that takes the difference back through the bytes that follow the field, give
//! the only identification that could have made the received ICRC — provided that the difference,
//! taken back, is confined to the field's 16 bits. That confinement is the check that remains: a
//! corrupt packet passes with probability 2^-16, where a full check has 2^-32.

mod flow;
mod hasher;
mod unshift;

pub use flow::{Flow, FlowV4, FlowV6};
pub use hasher::IcrcHasher;

use crate::rocev2::ICRC_LEN;

/// What a receiver knows of the IPv4 identification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identification {
    /// It is known, host order; every bit of the ICRC is checked. IPv6 has no such field: the value
    /// is not looked at.
    Known(u16),
    /// The receiver cannot see it; 16 bits of the ICRC are checked, all 32 over IPv6.
    Hidden,
    /// As `Hidden`, and it is probably this one, host order. A wrong guess costs time and changes nothing else.
    Guessed(u16),
}

/// A packet whose ICRC is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcrcOk {
    /// The IPv4 identification, given or recovered; zero over IPv6.
    pub identification: u16,
}

/// A packet whose ICRC is wrong or missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IcrcError {
    /// The packet is corrupt, or its flow is not what the caller says.
    #[error("ICRC mismatch: packet carries {carried:#010x}, computed {computed:#010x}")]
    Mismatch {
        /// The ICRC in the packet.
        carried: u32,
        /// The ICRC it should have: with the identification given or guessed, or zero if that is hidden.
        computed: u32,
    },
    /// The packet ends before its ICRC does.
    #[error("ICRC missing: needs {ICRC_LEN} bytes, got {got}")]
    Truncated {
        /// Bytes that were there.
        got: usize,
    },
}

/// The ICRC of a packet: `udp_payload` is all of the UDP payload but the ICRC itself, `ip_id` the
/// IPv4 identification in host order (not looked at over IPv6).
///
/// The payload is to be no longer than UDP allows; the length fields hold its low 16 bits.
pub fn compute(flow: &Flow, ip_id: u16, udp_payload: &[u8]) -> u32 {
    let mut hasher = IcrcHasher::start(flow, udp_payload.len() + ICRC_LEN, ip_id);
    hasher.update(udp_payload);
    hasher.finish()
}

/// Computes the ICRC of `udp_payload`, whose last four bytes are the ICRC's place, and stores it
/// there.
///
/// # Errors
///
/// [`IcrcError::Truncated`] if there is no such place.
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

/// The identification that turns the CRC of a packet with identification zero into one that
/// differs from it by `difference`, and so, of a packet with another one, the bits that are wrong in that; `body_len` is the
/// length of the UDP payload without ICRC.
fn recover_identification(difference: u32, body_len: usize) -> Option<u16> {
    /// From the identification, itself included, to the end of IPv4 and UDP header.
    const TAIL: usize = 16 + 8;
    let origin = unshift::unshift_bytes(difference, TAIL + body_len);
    // The CRC takes bytes in from the low end, the first byte lowest.
    u16::try_from(origin).ok().map(u16::swap_bytes)
}
