//! Converts the kernel's path record to C's.

use portolan_kernel::raw;
use portolan_wire::sa::PathRecord;

use crate::layout::SaPathRec;

/// The selector "exactly".
const EXACTLY: u8 = 2;

pub(crate) fn path(data: &raw::PathData) -> SaPathRec {
    let path = PathRecord::from_bytes(&data.path_rec);
    SaPathRec {
        dgid: path.dgid.into(),
        sgid: path.sgid.into(),
        dlid: path.dlid.to_be(),
        slid: path.slid.to_be(),
        raw_traffic: 0,
        flow_label: path.flow_label.to_be(),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        reversible: path.reversible.into(),
        numb_path: 1,
        pkey: path.pkey.0.to_be(),
        sl: path.sl,
        mtu_selector: EXACTLY,
        mtu: path.mtu.value,
        rate_selector: EXACTLY,
        rate: path.rate.value,
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.packet_lifetime.value,
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
        assert_eq!(path.flow_label, 0x000C_2D2E_u32.to_be());
        assert_eq!((path.hop_limit, path.traffic_class), (47, 48));
        assert_eq!((path.reversible, path.numb_path), (1, 1));
        assert_eq!(path.pkey.to_ne_bytes(), [50, 51]);
        assert_eq!((path.sl, path.mtu, path.rate), (5, 54, 55));
        assert_eq!((path.packet_life_time, path.preference), (56, 0));
        data.flags = 0x2B;
        assert_eq!(super::path(&data).preference, 0x2B);
    }
}
