//! The header of each datagram of a user MAD device (`struct ib_user_mad_hdr`,
//! `include/uapi/rdma/ib_user_mad.h`). Its fields are in native byte order, except those that go on
//! the wire.

use portolan_wire::mad::{MAD_LEN, MadHeaderRepr};
use portolan_wire::{Gid, QKey, Qpn};

use crate::transport::{Grh, Mad, MadAddress, Received};

/// Length of the header with a partition key index, in bytes.
const WITH_PKEY_INDEX: usize = 64;
/// Length of the header without one, in bytes: the last eight are missing.
const WITHOUT_PKEY_INDEX: usize = 56;
/// Longest datagram that a device delivers (`OPA_MGMT_MAD_SIZE`), in bytes, on any port.
const DATAGRAM_MAX: usize = 2048;
/// Longest read, in bytes.
pub(crate) const READ_LEN: usize = WITH_PKEY_INDEX + DATAGRAM_MAX;
/// Longest write, in bytes.
pub(crate) const BUFFER_LEN: usize = WITH_PKEY_INDEX + MAD_LEN;
/// End of the transaction id in a datagram.
const TID_END: usize = 16;

/// The header format of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// With a partition key index, after `IB_USER_MAD_ENABLE_PKEY`.
    PkeyIndex,
    /// Without a partition key index.
    NoPkeyIndex,
}

impl Layout {
    const fn len(self) -> usize {
        match self {
            Self::PkeyIndex => WITH_PKEY_INDEX,
            Self::NoPkeyIndex => WITHOUT_PKEY_INDEX,
        }
    }

    /// Encodes what to write to the device to send `mad`, and returns its length.
    pub(crate) fn encode(
        self,
        agent: u32,
        to: &MadAddress,
        mad: &Mad,
        timeout_ms: u32,
    ) -> ([u8; BUFFER_LEN], usize) {
        let mut header = [0; WITH_PKEY_INDEX];
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(field) = header.get_mut(at..at + bytes.len()) {
                field.copy_from_slice(bytes);
            }
        };
        put(0, &agent.to_ne_bytes());
        put(8, &timeout_ms.to_ne_bytes());
        put(20, &to.qpn.value().to_be_bytes());
        put(24, &to.qkey.0.to_be_bytes());
        put(28, &to.lid.to_be_bytes());
        put(30, &[to.sl, to.path_bits]);
        if let Some(grh) = &to.grh {
            put(32, &[1, grh.sgid_index, grh.hop_limit, grh.traffic_class]);
            put(36, &grh.gid.0);
            put(52, &grh.flow_label.to_be_bytes());
        }
        put(56, &to.pkey_index.to_ne_bytes());
        let mut buffer = [0; BUFFER_LEN];
        let (head, data) = buffer.split_at_mut(self.len());
        head.copy_from_slice(&header[..self.len()]);
        data[..MAD_LEN].copy_from_slice(mad);
        (buffer, self.len() + MAD_LEN)
    }

    /// Decodes a record read from the device; `None` if it is too short.
    pub(crate) fn decode(self, bytes: &[u8]) -> Option<Received> {
        let (header, mad) = bytes.split_at_checked(self.len())?;
        let status = u32::from_ne_bytes(array(header, 4)?);
        if status != 0 {
            // A failed send comes back whole, or at least its MAD header.
            let tid = u64::from_be_bytes(array(mad, TID_END - size_of::<u64>())?);
            let errno = i32::try_from(status).ok()?;
            return Some(Received::SendFailed { tid, errno });
        }
        // A longer datagram is a multi-packet reply that the kernel reassembled; no agent here asks
        // for that.
        let mad: Mad = match self {
            Self::PkeyIndex => mad.try_into().ok()?,
            // The simulator passes on the written bytes, and OpenSM leaves out trailing zeros.
            Self::NoPkeyIndex => filled_up(mad)?,
        };
        let from = MadAddress {
            qpn: Qpn::new(u32::from_be_bytes(array(header, 20)?)),
            qkey: QKey(u32::from_be_bytes(array(header, 24)?)),
            lid: u16::from_be_bytes(array(header, 28)?),
            sl: *header.get(30)?,
            path_bits: *header.get(31)?,
            grh: grh(header)?,
            pkey_index: match self {
                Self::PkeyIndex => u16::from_ne_bytes(array(header, 56)?),
                Self::NoPkeyIndex => 0,
            },
        };
        let mad = Box::new(mad);
        Some(Received::Mad { from, mad })
    }
}

/// Restores the trailing zeros of a datagram; `None` if it is shorter than a MAD header or too
/// long.
fn filled_up(bytes: &[u8]) -> Option<Mad> {
    let mut mad = [0; MAD_LEN];
    mad.get_mut(..bytes.len())?.copy_from_slice(bytes);
    (bytes.len() >= MadHeaderRepr::LEN).then_some(mad)
}

