//! Address handles, and how to answer the sender of a datagram.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::sync::Arc;

use portolan_provider::verbs::Ah as ProviderAh;
use portolan_wire::addr::Gid;
use rustix::io::Errno;

use crate::guard::{Result, errno_of};
use crate::layout::{Ah, AhAttr, Context, GlobalRoute, Grh, Pd, Wc, wc_flags};
use crate::object::{Held, Kind, end, make, next_handle, own};
use crate::query;

/// An address handle.
pub(crate) struct OwnAh {
    pub(crate) ah: Arc<dyn ProviderAh>,
    _pd: Held,
}

impl Kind for Ah {
    type Whole = Self;
    type Own = OwnAh;
}

/// # Errors
/// `EINVAL` without a global route, or for a source that is not in the GID table.
///
/// # Safety
/// The domain is one of ours.
pub(crate) unsafe fn create(pd: *mut Pd, attr: &AhAttr) -> Result<*mut Ah> {
    // SAFETY: the caller keeps `pd` alive during this call.
    let domain = unsafe { own(pd) }?;
    if attr.is_global == 0 {
        return Err(Errno::INVAL);
    }
    let ah = domain.pd.create_ah(&attr.into());
    let ah = ah.map_err(|error| errno_of(&error))?;
    let whole = Ah {
        // SAFETY: a domain of ours.
        context: unsafe { (*pd).context },
        pd,
        handle: next_handle(),
    };
    let _pd = domain.users.hold();
    Ok(make(whole, OwnAh { ah, _pd }))
}

/// # Errors
/// `EINVAL` if it is already destroyed.
///
/// # Safety
/// It is not used afterwards.
pub(crate) unsafe fn destroy(ah: *mut Ah) -> Result<()> {
    let ending = end(ah)?;
    // SAFETY: only the caller uses it, and it is destroyed here.
    unsafe { ending.free() };
    Ok(())
}

/// The address vector back to the sender of a datagram, from the 40 bytes before the data.
///
/// # Errors
/// `EINVAL` for bytes that are not a header, or for a header that was not to this port.
///
/// # Safety
/// The pointers are the program's.
pub(crate) unsafe fn way_back(
    context: *mut Context,
    port_num: u8,
    wc: *const Wc,
    grh: *const Grh,
) -> Result<AhAttr> {
    // SAFETY: `wc` is null or whole.
    let wc = unsafe { wc.as_ref() }.ok_or(Errno::INVAL)?;
    if wc.wc_flags & wc_flags::GRH == 0 || grh.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: as above; the program provides 40 bytes.
    let bytes = unsafe { grh.cast::<[u8; 40]>().read_unaligned() };
    let back = Back::of(&bytes).ok_or(Errno::INVAL)?;
    // SAFETY: as above.
    let gids = unsafe { query::gids(context) }?;
    let own = gids
        .iter()
        .find(|entry| entry.port_num == port_num.into() && Gid::from(entry.gid).0 == back.to);
    let sgid_index = own.and_then(|entry| u8::try_from(entry.gid_index).ok());
    Ok(AhAttr {
        grh: GlobalRoute {
            dgid: Gid(back.from).into(),
            flow_label: back.flow_label,
            sgid_index: sgid_index.ok_or(Errno::INVAL)?,
            hop_limit: back.hop_limit,
            traffic_class: back.traffic_class,
        },
        dlid: wc.slid,
        // A completion reports the kind of the header in this field.
        sl: 0,
        src_path_bits: wc.dlid_path_bits,
        static_rate: 0,
        is_global: 1,
        port_num,
    })
}

/// The contents of a datagram's header.
#[derive(Debug, PartialEq, Eq)]
struct Back {
    from: [u8; 16],
    to: [u8; 16],
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
}

impl Back {
    /// Reads an IPv6 header, or the IPv4 header in the last 20 bytes (IBTA annex A17). The version and the IPv4
    /// checksum distinguish them, because the bytes before an IPv4 header are arbitrary.
    fn of(bytes: &[u8; 40]) -> Option<Self> {
        let last = &bytes[20..];
        if last[0] == 0x45 && sums_up(last) {
            let mapped = |ip: &[u8]| {
                let mut gid = [0; 16];
                gid[10..12].fill(0xff);
                gid[12..].copy_from_slice(ip);
                gid
            };
            return Some(Self {
                from: mapped(&last[12..16]),
                to: mapped(&last[16..20]),
                flow_label: 0,
                hop_limit: last[8],
                traffic_class: last[1],
            });
        }
        let [a, b, c, d, ..] = *bytes;
        let first = u32::from_be_bytes([a, b, c, d]);
        (first >> 28 == 6).then(|| Self {
            from: std::array::from_fn(|at| bytes[8 + at]),
            to: std::array::from_fn(|at| bytes[24 + at]),
            flow_label: first & 0xF_FFFF,
            hop_limit: bytes[7],
            traffic_class: (first >> 20) as u8,
        })
    }
}

/// Whether the checksum of an IPv4 header is correct (RFC 791).
fn sums_up(header: &[u8]) -> bool {
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_return_path_is_read_from_either_header() {
        let mut bytes = [0xaa; 40];
        bytes[..8].copy_from_slice(&[0x6b, 0x9a, 0xbc, 0xde, 0, 108, 17, 63]);
        bytes[8..24].fill(1);
        bytes[24..].fill(2);
        let back = Back::of(&bytes).unwrap();
        assert_eq!((back.from, back.to), ([1; 16], [2; 16]));
        assert_eq!(
            (back.flow_label, back.traffic_class, back.hop_limit),
            (0xa_bcde, 0xb9, 63)
        );

        bytes[20..].copy_from_slice(&[
            0x45, 0xb9, 0, 128, 0x12, 0x34, 0x40, 0, 63, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        let words = bytes[20..]
            .chunks(2)
            .map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
        let sum: u32 = words.sum();
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        bytes[30..32].copy_from_slice(&checksum.to_be_bytes());
        let back = Back::of(&bytes).unwrap();
        assert_eq!(back.from[10..], [0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(back.to[10..], [0xff, 0xff, 10, 0, 0, 2]);
        assert_eq!(
            (back.flow_label, back.traffic_class, back.hop_limit),
            (0, 0xb9, 63)
        );
        assert_eq!(Back::of(&[0; 40]), None);
    }
}
