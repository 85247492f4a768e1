//! Converts the kernel's path record to C's.

use portolan_kernel::raw;
use portolan_wire::addr::Gid as WireGid;

use crate::layout::SaPathRec;

/// Offsets in the path record of a management datagram.
mod path_record {
    pub(super) const DGID: usize = 8;
    pub(super) const SGID: usize = 24;
    pub(super) const DLID: usize = 40;
    pub(super) const SLID: usize = 42;
    pub(super) const FLOW_HOP: usize = 44;
    pub(super) const TCLASS: usize = 48;
    pub(super) const REVERSIBLE: usize = 49;
    pub(super) const PKEY: usize = 50;
    pub(super) const QOS_SL: usize = 52;
    pub(super) const MTU: usize = 54;
    pub(super) const RATE: usize = 55;
    pub(super) const LIFE_TIME: usize = 56;
}

/// The selector "exactly".
const EXACTLY: u8 = 2;

pub(crate) fn path(data: &raw::PathData) -> SaPathRec {
    use path_record::*;
    let bytes = &data.path_rec;
    let gid = |at: usize| WireGid(std::array::from_fn(|byte| bytes[at + byte])).into();
    // C's structure is big-endian, too.
    let be16 = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let word =
        |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    SaPathRec {
        dgid: gid(DGID),
        sgid: gid(SGID),
        dlid: be16(DLID),
        slid: be16(SLID),
        raw_traffic: 0,
        flow_label: (word(FLOW_HOP) >> 8).to_be(),
        hop_limit: word(FLOW_HOP) as u8,
        traffic_class: bytes[TCLASS],
        reversible: i32::from(bytes[REVERSIBLE] >> 7),
        numb_path: 1,
        pkey: be16(PKEY),
        sl: bytes[QOS_SL + 1] & 0x0F,
        mtu_selector: EXACTLY,
        mtu: bytes[MTU] & 0x3F,
        rate_selector: EXACTLY,
        rate: bytes[RATE] & 0x3F,
        packet_life_time_selector: EXACTLY,
        packet_life_time: bytes[LIFE_TIME] & 0x3F,
        // librdmacm passes the path's flags here, and programs may read them.
        preference: data.flags as u8,
    }
}

#[cfg(test)]
mod tests {
    use portolan_kernel::raw::Fields;

    use super::*;

    #[test]
    fn a_path_record_is_taken_apart() {
        let mut data = raw::PathData::zeroed();
        for (at, byte) in data.path_rec.iter_mut().enumerate() {
            *byte = at as u8;
        }
        data.path_rec[49] = 0x81;
        let path = path(&data);
        assert_eq!(path.dgid.raw[0].to_ne_bytes()[0], 8);
        assert_eq!(path.sgid.raw[1].to_ne_bytes()[7], 39);
        assert_eq!(path.dlid.to_ne_bytes(), [40, 41]);
        assert_eq!(path.flow_label, 0x002C_2D2E_u32.to_be());
        assert_eq!((path.hop_limit, path.traffic_class), (47, 48));
        assert_eq!((path.reversible, path.numb_path), (1, 1));
        assert_eq!(path.pkey.to_ne_bytes(), [50, 51]);
        assert_eq!((path.sl, path.mtu, path.rate), (5, 54, 55));
        assert_eq!((path.packet_life_time, path.preference), (56, 0));
        data.flags = 0x2B;
        assert_eq!(super::path(&data).preference, 0x2B);
    }
}