/// The global route of a received datagram, if it has one; the outer `None` means that the header
/// is too short.
fn grh(header: &[u8]) -> Option<Option<Grh>> {
    let [present, sgid_index, hop_limit, traffic_class] = array(header, 32)?;
    Some((present != 0).then_some(Grh {
        gid: Gid(array(header, 36)?),
        sgid_index,
        flow_label: u32::from_be_bytes(array(header, 52)?),
        hop_limit,
        traffic_class,
    }))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(pkey_index: u16) -> MadAddress {
        MadAddress {
            lid: 0x0102,
            qpn: Qpn::GSI,
            qkey: QKey::GSI,
            pkey_index,
            sl: 3,
            path_bits: 1,
            grh: Some(Grh {
                gid: Gid([7; 16]),
                sgid_index: 2,
                flow_label: 0x12345,
                hop_limit: 64,
                traffic_class: 9,
            }),
        }
    }

    #[test]
    fn the_header_has_the_systems_layout() {
        let mad = [0x5a; MAD_LEN];
        let (bytes, len) = Layout::PkeyIndex.encode(0x0304, &address(0x0506), &mad, 700);
        assert_eq!(len, 64 + 256);
        assert_eq!(bytes[..4], 0x0304_u32.to_ne_bytes());
        assert_eq!(bytes[8..12], 700_u32.to_ne_bytes());
        assert_eq!(bytes[20..24], [0, 0, 0, 1]);
        assert_eq!(bytes[24..28], [0x80, 0x01, 0, 0]);
        assert_eq!(bytes[28..36], [1, 2, 3, 1, 1, 2, 64, 9]);
        assert_eq!(bytes[36..52], [7; 16]);
        assert_eq!(bytes[52..56], [0, 0x01, 0x23, 0x45]);
        assert_eq!(bytes[56..58], 0x0506_u16.to_ne_bytes());
        assert_eq!(bytes[64..], mad);
        let (bytes, len) = Layout::NoPkeyIndex.encode(0, &address(0), &mad, 0);
        assert_eq!((len, &bytes[56..len]), (56 + 256, &mad[..]));
    }

    #[test]
    fn a_sent_header_parses_as_received() {
        for (layout, pkey_index) in [(Layout::PkeyIndex, 5), (Layout::NoPkeyIndex, 0)] {
            let from = address(pkey_index);
            let mad = Box::new([0x77; MAD_LEN]);
            let (bytes, len) = layout.encode(1, &from, &mad, 0);
            let expected = Received::Mad { from, mad };
            assert_eq!(layout.decode(&bytes[..len]), Some(expected));
        }
    }

    #[test]
    fn a_status_is_a_failure_to_send_even_if_only_the_head_comes_back() {
        let mut mad = [0; MAD_LEN];
        mad[8..16].copy_from_slice(&0x0102_0304_0506_0708_u64.to_be_bytes());
        let (mut bytes, len) = Layout::PkeyIndex.encode(1, &address(0), &mad, 0);
        bytes[4..8].copy_from_slice(&110_u32.to_ne_bytes());
        let failed = Received::SendFailed {
            tid: 0x0102_0304_0506_0708,
            errno: 110,
        };
        assert_eq!(
            Layout::PkeyIndex.decode(&bytes[..len]),
            Some(failed.clone())
        );
        assert_eq!(Layout::PkeyIndex.decode(&bytes[..64 + 24]), Some(failed));
    }

    #[test]
    fn truncated_datagrams_are_ignored() {
        let (bytes, len) = Layout::PkeyIndex.encode(1, &address(0), &[0; MAD_LEN], 0);
        for end in 0..len {
            assert_eq!(Layout::PkeyIndex.decode(&bytes[..end]), None, "{end}");
        }
    }

    #[test]
    fn a_datagram_longer_than_infinibands_is_read_completely_and_ignored() {
        assert_eq!(READ_LEN, 64 + 2048);
        for layout in [Layout::PkeyIndex, Layout::NoPkeyIndex] {
            for len in BUFFER_LEN + 1..=READ_LEN {
                assert_eq!(layout.decode(&[0; READ_LEN][..len]), None, "{len}");
            }
        }
    }

    #[test]
    fn the_simulators_datagrams_may_end_before_their_zeros() {
        let layout = Layout::NoPkeyIndex;
        let mut mad = [0; MAD_LEN];
        mad[..100].fill(9);
        let (bytes, len) = layout.encode(1, &address(0), &mad, 0);
        let whole = layout.decode(&bytes[..len]);
        assert!(whole.is_some());
        assert_eq!(layout.decode(&bytes[..layout.len() + 100]), whole);
        assert_eq!(layout.decode(&bytes[..layout.len() + 23]), None);
        assert_eq!(layout.decode(&[0; BUFFER_LEN]), None, "too long");
    }
}
